"""What a figure is under a limit: every verdict on both sides of its boundary, exact, and failing closed."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations_with_replacement
from math import inf, nan

import pytest
from budgets import limit
from hypothesis import given
from hypothesis import strategies as st

from nanoserve_cli.check.percent import parse_percent, render_percent
from nanoserve_cli.check.verdicts import (
    STATUSES,
    Figure,
    Kind,
    Status,
    Verdict,
    exit_status,
    judge,
    rank,
    worst_first,
    written,
)

TWO = Fraction(2, 100)
LOWER, HIGHER, NEITHER = "padded_cells", "replay_share", "steps"


@pytest.mark.parametrize(
    ("metric", "kind", "bound", "measured", "status"),
    [
        (LOWER, "at_most", 1000, 1000, "pass"),
        (LOWER, "at_most", 1000, 999, "improved"),
        (LOWER, "at_most", 1000, 1001, "soft"),
        (LOWER, "at_most", 1000, 1020, "soft"),
        (LOWER, "at_most", 1000, 1021, "fail"),
        (LOWER, "at_least", 1000, 1001, "pass"),
        (LOWER, "at_least", 1000, 980, "soft"),
        (LOWER, "at_least", 1000, 979, "fail"),
        (HIGHER, "at_least", 0.5, 0.5, "pass"),
        (HIGHER, "at_least", 0.5, 0.75, "improved"),
        (HIGHER, "at_least", 0.5, 0.49, "soft"),
        (HIGHER, "at_least", 0.5, 0.25, "fail"),
        (HIGHER, "at_most", 0.5, 0.25, "pass"),
        (NEITHER, "at_most", 1000, 1, "pass"),
        (NEITHER, "at_least", 1000, 9999, "pass"),
        (LOWER, "exactly", 1000, 1000, "pass"),
        (LOWER, "exactly", 1000, 980, "soft"),
        (LOWER, "exactly", 1000, 1020, "soft"),
        (LOWER, "exactly", 1000, 979, "fail"),
        (LOWER, "exactly", 1000, 1021, "fail"),
        (LOWER, "at_most", 0, 1, "fail"),
        (LOWER, "exactly", 0, 1, "fail"),
        (LOWER, "exactly", 0, 0, "pass"),
        (LOWER, "regress", 1000, 1020, "pass"),
        (LOWER, "regress", 1000, 1021, "fail"),
        (LOWER, "regress", 1000, 1000, "pass"),
        (LOWER, "regress", 1000, 999, "improved"),
        (HIGHER, "regress", 0.5, 0.49, "pass"),
        (HIGHER, "regress", 0.5, 0.25, "fail"),
        (HIGHER, "regress", 0.5, 0.75, "improved"),
        (LOWER, "regress", 0, 1, "fail"),
        (LOWER, "reported", None, 7, "reported"),
    ],
)
def test_a_figure_on_either_side_of_its_limit_with_a_margin_of_two_percent(
    metric: str, kind: Kind, bound: Figure | None, measured: Figure, status: Status
) -> None:
    assert judge(limit(metric, kind, bound, margin=TWO), measured, bound) == status


@pytest.mark.parametrize("kind", ["at_most", "at_least", "exactly", "reported", "regress"])
@pytest.mark.parametrize("measured", [None, nan, inf, -inf])
def test_no_figure_is_missing_whatever_the_limit(kind: Kind, measured: float | None) -> None:
    assert judge(limit(LOWER, kind, 1, margin=TWO), measured, 1) == "missing"


@pytest.mark.parametrize("bound", [None, nan, inf])
def test_a_bound_that_is_none_is_not_comparable(bound: float | None) -> None:
    assert judge(limit(LOWER, "regress"), 1, bound) == "not comparable"


def test_without_a_margin_one_more_fails() -> None:
    assert judge(limit(LOWER, "at_most", 680_960), 680_961, 680_960) == "fail"


def test_a_margin_is_exact_where_floats_are_not() -> None:
    """100 * 1.1 is 110.00000000000001 in floats: one more cell than ten percent would pass."""
    assert judge(limit(LOWER, "at_most", 100, margin=Fraction(10, 100)), 110, 100) == "soft"
    assert judge(limit(LOWER, "at_most", 10**18, margin=Fraction(1, 10**18)), 10**18 + 1, 10**18) == "soft"
    assert judge(limit(LOWER, "at_most", 10**18, margin=Fraction(1, 10**18)), 10**18 + 2, 10**18) == "fail"


def test_a_share_below_its_written_limit_in_the_seventh_digit_has_not_improved() -> None:
    assert judge(limit("waste", "at_most", 0.385339), 0.38533834586466165, 0.385339) == "pass"
    assert judge(limit("waste", "at_most", 0.385340), 0.38533834586466165, 0.385340) == "improved"


counts = st.integers(0, 10**12)
shares = st.floats(0, 1, allow_nan=False)
margins = st.fractions(0, 1)


@given(st.sampled_from(["at_most", "at_least", "exactly", "regress"]), counts, counts, margins)
def test_a_soft_margin_never_makes_a_verdict_worse(kind: Kind, bound: int, measured: int, margin: Fraction) -> None:
    hard = judge(limit(LOWER, kind, bound), measured, bound)
    lenient = judge(limit(LOWER, kind, bound, margin=margin), measured, bound)
    assert lenient == hard or (hard == "fail" and lenient in {"soft", "pass"})


@given(counts, counts, margins)
def test_at_most_fails_exactly_beyond_the_margin(bound: int, measured: int, margin: Fraction) -> None:
    status = judge(limit(LOWER, "at_most", bound, margin=margin), measured, bound)
    assert (status == "fail") == (measured > bound * (1 + margin))
    assert (status in {"pass", "improved"}) == (measured <= bound)


@given(counts, counts, margins)
def test_at_least_mirrors_at_most(bound: int, measured: int, margin: Fraction) -> None:
    status = judge(limit("finished", "at_least", bound, margin=margin), measured, bound)
    assert (status == "fail") == (measured < bound * (1 - margin))
    assert (status in {"pass", "improved"}) == (measured >= bound)


@given(st.one_of(counts, shares, st.floats(1e-9, 1e9)))
def test_what_is_written_passes_and_would_be_written_again(figure: Figure) -> None:
    up, down = written(figure, up=True), written(figure, up=False)
    assert down <= figure <= up
    assert (written(up, up=True), written(down, up=False)) == (up, down)
    assert judge(limit("waste", "at_most", up), figure, up) == "pass"
    assert judge(limit(HIGHER, "at_least", down), figure, down) == "pass"


class TestWholeChecks:
    @staticmethod
    def of(status: Status, measured: Figure | None = None, bound: Figure | None = None) -> Verdict:
        return Verdict("b", "r", limit(LOWER, "at_most", 1), status, measured, bound)

    def test_one_of_each_status_comes_to(self) -> None:
        found = {status: exit_status([self.of(status)], strict=False) for status in STATUSES}
        assert found == {
            "fail": "failed",
            "missing": "failed",
            "not comparable": "not comparable",
            "soft": "passed",
            "improved": "passed",
            "reported": "passed",
            "pass": "passed",
        }

    def test_strict_fails_on_soft_and_improved_too(self) -> None:
        changed = {
            status
            for status in STATUSES
            if exit_status([self.of(status)], strict=True) != exit_status([self.of(status)], strict=False)
        }
        assert changed == {"soft", "improved"}

    def test_nothing_checked_is_no_pass(self) -> None:
        assert exit_status([], strict=False) == "failed"

    def test_the_worst_decides_and_a_failure_goes_over_what_cannot_be_compared(self) -> None:
        for one, other in combinations_with_replacement(STATUSES, 2):
            both = exit_status([self.of(one), self.of(other)], strict=False)
            each = {exit_status([self.of(status)], strict=False) for status in (one, other)}
            assert both == min(each, key=["failed", "not comparable", "passed"].index)

    def test_the_worst_is_first_and_of_one_status_the_furthest_beyond(self) -> None:
        listed = [
            self.of("pass", 1, 1),
            self.of("fail", 3, 2),
            self.of("soft", 9, 1),
            self.of("fail", 9, 2),
            self.of("missing"),
            self.of("fail", 1, 0),
        ]
        assert [(one.status, one.relative) for one in worst_first(listed)] == [
            ("fail", inf),
            ("fail", 3.5),
            ("fail", 0.5),
            ("missing", None),
            ("soft", 8.0),
            ("pass", 0.0),
        ]

    def test_of_what_passes_the_nearest_to_its_limit_is_first(self) -> None:
        near, far = self.of("pass", 9, 10), self.of("pass", 1, 10)
        assert worst_first([far, near]) == [near, far]
        least = limit(HIGHER, "at_least", 10)
        tight, loose = (Verdict("b", "r", least, "pass", measured, 10) for measured in (11, 99))
        assert rank(tight) < rank(loose)


class TestPercent:
    @pytest.mark.parametrize(
        ("text", "share"),
        [
            ("2%", Fraction(1, 50)),
            ("+1%", Fraction(1, 100)),
            ("-0.5%", Fraction(-1, 200)),
            ("0%", Fraction(0)),
            (".5%", Fraction(1, 200)),
            ("2 %", Fraction(1, 50)),
            ("0.1%", Fraction(1, 1000)),
            ("150%", Fraction(3, 2)),
        ],
    )
    def test_a_percentage_is_exact(self, text: str, share: Fraction) -> None:
        assert parse_percent(text) == share

    @pytest.mark.parametrize(
        "value", [2, 0.02, "2", "%", "", "2%%", "two%", "1e2%", "+-1%", "2% or so", None, True, "٢%"]
    )
    def test_anything_else_says_how_it_is_written(self, value: object) -> None:
        with pytest.raises(ValueError, match=r"^takes a percentage like 2%, got "):
            parse_percent(value)

    @given(st.integers(-(10**7), 10**7), st.integers(0, 4))
    def test_it_is_shown_as_it_is_read(self, digits: int, places: int) -> None:
        share = Fraction(digits, 10**places) / 100
        assert parse_percent(render_percent(share)) == share
