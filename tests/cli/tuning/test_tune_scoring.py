"""A score is what `price_run` says of the same steps: cells, shapes used, steps off the list; times and rows too."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from shape_strategies import LARGEST, MAX_ROWS, MAX_WIDTH, capture_lists, policies, runs

from nanoserve.buckets import CaptureList, DecodeBuckets, DecodePolicy, Shape
from nanoserve.fitting import StepsHistogram, price_time
from nanoserve.pricing import StepsIndex
from nanoserve.step_time import LinearStepTime
from nanoserve.steps import Steps
from nanoserve_cli.tuning.evidence import Part
from nanoserve_cli.tuning.scoring import CELLS, ROWS, Objective

MODEL = LinearStepTime(1e6, 2e4, 300.0)


def ran_as(policy: DecodePolicy | CaptureList, opened: Shape) -> Shape:
    """One step, looked up by hand."""
    if isinstance(policy, CaptureList):
        return policy.find(opened.rows, opened.width) or opened
    return policy.shape_for(opened.rows, opened.width)


def some_list() -> st.SearchStrategy[DecodePolicy | CaptureList]:
    return st.one_of(policies(LARGEST), capture_lists())


@settings(max_examples=200)
@given(some_list(), runs(MAX_ROWS, MAX_WIDTH))
def test_cells_are_priced_as_the_index_prices_them(policy: DecodePolicy | CaptureList, steps: Steps) -> None:
    assume(len(steps))
    found, cost = CELLS.scorer(Part.of(steps)).score(policy), StepsIndex(steps).price(policy)
    assert (found.cost, found.open) == (cost.padded_cells, cost.open_cells)
    assert (found.padded_cells, found.open_cells, found.live_cells) == (
        cost.padded_cells,
        cost.open_cells,
        cost.live_cells,
    )
    assert (found.available, found.used) == (cost.shapes_available, cost.shapes_used)
    assert found.off_list * cost.steps == pytest.approx(cost.off_list_steps)
    assert (found.waste, found.total_waste) == (cost.waste, cost.total_waste)


@given(some_list(), runs(MAX_ROWS, MAX_WIDTH))
def test_time_is_the_models_of_every_step_as_it_ran(policy: DecodePolicy | CaptureList, steps: Steps) -> None:
    assume(len(steps))
    found = Objective("time", price_time(MODEL)).scorer(Part.of(steps)).score(policy)
    shapes = [(opened, ran_as(policy, opened)) for opened in steps.open_shapes()]
    assert found.cost == sum(MODEL.ns(ran.rows, ran.cells) for _, ran in shapes)
    assert found.open == sum(MODEL.ns(opened.rows, opened.cells) for opened, _ in shapes)
    assert found.padded_cells == sum(ran.cells for _, ran in shapes), "total waste stays one of cells"


@given(some_list(), runs(MAX_ROWS, MAX_WIDTH))
def test_rows_are_looked_up_with_widths_forgotten(policy: DecodePolicy | CaptureList, steps: Steps) -> None:
    assume(len(steps))
    found = ROWS.scorer(Part.of(steps)).score(policy)
    rows = [opened.rows for opened in steps.open_shapes()]
    assert found.open == sum(rows)
    assert found.cost == sum(ran_as(policy, Shape(count, 1)).rows for count in rows)
    assert found.total_waste is None


def test_weights_of_seconds_are_shares() -> None:
    part = Part(StepsHistogram.of_rows({3: 1.5, 5: 0.5}), None)
    found = ROWS.scorer(part).score(DecodeBuckets(8, 1, rows=(4, 8), widths=(1,)))
    assert (found.open, found.cost) == (3 * 1.5 + 5 * 0.5, 4 * 1.5 + 8 * 0.5)
    assert found.waste == pytest.approx(0.3)


def test_a_policy_smaller_than_a_step_is_refused_and_a_list_is_not() -> None:
    part = Part(StepsHistogram.counted(np.array([2]), np.array([40]), np.array([7])), 7 * 80)
    scorer = CELLS.scorer(part)
    with pytest.raises(ValueError, match="width 40 is outside this policy"):
        scorer.score(DecodeBuckets(2, 32))
    with pytest.raises(ValueError, match="2 rows are outside this policy"):
        scorer.score(DecodeBuckets(1, 64))
    assert scorer.score(CaptureList([Shape(2, 32)])).off_list == 1.0
