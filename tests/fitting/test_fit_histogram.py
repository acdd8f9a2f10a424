"""A histogram of steps: how it is made, mixed, bucketed and priced."""

from __future__ import annotations

import numpy as np
import pytest
from fitting_cases import EXACT, entries, histograms, price_at
from hypothesis import given
from hypothesis import strategies as st
from shape_strategies import MAX_ROWS, MAX_WIDTH, policies, runs

from nanoserve import DecodePolicy, Segment, Steps, price_run
from nanoserve.fitting import Price, StepsHistogram, price_cells, price_time
from nanoserve.step_time import LinearStepTime


def as_dict(histogram: StepsHistogram) -> dict[tuple[int, int], float]:
    return {(rows, width): weight for rows, width, weight in entries(histogram)}


def of(weights: dict[tuple[int, int], float]) -> StepsHistogram:
    rows, width = np.array(list(weights), np.int64).T
    return StepsHistogram.counted(rows, width, np.array(list(weights.values())))


@given(runs(MAX_ROWS, MAX_WIDTH).filter(len))
def test_a_run_gives_the_histogram_that_visiting_its_steps_gives(steps: Steps) -> None:
    histogram = StepsHistogram.of(steps)
    assert as_dict(histogram) == steps.histogram()
    assert histogram.total == steps.total_steps
    assert histogram.weight.dtype == np.int64


@given(policies(), st.data())
def test_presented_is_what_the_run_presents_at_the_same_price(policy: DecodePolicy, data: st.DataObject) -> None:
    steps = data.draw(runs(policy.max_batch_size, policy.max_model_len).filter(len))
    presented = StepsHistogram.of(steps).presented(policy)
    cost = price_run(steps, policy)
    assert as_dict(presented) == {(shape.rows, shape.width): count for shape, count in cost.steps_per_shape}
    assert presented.priced(price_cells) == cost.padded_cells
    assert StepsHistogram.of(steps).priced(price_cells) == cost.open_cells


@given(histograms(12, 12), st.sampled_from(EXACT))
def test_a_price_is_the_sum_over_the_sizes(histogram: StepsHistogram, price: Price) -> None:
    total = sum(weight * price_at(price, rows, width) for rows, width, weight in entries(histogram))
    assert histogram.priced(price) == total
    assert isinstance(histogram.priced(price), int)


def test_a_million_steps_are_not_visited() -> None:
    steps = 1_000_000
    histogram = StepsHistogram.of(Steps.of([Segment(0, 1, 1, steps, steps * (steps + 1) // 2)]))
    assert len(histogram) == histogram.total == steps


def test_sizes_are_sorted_and_added_up_and_empty_ones_dropped() -> None:
    rows, width, weight = np.array([2, 1, 2, 1, 3]), np.array([5, 9, 5, 2, 4]), np.array([1, 2, 3, 4, 0])
    assert entries(StepsHistogram.counted(rows, width, weight)) == [(1, 2, 4), (1, 9, 2), (2, 5, 4)]


def test_a_source_of_rows_alone_has_width_1() -> None:
    histogram = StepsHistogram.of_rows({8: 2, 3: 5})
    assert entries(histogram) == [(3, 1, 5), (8, 1, 2)]
    assert histogram.priced(price_cells) == 31
    assert StepsHistogram.of_rows({8: 2, 3: 0.5}).weight.dtype == np.float64
    assert of({(3, 7): 5, (3, 9): 1, (8, 2): 2}).rows_only() == StepsHistogram.of_rows({3: 6, 8: 2})


def test_a_mixture_adds_up_and_stays_exact_by_whole_factors() -> None:
    one, other = of({(1, 1): 3, (2, 2): 1}), of({(2, 2): 10, (4, 1): 10})
    mixed = StepsHistogram.mixture([(one, 2), (other, 1)])
    assert as_dict(mixed) == {(1, 1): 6, (2, 2): 12, (4, 1): 10}
    assert mixed.weight.dtype == np.int64
    assert as_dict(StepsHistogram.mixture([(one, 0.5), (other, 0)])) == {(1, 1): 1.5, (2, 2): 0.5}


def test_normalised_parts_count_by_their_factor_alone() -> None:
    short, long = of({(1, 1): 1}), of({(2, 2): 3, (4, 1): 1})
    mixed = StepsHistogram.mixture([(short.normalised(), 1), (long.normalised(), 3)])
    assert as_dict(mixed) == {(1, 1): 1.0, (2, 2): 2.25, (4, 1): 0.75}


def test_a_prior_adds_its_share_evenly_over_all_sizes() -> None:
    histogram = of({(2, 3): 10})
    spread = histogram.with_prior(0.5, 2, 5)
    assert as_dict(spread) == {(r, w): 0.5 + 10 * (r == 2 and w == 3) for r in (1, 2) for w in range(1, 6)}
    assert spread.total == pytest.approx(15)
    assert histogram.with_prior(0, 2, 5) == histogram


def test_a_ladder_rounds_sizes_up_and_adds_them_up() -> None:
    histogram = of({(1, 5): 1, (2, 5): 2, (3, 6): 4})
    assert as_dict(histogram.bucket_rows((2, 4))) == {(2, 5): 3, (4, 6): 4}
    assert as_dict(histogram.bucket_widths((6,))) == {(1, 6): 1, (2, 6): 2, (3, 6): 4}
    with pytest.raises(ValueError, match="steps of rows 3; the ladder ends at 2"):
        histogram.bucket_rows((1, 2))
    with pytest.raises(ValueError, match=r"ladder of width must be strictly ascending, got \(6, 6\)"):
        histogram.bucket_widths((6, 6))


def test_prices_in_seconds_are_summed_in_seconds() -> None:
    assert of({(2, 10): 3}).priced(price_time(LinearStepTime(100, 25, 12.5))) == 3 * (100 + 50 + 250)


def test_equality_is_by_value() -> None:
    assert of({(1, 2): 3}) == of({(1, 2): 3}) != of({(1, 2): 4})
    assert of({(1, 2): 3}) != "histogram"


@pytest.mark.parametrize(
    ("rows", "width", "weight", "message"),
    [
        ([1], [1, 2], [1], "1 rows, 2 widths and 1 weights differ"),
        ([], [], [], "at least one step"),
        ([1], [1], [True], "int64 or float64, got bool"),
        ([0], [1], [1], "at least one row and one column"),
        ([1], [0], [1], "at least one row and one column"),
        ([1], [1], [0], "finite and above 0"),
        ([1], [1], [-2], "finite and above 0"),
        ([1], [1], [float("nan")], "finite and above 0"),
        ([1, 1], [1, 1], [1, 1], "strictly ascending"),
        ([2, 1], [1, 1], [1, 1], "strictly ascending"),
        ([1, 1], [1, 2], [1 << 59, 1 << 59], "1.15e\\+18 steps do not add up in 64 bits"),
    ],
)
def test_what_is_no_histogram_is_refused(rows: list[int], width: list[int], weight: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StepsHistogram(np.array(rows, np.int64), np.array(width, np.int64), np.array(weight))


def test_nothing_to_fit_is_an_error() -> None:
    with pytest.raises(ValueError, match="a run of no steps has no histogram"):
        StepsHistogram.of(Steps.of([]))
    with pytest.raises(ValueError, match="at least one histogram with a factor above 0"):
        StepsHistogram.mixture([(of({(1, 1): 1}), 0)])
    with pytest.raises(ValueError, match="no factor may be below 0"):
        StepsHistogram.mixture([(of({(1, 1): 2}), 1), (of({(1, 1): 1}), -1)])
    with pytest.raises(ValueError, match="a prior is a share of at least 0, got -1"):
        of({(1, 1): 1}).with_prior(-1, 2, 2)
