"""The product is a search: never worse than where it starts, never better than the staircase, and here never beaten."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from fitting_cases import EXACT, SECONDS, Ladder, allowed_ladders, axes, entries, histograms, price_at
from hypothesis import given, settings
from hypothesis import strategies as st
from shape_strategies import MAX_ROWS, MAX_WIDTH, runs

from nanoserve import DecodeBuckets, Steps, price_run
from nanoserve.fitting import (
    Axis,
    Price,
    StepsHistogram,
    fit_product,
    fit_rows,
    fit_staircase,
    fit_widths,
    price_cells,
)
from nanoserve.fitting.product import _Search


def best_of_all(histogram: StepsHistogram, rows: Axis, widths: Axis, budget: int, price: Price) -> Any:
    """The least cost of any product of at most `budget` shapes."""
    prices = {(r, w): price_at(price, r, w) for r in rows.allowed.tolist() for w in widths.allowed.tolist()}

    def cost(row_ladder: Ladder, width_ladder: Ladder) -> Any:
        buckets = DecodeBuckets(rows.maximum, widths.maximum, rows=row_ladder, widths=width_ladder)
        return sum(n * prices[buckets.row_bucket(r), buckets.width_bucket(w)] for r, w, n in entries(histogram))

    width_ladders = list(allowed_ladders(widths))
    return min(cost(r, w) for r in allowed_ladders(rows) for w in width_ladders if len(r) * len(w) <= budget)


@settings(max_examples=100)
@given(histograms(5, 6), axes(5), axes(6), st.integers(1, 12), st.sampled_from(EXACT))
def test_no_product_is_better_in_small_cases_and_no_staircase_is_worse(
    histogram: StepsHistogram, rows: Axis, widths: Axis, extra: int, price: Price
) -> None:
    budget = rows.fewest * widths.fewest + extra
    bound = fit_staircase(histogram, rows, widths, budget, price).at(budget).cost
    fitted = fit_product(histogram, rows, widths, budget, price, bound=bound)
    assert fitted.cost == best_of_all(histogram, rows, widths, budget, price)
    assert fitted.gap is not None
    assert fitted.gap == fitted.cost / bound - 1 >= 0
    assert fitted.graphs == fitted.best.count == fitted.split[0] * fitted.split[1] <= budget
    assert fitted.best.rows in set(allowed_ladders(rows))
    assert fitted.best.widths in set(allowed_ladders(widths))


def test_a_product_that_only_the_widths_suiting_every_row_lead_to() -> None:
    """From every width, and from the largest alone, alternation ends at 596 cells for every split."""
    sizes = {(1, 2): 16, (2, 1): 14, (3, 1): 1, (3, 4): 14, (4, 1): 1, (4, 4): 13, (7, 1): 2}
    rows, width = np.array(list(sizes)).T
    histogram = StepsHistogram.counted(rows, width, np.array(list(sizes.values())))
    assert fit_product(histogram, Axis(7), Axis(4), 7).cost == 574


@settings(max_examples=100)
@given(histograms(7, 7), st.integers(1, 4), st.integers(1, 4))
def test_from_a_poor_start_it_goes_on_until_neither_ladder_can_be_improved(
    histogram: StepsHistogram, most_rows: int, most_widths: int
) -> None:
    search = _Search.of(histogram, Axis(7), Axis(7), most_rows * most_widths, price_cells)
    end = search.descend((most_rows, most_widths), (7,))
    assert search.rows_for(end.widths).at(most_rows).cost == end.cost
    assert search.widths_for(end.rows).at(most_widths).cost == end.cost


@settings(max_examples=50)
@given(histograms(12, 20, floats=True), st.integers(1, 16), st.sampled_from((*SECONDS, *EXACT)))
def test_neither_ladder_can_be_improved_alone(histogram: StepsHistogram, budget: int, price: Price) -> None:
    rows, widths = Axis(12), Axis(20, 2)
    fitted = fit_product(histogram, rows, widths, budget, price)
    n, m = fitted.split
    for most in range(1, budget // m + 1):
        alone = fit_rows(histogram.bucket_widths(fitted.best.widths), rows, most, price).at(most)
        assert alone.cost >= fitted.cost * (1 - 1e-12)
    for most in range(1, budget // n + 1):
        alone = fit_widths(histogram.bucket_rows(fitted.best.rows), widths, most, price).at(most)
        assert alone.cost >= fitted.cost * (1 - 1e-12)


@settings(max_examples=50)
@given(runs(MAX_ROWS, MAX_WIDTH).filter(len), axes(MAX_ROWS), axes(MAX_WIDTH))
def test_its_cost_is_the_price_of_the_run_in_padded_cells(steps: Steps, rows: Axis, widths: Axis) -> None:
    fitted = fit_product(StepsHistogram.of(steps), rows, widths, rows.fewest * widths.fewest + 12)
    assert price_run(steps, fitted.best).padded_cells == fitted.cost


def test_the_split_is_chosen_by_the_traffic() -> None:
    by_rows = StepsHistogram.counted(np.arange(1, 7), np.full(6, 60), np.full(6, 10))
    by_width = StepsHistogram.counted(np.full(6, 6), np.arange(10, 70, 10), np.full(6, 10))
    assert fit_product(by_rows, Axis(6), Axis(60), 6).split == (6, 1)
    assert fit_product(by_width, Axis(6), Axis(60), 6).split == (1, 6)


def test_a_budget_that_saves_nothing_is_left() -> None:
    fitted = fit_product(StepsHistogram.counted(np.array([4]), np.array([9]), np.array([3])), Axis(8), Axis(10), 30)
    assert fitted.best == DecodeBuckets(8, 10, rows=(4, 8), widths=(9, 10))
    assert (fitted.cost, fitted.graphs, fitted.bound, fitted.gap) == (108, 4, None, None)


def test_256_rows_and_128_widths_under_36_shapes_take_less_than_10_s() -> None:
    random = np.random.default_rng(7)
    rows, width = random.integers(1, 257, 40_000), random.integers(1, 8193, 40_000)
    histogram = StepsHistogram.counted(rows, width, random.integers(1, 100, 40_000))
    start = time.process_time()
    fitted = fit_product(histogram, Axis(256), Axis(8192, 64), 36)
    assert time.process_time() - start < 10
    assert fitted.cost == histogram.presented(fitted.best).priced(price_cells)
