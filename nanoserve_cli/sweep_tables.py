"""A sweep as tables: the capture budget as row buckets x width buckets, and what each policy costs beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from nanoserve_cli.columns import SCHEMA_VERSION
from nanoserve_cli.grid import Point
from nanoserve_cli.tables import simple_table

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = (
    "rows",
    "widths",
    "row x width\n= shapes",
    "used",
    "waste",
    "total\nwaste",
    "off\nlist",
    "compiles",
    "MiB",
    "budget",
)
TIME_COLUMNS = (
    "traffic",
    "limits",
    "rows",
    "widths",
    "open\nms",
    "bucketed\nms",
    "ratio",
    "quartiles",
    "capture\ns",
)
WORDS = {"rows", "widths", "budget", "traffic", "limits"}
"""Columns that are no figures."""
SILENT = {"off\nlist": "0", "compiles": "-", "MiB": "-", "capture\ns": "-"}
"""Columns that are left out where every row says this: not measured, or no step off any list."""


@dataclass(frozen=True)
class Line:
    """One point of a sweep and its row."""

    point: Point
    row: dict[str, Any]

    @property
    def limits(self) -> str:
        """The most rows and the widest step."""
        return f"{self.point.max_batch_size:,} x {self.point.max_model_len:,}"

    @property
    def ladder(self) -> str:
        """The row rule, and whether its list is without its maxima."""
        return self.point.rows_ladder + ("" if self.point.completed else " as it is")


@dataclass(frozen=True)
class Budget:
    """What a capture list may cost: graphs, and MiB of their pool where that was predicted."""

    graphs: int
    mib: float | None = None

    def verdict(self, row: dict[str, Any]) -> str:
        """`within`, or what is over: `OVER` the graphs, `OVER MiB`, or `OVER both`."""
        graphs = row["shapes_available"] > self.graphs
        mib = self.mib is not None and row["capture_mib"] is not None and row["capture_mib"] > self.mib
        return "OVER both" if graphs and mib else "OVER" if graphs else "OVER MiB" if mib else "within"

    def render(self, lines: Sequence[Line]) -> str:
        """The budget and how many policies are over it, in a sentence."""
        over = sum(self.verdict(line.row) != "within" for line in lines)
        limit = f"{self.graphs:,} graphs" + ("" if self.mib is None else f", {self.mib:,g} MiB")
        return f"capture budget: {limit}; {over} of {len(lines)} policies over it"


@dataclass(frozen=True)
class Sheet:
    """A table as text: `title` above, `remarks` below, and which of its rows are over budget."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    remarks: tuple[str, ...]
    over: tuple[bool, ...]

    def table(self) -> Table:
        """For a terminal; what is over budget is red."""
        table = simple_table(self.title, self.columns, self.rows, caption="\n".join(self.remarks))
        table.padding = (0, 1, 0, 0)
        for column, name in zip(table.columns, self.columns, strict=True):
            column.justify = "left" if name in WORDS else "right"
        for row, over in zip(table.rows, self.over, strict=True):
            row.style = "red" if over else None
        return table

    def markdown(self) -> str:
        """For a page."""
        header = [name.replace("\n", " ") for name in self.columns]
        rule = ["---" if name in WORDS else "---:" for name in self.columns]
        rows = ["| " + " | ".join(row) + " |" for row in (header, rule, *self.rows)]
        return "\n".join([f"**{self.title}**", "", *rows, "", "  \n".join(self.remarks), ""])


def sheets(lines: Sequence[Line], budget: Budget, *, times: bool) -> Iterator[Sheet]:
    """A table for each traffic and pair of limits, a line a policy; and the step `times` of points that were run."""
    for _, group in groupby(lines, key=lambda line: (line.point.traffic, line.limits)):
        yield _costs(tuple(group), budget)
    if times and lines:
        yield _times(lines)


def document(lines: Sequence[Line], budget: Budget) -> dict[str, Any]:
    """The same as one JSON document: the budget, and every row with its verdict."""
    return {
        "schema_version": SCHEMA_VERSION,
        "budget": {"graphs": budget.graphs, "mib": budget.mib},
        "points": [line.row | {"budget": budget.verdict(line.row)} for line in lines],
    }


def _costs(lines: Sequence[Line], budget: Budget) -> Sheet:
    point, row = lines[0].point, lines[0].row
    verdicts = [budget.verdict(line.row) for line in lines]
    remarks = [budget.render(lines)]
    if len({line.row["steps"] for line in lines}) > 1:
        remarks.append("each policy ran at its own pace: steps and waste are of its own run")
    if not all(line.point.completed for line in lines):
        remarks.append("as it is: without its maxima, as its system has it: steps off it run eager")
    limits = f"at most {point.max_batch_size:,} rows x {point.max_model_len:,} tokens"
    return _sheet(
        f"{row['workload']}, {limits}: {_range(lines, 'steps')} steps, {_range(lines, 'open_shapes')} open shapes",
        COLUMNS,
        [_cost_cells(line, verdict) for line, verdict in zip(lines, verdicts, strict=True)],
        remarks,
        [verdict != "within" for verdict in verdicts],
    )


def _range(lines: Sequence[Line], column: str) -> str:
    """A count that all rows have, or the least and the most of it."""
    least, most = (extreme(line.row[column] for line in lines) for extreme in (min, max))
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _cost_cells(line: Line, verdict: str) -> tuple[str, ...]:
    """One policy in the order of `COLUMNS`."""
    row, (rows, _) = line.row, line.point.ladders
    row_buckets = len(rows) + (line.point.completed and rows[-1] < line.point.max_batch_size)
    return (
        line.ladder,
        line.point.width_ladder,
        f"{row_buckets} x {row['shapes_available'] // row_buckets} = {row['shapes_available']:,}",
        f"{row['shapes_used']:,}",
        f"{row['waste']:.1%}",
        f"{row['total_waste']:.1%}",
        f"{row['off_list_steps']:,}",
        _figure(row["compiles_bucketed"], ","),
        _figure(row["capture_mib"], ",.0f" if (row["capture_mib"] or 0) >= 10 else ".2g"),
        verdict,
    )


def _times(lines: Sequence[Line]) -> Sheet:
    return _sheet(
        "Decode steps (this machine, this run: compare within a line)",
        TIME_COLUMNS,
        [_time_cells(line) for line in lines],
        ["medians; ratio = bucketed / open"],
        [False] * len(lines),
    )


def _time_cells(line: Line) -> tuple[str, ...]:
    row = line.row
    low, high = row["step_ratio_low"], row["step_ratio_high"]
    return (
        row["workload"],
        line.limits,
        line.ladder,
        line.point.width_ladder,
        _figure(row["step_ms_open"], ".2f"),
        _figure(row["step_ms_bucketed"], ".2f"),
        _figure(row["step_ratio"], ".2f"),
        "-" if low is None or high is None else f"{low:.2f}..{high:.2f}",
        _figure(row["capture_s_measured"], ".1f"),
    )


def _sheet(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    remarks: Sequence[str],
    over: Sequence[bool],
) -> Sheet:
    """A sheet without the columns in which every row says that there is nothing to say."""
    kept = [at for at, name in enumerate(columns) if any(row[at] != SILENT.get(name) for row in rows)]
    return Sheet(
        title,
        tuple(columns[at] for at in kept),
        tuple(tuple(row[at] for at in kept) for row in rows),
        tuple(remarks),
        tuple(over),
    )


def _figure(value: float | None, spec: str) -> str:
    return "-" if value is None else format(value, spec)
