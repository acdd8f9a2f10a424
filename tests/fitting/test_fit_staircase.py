"""The best staircase is the best of all staircases, and costs what a run under it costs."""

from __future__ import annotations

import time
import tracemalloc
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from fitting_cases import EXACT, SECONDS, AllStaircases, Ladder, axes, histograms
from hypothesis import given, settings
from hypothesis import strategies as st
from shape_strategies import MAX_ROWS, MAX_WIDTH, runs

from nanoserve import DecodeBuckets, StaircaseBuckets, Steps, price_run
from nanoserve.fitting import Axis, Price, StepsHistogram, fit_rows, fit_staircase, price_cells, price_rows


def preference(cost: Any, shapes: int, ladders: dict[int, Ladder]) -> tuple[Any, ...]:
    """What `fit_staircase` promises of equals: the least of these."""
    top_down = list(ladders.items())[::-1]
    below = [top for top, _ in top_down[1:]] + [0]
    steps = [(len(widths), previous) for (_, widths), previous in zip(top_down, below, strict=True)]
    return cost, shapes, steps, [widths[::-1] for _, widths in top_down]


@settings(max_examples=100)
@given(histograms(4, 4), axes(4), axes(4), st.sampled_from(EXACT))
def test_it_is_the_best_of_all_staircases_to_the_last_cell(
    histogram: StepsHistogram, rows: Axis, widths: Axis, price: Price
) -> None:
    every = [(preference(*each), each[2]) for each in AllStaircases(histogram, price, rows, widths)]
    least = min(key[1] for key, _ in every)
    budget = max(least, 9)
    curve = fit_staircase(histogram, rows, widths, budget, price)
    assert curve.fewest == least == rows.fewest * widths.fewest
    assert curve.most == budget
    for shapes in range(least, budget + 1):
        fitted = curve.at(shapes)
        key, ladders = min((each for each in every if each[0][1] <= shapes), key=lambda each: each[0])
        assert (fitted.cost, fitted.graphs) == key[:2]
        assert fitted.best == StaircaseBuckets(rows.maximum, widths.maximum, ladders)
        assert isinstance(fitted.cost, int)


@settings(max_examples=50)
@given(histograms(4, 5, floats=True), axes(4), axes(5), st.sampled_from((*SECONDS, *EXACT)))
def test_seconds_and_shares_are_best_of_all_up_to_rounding(
    histogram: StepsHistogram, rows: Axis, widths: Axis, price: Price
) -> None:
    every = [(cost, shapes) for cost, shapes, _ in AllStaircases(histogram, price, rows, widths)]
    least = rows.fewest * widths.fewest
    curve = fit_staircase(histogram, rows, widths, max(least, 7), price)
    for shapes in range(least, curve.most + 1):
        fitted = curve.at(shapes)
        assert fitted.cost == pytest.approx(min(cost for cost, count in every if count <= shapes), rel=1e-12)
        assert histogram.presented(fitted.best).priced(price) == pytest.approx(fitted.cost, rel=1e-12)


@settings(max_examples=50)
@given(runs(MAX_ROWS, MAX_WIDTH).filter(len), axes(MAX_ROWS), axes(MAX_WIDTH))
def test_its_cost_is_the_price_of_the_run_in_padded_cells(steps: Steps, rows: Axis, widths: Axis) -> None:
    budget = rows.fewest * widths.fewest + 12
    for point in fit_staircase(StepsHistogram.of(steps), rows, widths, budget).points:
        cost = price_run(steps, point.best)
        assert cost.padded_cells == point.cost
        assert cost.shapes_available == point.graphs <= budget


@settings(max_examples=50)
@given(histograms(20, 30), st.sampled_from((*SECONDS, *EXACT)))
def test_more_shapes_never_cost_more_nor_help_beyond_one_a_size(histogram: StepsHistogram, price: Price) -> None:
    curve = fit_staircase(histogram, Axis(20), Axis(30), 40, price)
    costs = [point.cost for point in curve.points]
    assert all(after <= before for before, after in pairwise(costs))
    # Each size a shape, each row bucket the maximum width, and the maximum rows: no step is padded.
    enough = len(histogram) + np.unique(histogram.rows).size + 1
    assert curve.at(min(40, enough)).cost >= histogram.priced(price) * (1 - 1e-12)
    if enough <= 40:
        assert curve.at(enough).cost == pytest.approx(histogram.priced(price), rel=1e-12)


@given(histograms(12, 1), st.integers(1, 8))
def test_where_only_rows_are_known_it_is_the_row_ladder(histogram: StepsHistogram, budget: int) -> None:
    staircase = fit_staircase(histogram, Axis(12), Axis(1), budget).at(budget)
    ladder = fit_rows(histogram, Axis(12), budget).at(budget)
    assert (staircase.best.rows, staircase.cost) == (ladder.best, ladder.cost)


def test_widths_are_not_bought_where_only_rows_are_paid() -> None:
    histogram = StepsHistogram.counted(np.array([2, 2, 5]), np.array([3, 7, 2]), np.array([1, 1, 1]))
    assert fit_staircase(histogram, Axis(8), Axis(9), 9, price_rows).at(9).best.ladders == (
        (2, (9,)),
        (5, (9,)),
        (8, (9,)),
    )


def test_the_shapes_go_where_the_traffic_is() -> None:
    """Three lengths at 2 rows, one at 8: a product of as many shapes pays for each length in each row bucket."""
    histogram = StepsHistogram.counted(
        np.array([2, 2, 2, 8]), np.array([100, 200, 300, 400]), np.array([50, 50, 50, 10])
    )
    fitted = fit_staircase(histogram, Axis(8), Axis(400), 5).at(5)
    assert fitted.best == StaircaseBuckets(8, 400, {2: (100, 200, 300, 400), 8: (400,)})
    assert fitted.cost == histogram.priced(price_cells) == 92_000
    product = DecodeBuckets(8, 400, rows=(2, 8), widths=(200, 400))
    assert histogram.presented(product).priced(price_cells) == 112_000


def test_a_step_beyond_a_maximum_is_refused() -> None:
    histogram = StepsHistogram.counted(np.array([3]), np.array([10]), np.array([1]))
    with pytest.raises(ValueError, match="steps of rows 3, beyond the maximum 2"):
        fit_staircase(histogram, Axis(2), Axis(10), 4)
    with pytest.raises(ValueError, match="steps of width 10, beyond the maximum 9"):
        fit_staircase(histogram, Axis(3), Axis(9), 4)


def test_a_price_that_falls_or_overflows_is_refused() -> None:
    histogram = StepsHistogram.counted(np.array([2, 3]), np.array([4, 5]), np.array([1 << 50, 1]))
    with pytest.raises(ValueError, match="falls as the shape grows"):
        fit_staircase(histogram, Axis(3), Axis(5), 4, lambda rows, width: 20 - width + 0 * rows)
    with pytest.raises(ValueError, match="falls as the shape grows"):
        fit_staircase(histogram, Axis(3), Axis(5), 4, lambda rows, width: 20 - rows + 0 * width)
    with pytest.raises(ValueError, match="do not add up in 64 bits"):
        fit_staircase(histogram, Axis(1 << 6), Axis(1 << 6), 4)


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["counts", "shares"])
def test_256_rows_and_64_widths_under_36_shapes_take_less_than_20_s_and_256_mib(weights: str) -> None:
    random = np.random.default_rng(7)
    rows, width = random.integers(1, 257, 40_000), random.integers(1, 8193, 40_000)
    histogram = StepsHistogram.counted(rows, width, random.integers(1, 100, 40_000))
    if weights == "shares":
        histogram = histogram.normalised()
    tracemalloc.start()
    start = time.process_time()
    curve = fit_staircase(histogram, Axis(256), Axis(8192, 128), 36)
    seconds = time.process_time() - start
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seconds < 20
    assert peak < 256 << 20
    assert curve.most == curve.at(36).graphs == 36
