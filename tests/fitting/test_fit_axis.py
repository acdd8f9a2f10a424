"""The rule of an axis: which ladders it allows, how few buckets it takes, and what it says where it cannot be had."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fitting_cases import allowed_ladders, axes, histograms, pad_limit, worst_pad
from hypothesis import given
from hypothesis import strategies as st

from nanoserve.fitting import Axis, StepsHistogram, fit_product, fit_rows, fit_staircase

ONE_STEP = StepsHistogram.of_rows({1: 1})


@given(axes(10))
def test_the_fewest_buckets_are_those_of_the_shortest_ladder_allowed(axis: Axis) -> None:
    assert axis.fewest == min(len(ladder) for ladder in allowed_ladders(axis))


@given(histograms(10, 1), axes(10), st.integers(1, 10))
def test_every_fitted_ladder_keeps_its_rule(histogram: StepsHistogram, axis: Axis, most: int) -> None:
    if most < axis.fewest:
        with pytest.raises(ValueError, match=f"{most} buckets of rows are too few: .* takes at least {axis.fewest}$"):
            fit_rows(histogram, axis, most)
        return
    for point in fit_rows(histogram, axis, most).points:
        assert set(axis.forced) <= set(point.best)
        assert all(t % axis.granularity == 0 or t in axis.forced or t == axis.maximum for t in point.best)
        assert worst_pad(point.best) <= pad_limit(axis)


def test_padding_is_bounded_for_sizes_that_were_never_seen() -> None:
    histogram = StepsHistogram.of_rows({64: 1000})
    assert fit_rows(histogram, Axis(256), 9).at(9).best == (64, 256)
    bounded = fit_rows(histogram, Axis(256, max_pad=0.5), 9)
    assert bounded.fewest == 8
    assert all(worst_pad(point.best) <= pad_limit(Axis(256, max_pad=0.5)) for point in bounded.points)
    assert 64 in bounded.at(9).best


def test_a_bound_of_half_is_met_by_less_than_powers_of_two() -> None:
    # Each top is at most twice the smallest size of its bucket: 2, 6, 14, ... reach 2^(n + 1) - 2.
    assert [Axis(maximum, max_pad=0.5).fewest for maximum in (2, 3, 6, 7, 14, 254, 255, 510)] == [
        1,
        2,
        2,
        3,
        3,
        7,
        8,
        8,
    ]


@pytest.mark.parametrize(("max_pad", "fewest"), [(0.1, 9), (0.3, 5), (0.7, 2), (0.8, 2), (0.9, 1)])
def test_a_bound_is_the_decimal_it_is_written_as(max_pad: float, fewest: int) -> None:
    """In floats `1 - 7 / 10` is more than 0.3; 7 rows that run as 10 are padded by 0.3 and no more."""
    shortest = min(len(ladder) for ladder in allowed_ladders(Axis(10, max_pad=max_pad)))
    assert Axis(10, max_pad=max_pad).fewest == shortest == fewest


def test_seven_rows_may_run_as_ten_where_three_tenths_of_padding_are_allowed() -> None:
    assert Axis(10, forced=(6,), max_pad=0.3).fewest == len((1, 2, 4, 6, 10))


def test_the_maximum_is_a_bucket_off_the_granularity() -> None:
    ladder = fit_rows(StepsHistogram.of_rows({3: 5, 17: 5, 29: 1}), Axis(30, 8), 4).at(4).best
    assert ladder == (8, 24, 30)


@pytest.mark.parametrize(
    ("axis", "most", "message"),
    [
        (Axis(256), 0, "the maximum 256 takes at least 1"),
        (Axis(256, forced=(1, 2, 4)), 3, "forced members 1, 2, 4 takes at least 4"),
        (Axis(256, forced=tuple(range(1, 20))), 3, "forced members 1, 2, ... 19 takes at least 20"),
        (Axis(256, max_pad=0.5), 7, "max_pad 0.5 up to 256 takes at least 8"),
        (Axis(256, max_pad=0.5, forced=(128,)), 7, "max_pad 0.5 up to 256 takes at least 8"),
        (Axis(6, max_pad=0.5, forced=(1, 2, 3, 4)), 4, "forced members 1, 2, 3, 4 takes at least 5"),
        (Axis(6, max_pad=0.5, forced=(5,)), 2, "max_pad 0.5 up to 6 and forced members 5 takes at least 3"),
        (
            Axis(64, 8, (1, 2, 4), 0.5),
            6,
            "max_pad 0.5 up to 64 by multiples of 8 and forced members 1, 2, 4 takes at least 7",
        ),
    ],
)
def test_too_few_buckets_name_the_constraint_and_the_fewest_that_would_do(axis: Axis, most: int, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{most} buckets of rows are too few: {re.escape(message)}$"):
        fit_rows(ONE_STEP, axis, most)
    assert fit_rows(ONE_STEP, axis, axis.fewest).fewest == axis.fewest


@pytest.mark.parametrize("fit", [fit_staircase, fit_product])
def test_too_small_a_budget_names_both_axes(fit: Any) -> None:
    rows, widths = Axis(6, max_pad=0.5), Axis(9, forced=(2, 4))
    with pytest.raises(
        ValueError, match=r"^5 shapes are too few: max_pad 0\.5 up to 6 takes at least 2 row buckets, and"
    ):
        fit(ONE_STEP, rows, widths, 5)
    with pytest.raises(ValueError, match=r"forced members 2, 4 at least 3 widths in each: 6 shapes$"):
        fit(ONE_STEP, rows, widths, 5)
    fit(ONE_STEP, rows, widths, 6)


def test_a_bound_that_no_number_of_buckets_keeps_is_an_error_that_says_where() -> None:
    with pytest.raises(ValueError, match=r"max_pad 0.5 cannot be kept: 1 goes up to 8 at least, which pads 0.875"):
        fit_rows(ONE_STEP, Axis(64, 8, max_pad=0.5), 64)
    with pytest.raises(ValueError, match=r"max_pad 0.1 cannot be kept: 9 goes up to 16 at least, which pads 0.438"):
        fit_rows(ONE_STEP, Axis(64, 8, tuple(range(1, 8)), 0.1), 64)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"maximum": 0}, "maximum must be an integer of at least 1, got 0"),
        ({"maximum": 8.0}, "maximum must be an integer"),
        ({"maximum": True}, "maximum must be an integer"),
        ({"maximum": 8, "granularity": 0}, "granularity must be an integer of at least 1, got 0"),
        ({"maximum": 8, "forced": (9,)}, "forced member 9 is outside 1..8"),
        ({"maximum": 8, "forced": (0,)}, "forced member 0 is outside 1..8"),
        ({"maximum": 8, "max_pad": 1.0}, "max_pad must be at least 0 and below 1, got 1.0"),
        ({"maximum": 8, "max_pad": -0.1}, "max_pad must be at least 0 and below 1"),
        ({"maximum": 8, "max_pad": float("nan")}, "max_pad must be at least 0 and below 1"),
    ],
)
def test_a_rule_that_is_none_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Axis(**arguments)


def test_forced_members_are_a_set() -> None:
    assert Axis(8, forced=(4, 2, 4)) == Axis(8, forced=(2, 4))
