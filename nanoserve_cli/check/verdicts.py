"""What a figure is under a limit. Pure comparison: no file, no YAML, no words for people."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from fractions import Fraction
from math import inf, isfinite
from typing import Literal

from nanoserve_cli.columns import Column

Figure = int | float
Kind = Literal["at_most", "at_least", "exactly", "reported", "regress"]
Status = Literal["fail", "missing", "not comparable", "soft", "improved", "reported", "pass"]

STATUSES: tuple[Status, ...] = ("fail", "missing", "not comparable", "soft", "improved", "reported", "pass")
"""Worst first."""
GOOD = frozenset({"pass", "reported"})
"""Those of which there is nothing to say."""


DIGITS = 6
"""Significant digits of a limit that is no count."""


@dataclass(frozen=True)
class Place:
    """Where a value is written: its line, counted from 1, and the characters of the file that it is."""

    line: int
    start: int
    end: int


@dataclass(frozen=True)
class Limit:
    """One limit on one metric. `value` is None for `reported` and `regress`, whose bound is a baseline's figure.

    `margin` is how far beyond the bound is only soft, as a share of it; of `regress`, how far is allowed.
    """

    column: Column
    kind: Kind
    value: Figure | None
    margin: Fraction
    place: Place

    @property
    def is_upper(self) -> bool:
        """Whether more is worse."""
        return self.kind == "at_most" or (self.kind == "regress" and self.column.better == "lower")


@dataclass(frozen=True)
class Verdict:
    """One limit held against one row. `bound` is the limit's value or the baseline's figure, None where there is none.

    `reason` says why there is no figure, nothing to compare with, or what ended the run. `acceptable` is whether
    `measured` may become the new limit: not what a run said that did not end.
    """

    budget: str
    row: str
    limit: Limit
    status: Status
    measured: Figure | None = None
    bound: Figure | None = None
    reason: str = ""
    acceptable: bool = False

    @property
    def metric(self) -> str:
        """The metric's name."""
        return self.limit.column.name

    @property
    def beyond(self) -> Figure | None:
        """`measured - bound`: positive is more."""
        return None if self.measured is None or self.bound is None else self.measured - self.bound

    @property
    def relative(self) -> float | None:
        """The same as a share of the bound; infinite from 0."""
        if self.beyond is None or self.bound is None:
            return None
        if self.bound == 0:
            return 0.0 if self.beyond == 0 else inf if self.beyond > 0 else -inf
        return float(self.beyond / self.bound)


def judge(limit: Limit, measured: Figure | None, bound: Figure | None) -> Status:
    """What `measured` is under `limit`, whose bound is `bound`. No figure, NaN and inf are `missing`."""
    if measured is None or not isfinite(measured):
        return "missing"
    if limit.kind == "reported":
        return "reported"
    if bound is None or not isfinite(bound):
        return "not comparable"
    if limit.kind == "exactly":
        return _exactly(_exact(measured), _exact(bound), limit.margin)
    sign = 1 if limit.is_upper else -1
    excess, allowed = sign * (_exact(measured) - _exact(bound)), limit.margin * _exact(bound)
    if excess > 0:
        within: Status = "pass" if limit.kind == "regress" else "soft"
        return within if excess <= allowed else "fail"
    is_better = limit.column.better == ("lower" if limit.is_upper else "higher")
    return "improved" if is_better and sign * (written(measured, up=limit.is_upper) - bound) < 0 else "pass"


def written(figure: Figure, *, up: bool) -> Figure:
    """A figure as a limit has it: counts as they are, other figures rounded to six digits, to the side that passes.

    What would not be written differently has not improved.
    """
    if isinstance(figure, int):
        return figure
    rounding = ROUND_CEILING if up else ROUND_FLOOR
    return float(Context(prec=DIGITS, rounding=rounding).create_decimal(repr(figure)))


def _exact(figure: Figure) -> Fraction:
    """The number that is written: 0.49 is 49/100, and 2 % below 0.5."""
    return Fraction(figure) if isinstance(figure, int) else Fraction(repr(figure))


def _exactly(measured: Fraction, bound: Fraction, margin: Fraction) -> Status:
    if measured == bound:
        return "pass"
    return "soft" if abs(measured - bound) <= margin * bound else "fail"


def rank(verdict: Verdict) -> tuple[int, float]:
    """Sorts the worst first: by status, then by how near to its bound or far beyond it, as a share of it."""
    relative = verdict.relative or 0.0
    if verdict.limit.kind == "exactly":
        return STATUSES.index(verdict.status), -abs(relative)
    return STATUSES.index(verdict.status), -relative if verdict.limit.is_upper else relative


def worst_first(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """By `rank`, equals in their order."""
    return sorted(verdicts, key=rank)


def exit_status(verdicts: Iterable[Verdict], *, strict: bool) -> Literal["passed", "failed", "not comparable"]:
    """What a whole check comes to. `strict` lets nothing differ from its limit: an improvement is not yet written down.

    What is not comparable counts only where nothing failed.
    """
    found = {verdict.status for verdict in verdicts}
    failing = {"fail", "missing"} | ({"soft", "improved"} if strict else set())
    if found & failing or not found:
        return "failed"
    return "not comparable" if "not comparable" in found else "passed"
