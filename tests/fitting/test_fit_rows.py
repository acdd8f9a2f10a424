"""The best ladder on one axis is the best of all ladders, for every price, rule and number of buckets."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from fitting_cases import EXACT, SECONDS, Ladder, allowed_ladders, axes, histograms, total_cost
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoserve.fitting import Axis, Curve, Price, StepsHistogram, fit_rows, fit_widths, price_cells, price_rows


def best_of_all(priced: list[tuple[Any, Ladder]], most: int) -> tuple[Any, Ladder]:
    """The cheapest ladder; then the shortest; then, from the top down, the lowest."""
    cost, _, top_down = min((cost, len(ladder), ladder[::-1]) for cost, ladder in priced if len(ladder) <= most)
    return cost, top_down[::-1]


def check_is_best_of_all(curve: Curve[Ladder], priced: list[tuple[Any, Ladder]], most: int) -> None:
    assert curve.fewest == min(len(ladder) for _, ladder in priced)
    assert curve.most == most
    for buckets in range(curve.fewest, most + 1):
        fitted = curve.at(buckets)
        assert (fitted.cost, fitted.best) == best_of_all(priced, buckets)
        assert fitted.graphs == len(fitted.best)
        assert isinstance(fitted.cost, int)


@settings(max_examples=150)
@given(histograms(9, 9), axes(9), st.sampled_from(EXACT))
def test_rows_are_the_best_of_all_ladders_to_the_last_cell(histogram: StepsHistogram, axis: Axis, price: Price) -> None:
    priced = [(total_cost(histogram, price, ladder, None), ladder) for ladder in allowed_ladders(axis)]
    check_is_best_of_all(fit_rows(histogram, axis, 9, price), priced, 9)


@settings(max_examples=75)
@given(histograms(9, 9), axes(9), st.sampled_from(EXACT))
def test_widths_are_the_best_of_all_ladders_to_the_last_cell(
    histogram: StepsHistogram, axis: Axis, price: Price
) -> None:
    priced = [(total_cost(histogram, price, None, ladder), ladder) for ladder in allowed_ladders(axis)]
    check_is_best_of_all(fit_widths(histogram, axis, 9, price), priced, 9)


@settings(max_examples=75)
@given(st.booleans(), axes(8), st.sampled_from((*SECONDS, *EXACT)), st.data())
def test_seconds_and_shares_are_best_of_all_up_to_rounding(
    floats: bool, axis: Axis, price: Price, data: st.DataObject
) -> None:
    histogram = data.draw(histograms(8, 8, floats=floats))
    priced = {ladder: total_cost(histogram, price, ladder, None) for ladder in allowed_ladders(axis)}
    curve = fit_rows(histogram, axis, 8, price)
    for buckets in range(curve.fewest, 9):
        fitted = curve.at(buckets)
        least = min(cost for ladder, cost in priced.items() if len(ladder) <= buckets)
        assert fitted.cost == pytest.approx(least, rel=1e-12)
        assert priced[fitted.best] == pytest.approx(least, rel=1e-12)


@given(histograms(60, 1), st.integers(1, 60))
def test_more_buckets_never_cost_more_and_the_last_is_the_maximum(histogram: StepsHistogram, most: int) -> None:
    points = fit_rows(histogram, Axis(60), most).points
    costs = [point.cost for point in points]
    assert costs == sorted(costs, reverse=True)
    assert len(points) == most
    assert all(point.best[-1] == 60 and point.graphs <= most for point in points)


@given(histograms(30, 1))
def test_a_bucket_for_each_size_pads_nothing(histogram: StepsHistogram) -> None:
    opened = histogram.priced(price_rows)
    fitted = fit_rows(histogram, Axis(30), 30).at(30)
    assert fitted.cost == opened
    assert fitted.best == tuple(sorted({*histogram.rows.tolist(), 30}))


def test_buckets_that_save_nothing_are_left_out() -> None:
    curve = fit_rows(StepsHistogram.of_rows({3: 10, 8: 1}), Axis(8), 5)
    assert [point.best for point in curve.points] == [(8,), (3, 8), (3, 8), (3, 8), (3, 8)]
    assert [point.cost for point in curve.points] == [88, 38, 38, 38, 38]


def test_of_equal_ladders_the_one_with_the_lowest_tops_from_the_top_down() -> None:
    # (1, 3) pads the step of 2 rows, (2, 3) the step of 1 row, each by one.
    histogram = StepsHistogram.of_rows({1: 1, 2: 1, 3: 1})
    assert fit_rows(histogram, Axis(3), 2).at(2).best == (1, 3)
    assert fit_rows(histogram, Axis(3), 2).at(2).cost == 7 == total_cost(histogram, price_rows, (2, 3), None)


def test_fitted_rows_weigh_a_step_by_its_width_under_cells() -> None:
    histogram = StepsHistogram.counted(np.array([2, 5, 8]), np.array([100, 1, 1]), np.array([1, 9, 1]))
    assert fit_rows(histogram, Axis(8), 2, price_rows).at(2).best == (5, 8)
    assert fit_rows(histogram, Axis(8), 2, price_cells).at(2).best == (2, 8)


def test_a_size_beyond_the_maximum_is_refused() -> None:
    with pytest.raises(ValueError, match="steps of rows 9, beyond the maximum 8"):
        fit_rows(StepsHistogram.of_rows({9: 1}), Axis(8), 2)
    with pytest.raises(ValueError, match="steps of width 12, beyond the maximum 8"):
        fit_widths(StepsHistogram.counted(np.array([1]), np.array([12]), np.array([1])), Axis(8), 2, price_cells)


def test_a_price_that_falls_is_refused() -> None:
    with pytest.raises(ValueError, match="the price falls as rows grow to 4"):
        fit_rows(StepsHistogram.of_rows({3: 1, 4: 1}), Axis(4), 2, lambda rows, width: 10 - rows)


def test_a_price_of_nothing_is_refused() -> None:
    for price in (lambda rows, width: 0 * rows, lambda rows, width: rows * np.nan, lambda rows, width: rows * np.inf):
        with pytest.raises(ValueError, match="finite number above 0"):
            fit_rows(StepsHistogram.of_rows({3: 1}), Axis(4), 2, price)


def test_a_cost_beyond_64_bits_is_refused_and_not_wrapped() -> None:
    weight = 1 << 56
    assert fit_rows(StepsHistogram.of_rows({3: weight}), Axis(15), 1).at(1).cost == 15 * weight
    with pytest.raises(ValueError, match="do not add up in 64 bits"):
        fit_rows(StepsHistogram.of_rows({3: weight}), Axis(16), 1)


def test_a_curve_answers_only_for_what_was_solved() -> None:
    curve = fit_rows(StepsHistogram.of_rows({3: 1}), Axis(16, forced=(4,)), 5)
    assert (curve.fewest, curve.most) == (2, 5)
    for outside in (0, 1, 6):
        with pytest.raises(ValueError, match=f"{outside} graphs are outside this curve: it was solved for 2 to 5"):
            curve.at(outside)


def spent(histogram: StepsHistogram, axis: Axis, most: int, *, runs: int) -> float:
    """Process seconds of the fastest of some runs: the machine may be busy."""
    times = []
    for _ in range(runs):
        start = time.process_time()
        fit_rows(histogram, axis, most)
        times.append(time.process_time() - start)
    return min(times)


@pytest.mark.parametrize("max_pad", [None, 0.5])
def test_256_rows_in_35_buckets_take_less_than_50_ms(max_pad: float | None) -> None:
    histogram = StepsHistogram.of_rows({rows: 1 + rows * 7919 % 1009 for rows in range(1, 257)})
    assert spent(histogram, Axis(256, max_pad=max_pad), 35, runs=3) < 0.05


def test_4096_rows_in_64_buckets_take_less_than_2_s() -> None:
    histogram = StepsHistogram.of_rows({rows: 1 + rows * 7919 % 1009 for rows in range(1, 4097)})
    assert spent(histogram, Axis(4096), 64, runs=1) < 2
