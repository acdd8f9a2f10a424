"""Two results files of the same points, count by count: what changed, worst first. Times are never compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isinf
from pathlib import Path
from typing import Any

from nanoserve_cli.columns import COLUMNS, KEY_COLUMNS, Column
from nanoserve_cli.console import NotComparable
from nanoserve_cli.csv_file import OtherSchema, check_finite, measured_rows, parse_row

Key = tuple[str, ...]
COMPARED = tuple(column for column in COLUMNS if column.kind == "count")


@dataclass(frozen=True)
class Change:
    """One count of one point that is not what it was; `before` or `after` is None where it was not measured."""

    point: str
    column: Column
    before: Any
    after: Any

    @property
    def relative(self) -> float | None:
        """`after / before - 1`, infinite from 0; None of a text or of what one file lacks."""
        if isinstance(self.before, str) or isinstance(self.after, str) or None in (self.before, self.after):
            return None
        if self.before == 0:
            return inf if self.after > 0 else -inf
        return float(self.after / self.before - 1)

    @property
    def worse(self) -> float | None:
        """By how much it is worse, as a share of the old figure: negative where it is better.

        None where no change is good or bad: a count that says which run it was, a text, or what one file lacks.
        """
        if self.relative is None or not self.column.better:
            return None
        return self.relative if self.column.better == "lower" else -self.relative

    @property
    def verdict(self) -> str:
        """The change in a word or two; a text follows from the figures and has none of its own."""
        if self.column.dtype == "string":
            return ""
        if None in (self.before, self.after):
            return "only after" if self.before is None else "only before"
        if self.worse is None:
            return "another run"
        return "worse" if self.worse > 0 else "better"


@dataclass(frozen=True)
class Difference:
    """`changes` of `points` points; `counts` figures were compared, those that neither file has left out.

    The worst are first; before them is what says that the runs themselves are not the same, last are texts.
    """

    points: int
    counts: int
    changes: tuple[Change, ...]


def difference(before: Path, after: Path) -> Difference:
    """Aligns two results files by what says which run a row is, and lists every count that differs.

    A point that a file has more than once is its last row. Raises NotComparable where schema, trace or points differ,
    RecordsError where a file cannot be read.
    """
    old, new = _by_key(before), _by_key(after)
    _check_same_points(before, old, new)
    _check_same_points(after, new, old)
    counts, changes = 0, []
    for key, row in old.items():
        _check_same_trace(row, new[key])
        was, now = parse_row(row, before), parse_row(new[key], after)
        check_finite(was, before)
        check_finite(now, after)
        for column in COMPARED:
            counts += (was[column.name], now[column.name]) != (None, None)
            if was[column.name] != now[column.name]:
                changes.append(Change(describe(row), column, was[column.name], now[column.name]))
    return Difference(len(old), counts, tuple(sorted(changes, key=_order)))


def _order(change: Change) -> float:
    if change.column.dtype == "string":
        return inf
    return -inf if change.worse is None else -change.worse


def describe(row: dict[str, str]) -> str:
    """The point a row is of, in a line."""
    ladders = f"{row['rows_ladder']} {row['width_ladder']}".strip() or row["policy"]
    form = " as it is" if row["completed"] == "false" else ""
    return f"{row['workload']} {row['max_batch_size']}x{row['max_model_len']} {ladders}{form}"


def _by_key(path: Path) -> dict[Key, dict[str, str]]:
    try:
        rows, _ = measured_rows(path)
    except OtherSchema as error:
        raise NotComparable(str(error)) from None
    return {tuple(row[name] for name in KEY_COLUMNS): row for row in rows}


def _check_same_points(path: Path, mine: dict[Key, dict[str, str]], theirs: dict[Key, dict[str, str]]) -> None:
    only = [key for key in mine if key not in theirs]
    if only:
        other = min((_differing(only[0], key) for key in theirs), key=len)
        raise NotComparable(
            f"{len(only)} of {len(mine)} points are in {path} alone: {describe(mine[only[0]])} (the nearest of the "
            f"other file differs in {', '.join(other)})"
        )


def _differing(one: Key, other: Key) -> list[str]:
    return [name for name, a, b in zip(KEY_COLUMNS, one, other, strict=True) if a != b]


def _check_same_trace(before: dict[str, str], after: dict[str, str]) -> None:
    if before["trace_sha256"] != after["trace_sha256"]:
        raise NotComparable(
            f"{describe(before)} is of another trace: sha256 {before['trace_sha256'][:12] or 'none'} and "
            f"{after['trace_sha256'][:12] or 'none'}"
        )


def cells(change: Change) -> Sequence[str]:
    """A change as text: point, count, before, after, by how much, and whether that is worse."""
    relative = change.relative
    share = "" if relative is None else "from 0" if isinf(relative) else f"{relative:+.2%}"
    before, after = _figure(change.before), _figure(change.after)
    if before == after:
        before, after = repr(change.before), repr(change.after)
    return change.point, change.column.name, before, after, share, change.verdict


def _figure(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
