"""Two results files of the same points, count by count: what changed, worst first. Times are never compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanoserve_cli.columns import COLUMNS, KEY_COLUMNS, Column
from nanoserve_cli.console import NotComparable
from nanoserve_cli.csv_file import OtherSchema, RecordsError, parse_row, read_rows

Key = tuple[str, ...]
COMPARED = tuple(column for column in COLUMNS if column.kind == "count")


@dataclass(frozen=True)
class Change:
    """One count of one point that is not what it was."""

    point: str
    column: Column
    before: Any
    after: Any

    @property
    def relative(self) -> float | None:
        """`after / before - 1`; None where that is no number."""
        if isinstance(self.before, str) or isinstance(self.after, str) or None in (self.before, self.after):
            return None
        if self.before == 0:
            return float("inf") if self.after > 0 else float("-inf")
        return float(self.after / self.before - 1)

    @property
    def worse(self) -> float:
        """How much worse, as a share of the old figure: negative where it is better, infinite where one is missing."""
        if self.relative is None:
            return float("inf")
        return {"lower": self.relative, "higher": -self.relative, "": abs(self.relative)}[self.column.better]


@dataclass(frozen=True)
class Difference:
    """`changes` of `points` points, worst first; `counts` figures were compared."""

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
    changes = []
    for key, row in old.items():
        _check_same_trace(key, row, new[key])
        was, now = parse_row(row), parse_row(new[key])
        changes += [
            Change(describe(row), column, was[column.name], now[column.name])
            for column in COMPARED
            if was[column.name] != now[column.name]
        ]
    changes.sort(key=lambda change: -change.worse)
    return Difference(len(old), len(old) * len(COMPARED), tuple(changes))


def describe(row: dict[str, str]) -> str:
    """The point a row is of, in a line."""
    ladders = f"{row['rows_ladder']} {row['width_ladder']}".strip() or row["policy"]
    form = " as it is" if row["completed"] == "false" else ""
    return f"{row['workload']} {row['max_batch_size']}x{row['max_model_len']} {ladders}{form}"


def _by_key(path: Path) -> dict[Key, dict[str, str]]:
    try:
        rows, _ = read_rows(path)
    except OtherSchema as error:
        raise NotComparable(str(error)) from None
    if not rows:
        raise RecordsError(f"{path}: has a header and no whole row: nothing was measured")
    return {tuple(row[name] for name in KEY_COLUMNS): row for row in rows}


def _check_same_points(path: Path, mine: dict[Key, dict[str, str]], theirs: dict[Key, dict[str, str]]) -> None:
    only = [key for key in mine if key not in theirs]
    if only:
        raise NotComparable(f"{len(only)} of {len(mine)} points are in {path} alone: {describe(mine[only[0]])}")


def _check_same_trace(key: Key, before: dict[str, str], after: dict[str, str]) -> None:
    if before["trace_sha256"] != after["trace_sha256"]:
        raise NotComparable(
            f"{describe(before)} is of another trace: sha256 {before['trace_sha256'][:12] or 'none'} and "
            f"{after['trace_sha256'][:12] or 'none'}"
        )


def cells(change: Change) -> Sequence[str]:
    """A change as text: point, count, before, after, by how much, and whether that is worse."""
    relative = change.relative
    share = "" if relative is None else "from 0" if abs(relative) == float("inf") else f"{relative:+.2%}"
    direction = "worse" if change.worse > 0 else "better"
    return (
        change.point,
        change.column.name,
        _figure(change.before),
        _figure(change.after),
        share,
        direction if change.column.better else "another run",
    )


def _figure(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
