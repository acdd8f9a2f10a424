"""What a fitted list is held against: a target to reach with the fewest graphs, and the pruned list."""

from __future__ import annotations

import numpy as np
import pytest
from fitting_cases import histograms
from hypothesis import given, settings
from hypothesis import strategies as st
from shape_strategies import policies, runs

from nanoserve import DecodeBuckets, DecodePolicy, StaircaseBuckets, price_run
from nanoserve.fitting import Axis, StepsHistogram, fewest, fit_rows, fit_staircase, price_cells, price_rows, pruned

TRAFFIC = StepsHistogram.of_rows({rows: 1 + rows % 5 for rows in range(1, 65)})


@given(histograms(30, 1), st.integers(0, 4000))
def test_one_graph_fewer_would_miss_the_target(histogram: StepsHistogram, target: int) -> None:
    curve = fit_rows(histogram, Axis(30), 12)
    if curve.points[-1].cost > target:
        with pytest.raises(ValueError, match=f"no list of up to 12 graphs costs {target} or less"):
            fewest(curve, target)
        return
    reached = fewest(curve, target)
    assert reached.cost <= target
    assert reached.graphs == len(reached.best)
    assert reached.graphs == 1 or curve.at(reached.graphs - 1).cost > target


def test_waste_under_5_percent() -> None:
    opened = TRAFFIC.priced(price_rows)
    curve = fit_rows(TRAFFIC, Axis(64), 32)
    reached = fewest(curve, opened / (1 - 0.05))
    assert 1 - opened / reached.cost <= 0.05 < 1 - opened / curve.at(reached.graphs - 1).cost


def test_a_list_is_matched_with_fewer_graphs_and_itself_is_matched() -> None:
    eights = (1, 2, 4, *range(8, 65, 8))
    target = TRAFFIC.bucket_rows(eights).priced(price_rows)
    reached = fewest(fit_rows(TRAFFIC, Axis(64), len(eights)), target)
    assert reached.graphs < len(eights)
    itself = fit_rows(TRAFFIC, Axis(64, forced=eights), len(eights))
    assert fewest(itself, target).best == eights


@given(policies(), st.data())
def test_the_pruned_list_costs_the_run_the_same_with_no_shape_it_never_presents(
    policy: DecodePolicy, data: st.DataObject
) -> None:
    steps = data.draw(runs(policy.max_batch_size, policy.max_model_len).filter(len))
    kept = pruned(policy, StepsHistogram.of(steps))
    before, after = price_run(steps, policy), price_run(steps, kept)
    assert after.steps_per_shape == before.steps_per_shape
    assert (kept.max_batch_size, kept.max_model_len) == (policy.max_batch_size, policy.max_model_len)
    assert set(kept.shapes) <= set(policy.shapes)
    used = {shape for shape, _ in before.steps_per_shape}
    assert all(shape.width == policy.max_model_len for shape in set(kept.shapes) - used)


@settings(max_examples=50)
@given(histograms(16, 40))
def test_the_fitted_list_of_as_many_shapes_is_never_worse_in_sample(histogram: StepsHistogram) -> None:
    baseline = pruned(DecodeBuckets(16, 40, width_multiple=8), histogram)
    fitted = fit_staircase(histogram, Axis(16), Axis(40, 8), baseline.count).at(baseline.count)
    assert fitted.cost <= histogram.presented(baseline).priced(price_cells)


def test_the_default_ladder_cut_down_to_what_it_used() -> None:
    histogram = StepsHistogram.counted(np.array([3, 3, 5]), np.array([100, 300, 130]), np.array([1, 1, 1]))
    kept = pruned(DecodeBuckets(8, 500), histogram)
    assert kept == StaircaseBuckets(8, 500, {4: (128, 384, 500), 8: (256, 500)})
