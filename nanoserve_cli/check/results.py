"""A results file as what a check reads: the rows of a workload's points, or a baseline's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nanoserve_cli.check.workloads import Point, Sample
from nanoserve_cli.columns import COLUMNS, KEY_COLUMNS
from nanoserve_cli.console import NotComparable
from nanoserve_cli.csv_file import OtherSchema, RecordsError, parse_row, read_rows, write_rows
from nanoserve_cli.difference import describe

WHERE_IT_RAN = ("model", "runner", "dtype")
"""Columns of a key that are empty where nothing ran, as without torch: the counts are the same either way."""


class ResultsFile:
    """The whole rows of a results file. Raises RecordsError where it cannot be read, NotComparable for another schema.

    A row that stands more than once, as of two runs, must say the same; where it does not there is no telling which.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.replaced = 0
        try:
            self.rows, self._cut = read_rows(path)
        except OtherSchema as error:
            raise NotComparable(str(error)) from None

    def has(self, point: Point) -> bool:
        """Whether a workload's point is among the rows."""
        return bool(self._rows_of(point))

    def sample(self, point: Point) -> Sample:
        """The row that a workload's point is. Without figures, and with the reason, where it is absent or no row."""
        found = self._rows_of(point)
        if not found:
            cut = f" (rows cut short in it: {self._cut})" if self._cut else ""
            return Sample(point.label, {}, stopped=f"{self.path} has no such row{cut}")
        if problem := _disagreement(found):
            return Sample(point.label, {}, stopped=f"{self.path} has this row {len(found)} times, with other {problem}")
        try:
            return Sample(point.label, parse_row(found[-1], self.path), absent={"": f"{self.path} has none"})
        except RecordsError as error:
            return Sample(point.label, {}, stopped=str(error))

    def _rows_of(self, point: Point) -> list[dict[str, str]]:
        wanted = {name: _text(value) for name, value in point.columns.items()}
        return [row for row in self.rows if all(row[name] == text for name, text in wanted.items())]

    def same_point(self, row: Mapping[str, Any]) -> dict[str, Any] | None:
        """The row of the same point, with its types, or None. Raises RecordsError, NotComparable where several are."""
        found = [index for index in range(len(self.rows)) if self._is_same(index, row, but=WHERE_IT_RAN)]
        exact = [index for index in found if self._is_same(index, row)]
        keys = {tuple(self.rows[index][name] for name in KEY_COLUMNS) for index in found}
        if not exact and len(keys) > 1:
            raise NotComparable(f"{self.path} has {describe(self.rows[found[0]])} more than once, by model or runner")
        return parse_row(self.rows[(exact or found)[-1]], self.path) if found else None

    def replace(self, row: Mapping[str, Any]) -> None:
        """Puts `row` where the same point stands. Raises ValueError where none is, of the same model and runner too."""
        found = [index for index in range(len(self.rows)) if self._is_same(index, row)]
        if not found:
            raise ValueError(f"{self.path}: was made with another model or runner: make it again with its own command")
        self.replaced += 1
        self.rows[found[-1]] = {name: _text(row.get(name)) for name in self.rows[found[-1]]}

    def write(self) -> None:
        """The file with what was replaced. Raises RecordsError."""
        write_rows(self.path, self.rows)

    def _is_same(self, index: int, row: Mapping[str, Any], but: tuple[str, ...] = ()) -> bool:
        mine = self.rows[index]
        pairs = ((name, mine[name], _text(row.get(name))) for name in KEY_COLUMNS)
        return all(a == b or (name in but and "" in (a, b)) for name, a, b in pairs)


def _disagreement(rows: Sequence[Mapping[str, str]]) -> str | None:
    """The first count in which rows of one point differ; None where they are the same."""
    counts = (column.name for column in COLUMNS if column.kind == "count")
    return next((name for name in counts if len({row[name] for row in rows}) > 1), None)


def _text(value: Any) -> str:
    """A value as its cell in a results file."""
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
