"""How long a step lasts: always as long, by the rectangle it runs as, or by a measured table of row buckets.

A step is as long as its decode makes it: what a prefill adds is not modelled.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from math import isfinite
from operator import index
from typing import Protocol, SupportsIndex

FORMS = "25 (ms a step), linear:T0,A,B (ms, ms a row, ms a cell) or table:ROWS=MS,ROWS=MS,..."


class StepTime(Protocol):
    """The length of a step, from the rectangle it runs as."""

    def ns(self, graph_rows: int, graph_cells: int) -> int:
        """Nanoseconds, at least 1; both are 0 in a step in which requests only prefill."""
        ...

    def render(self) -> str:
        """The text that `parse_step_time` reads it from."""
        ...


@dataclass(frozen=True)
class FixedStep:
    """Every step lasts `step_ns` nanoseconds: the grid of the virtual clock. ValueError below 1."""

    step_ns: int

    def __post_init__(self) -> None:
        if isinstance(self.step_ns, bool) or not isinstance(self.step_ns, SupportsIndex) or index(self.step_ns) < 1:
            raise ValueError(f"step_ns must be an integer of at least 1, got {self.step_ns!r}")

    def ns(self, graph_rows: int, graph_cells: int) -> int:
        """`step_ns`, whatever runs."""
        return self.step_ns

    def render(self) -> str:
        """Milliseconds."""
        return _ms_text(self.step_ns)


@dataclass(frozen=True)
class LinearStepTime:
    """`t0_ns + row_ns * graph_rows + cell_ns * graph_cells`, rounded to whole nanoseconds, at least 1.

    So `t0_ns` where no row decodes. ValueError where one of the three is negative or not finite.
    """

    t0_ns: float
    row_ns: float
    cell_ns: float

    def __post_init__(self) -> None:
        for name, value in (("t0_ns", self.t0_ns), ("row_ns", self.row_ns), ("cell_ns", self.cell_ns)):
            _check_time(name, value)

    def ns(self, graph_rows: int, graph_cells: int) -> int:
        """The length of a step that runs as `graph_rows` rows and `graph_cells` cells."""
        return max(1, round(self.t0_ns + self.row_ns * graph_rows + self.cell_ns * graph_cells))

    def render(self) -> str:
        """`linear:T0,A,B` in milliseconds."""
        return "linear:" + ",".join(map(_ms_text, (self.t0_ns, self.row_ns, self.cell_ns)))


@dataclass(frozen=True)
class TableStepTime:
    """Measured: a step of `rows[i]` graph rows lasts `ns[i]`, whatever its width; linear between, constant beyond.

    Rounded to whole nanoseconds, at least 1. So the first entry where no row decodes. ValueError where the columns
    differ in length or are empty, rows are not strictly ascending from at least 1, or a time is negative or not finite.
    """

    rows: tuple[int, ...]
    times_ns: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.rows or len(self.rows) != len(self.times_ns):
            raise ValueError(f"a table has one time a row bucket, got {len(self.rows)} and {len(self.times_ns)}")
        if self.rows[0] < 1:
            raise ValueError(f"a row bucket must be at least 1, got {self.rows[0]}")
        for before, after in pairwise(self.rows):
            if after <= before:
                raise ValueError(f"the table's rows must be strictly ascending: {after} comes after {before}")
        for rows, value in zip(self.rows, self.times_ns, strict=True):
            _check_time(f"the time of {rows} rows", value)

    def ns(self, graph_rows: int, graph_cells: int) -> int:
        """The length of a step that runs as `graph_rows` rows."""
        at = bisect_left(self.rows, graph_rows)
        if at in (0, len(self.rows)):
            return max(1, round(self.times_ns[0 if at == 0 else -1]))
        (below, above), (low, high) = self.rows[at - 1 : at + 1], self.times_ns[at - 1 : at + 1]
        return max(1, round(low + (high - low) * (graph_rows - below) / (above - below)))

    def render(self) -> str:
        """`table:ROWS=MS,ROWS=MS,...`."""
        entries = zip(self.rows, self.times_ns, strict=True)
        return "table:" + ",".join(f"{rows}={_ms_text(value)}" for rows, value in entries)


def parse_step_time(text: str) -> FixedStep | LinearStepTime | TableStepTime:
    """Reads `25`, `linear:T0,A,B` or `table:ROWS=MS,...`, all in ms; ValueError that gives the reason and the forms."""
    form, colon, fields = text.partition(":")
    try:
        if not colon:
            return FixedStep(_whole_ns(text))
        if form == "linear":
            return _linear(fields.split(","))
        if form == "table":
            return _table(fields.split(","))
        raise ValueError(f"no model is called {form!r}")
    except ValueError as error:
        raise ValueError(f"step time {text!r}: {error}; give {FORMS}") from None


def _linear(fields: list[str]) -> LinearStepTime:
    if len(fields) != 3:
        raise ValueError(f"linear takes three numbers, got {len(fields)}")
    t0, row, cell = (float(_ns(field)) for field in fields)
    return LinearStepTime(t0, row, cell)


def _table(fields: list[str]) -> TableStepTime:
    rows, times = [], []
    for field in fields:
        bucket, _, ms = field.partition("=")
        if not bucket.strip().isdecimal():
            raise ValueError(f"{bucket.strip()!r} is no number of rows")
        rows.append(int(bucket))
        times.append(float(_ns(ms)))
    return TableStepTime(tuple(rows), tuple(times))


def _ns(ms: str) -> Decimal:
    """Milliseconds as written, in nanoseconds: decimal, so that a text is read and given back without a rounding."""
    try:
        value = Decimal(ms).scaleb(6)
    except ArithmeticError:
        raise ValueError(f"{ms.strip()!r} is no number of milliseconds") from None
    if not value.is_finite() or value.adjusted() > 18:
        raise ValueError(f"{ms.strip()} ms is no length of a step")
    return value


def _whole_ns(ms: str) -> int:
    value = _ns(ms)
    if value != int(value):
        raise ValueError(f"{ms.strip()} ms is no whole number of nanoseconds")
    return int(value)


def _ms_text(ns: float) -> str:
    return f"{Decimal(str(ns)).scaleb(-6).normalize():f}"


def _check_time(name: str, ns: float) -> None:
    if not (isfinite(ns) and ns >= 0):
        raise ValueError(f"{name} must be a finite number of nanoseconds, 0 or more, got {ns!r}")
