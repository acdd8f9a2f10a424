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


SILENT = ("-", "0")
"""A figure that was not measured, and no step off any list."""


@dataclass(frozen=True)
class Line:
    """One point of a sweep and its row."""

    point: Point
    row: dict[str, Any]


@dataclass(frozen=True)
class Budget:
    """What a capture list may cost: graphs, and MiB of their pool where that was predicted."""

    graphs: int
    mib: float | None = None

    def verdict(self, row: dict[str, Any]) -> str:
        """`within`, or which figure is over."""
        if row["shapes_available"] > self.graphs:
            return "OVER"
        if self.mib is not None and row["capture_mib"] is not None and row["capture_mib"] > self.mib:
            return "OVER MiB"
        return "within"

    def render(self, lines: Sequence[Line]) -> str:
        """The budget and how many policies are over it, in a sentence."""
        over = sum(self.verdict(line.row) != "within" for line in lines)
        limit = f"{self.graphs:,} graphs" + ("" if self.mib is None else f", {self.mib:,g} MiB")
        return f"capture budget: {limit}; {over} of {len(lines)} policies over it"


def tables(lines: Sequence[Line], budget: Budget) -> Iterator[Table]:
    """A table for each traffic and pair of limits, a line a policy; over budget in words and in red."""
    for _, group in groupby(lines, key=lambda line: (line.point.traffic, _limits(line))):
        some = list(group)
        verdicts = [budget.verdict(line.row) for line in some]
        columns, rows = _told(COLUMNS, [cells(line, verdict) for line, verdict in zip(some, verdicts, strict=True)])
        table = simple_table(heading(some[0]), columns, rows, caption=f"{budget.render(some)}{_remarks(some)}")
        table.padding = (0, 1, 0, 0)
        table.columns[1].justify = table.columns[-1].justify = "left"
        for row, verdict in zip(table.rows, verdicts, strict=True):
            row.style = None if verdict == "within" else "red"
        yield table


def markdown(lines: Sequence[Line], budget: Budget) -> str:
    """The same tables in Markdown."""
    parts = []
    for _, group in groupby(lines, key=lambda line: (line.point.traffic, _limits(line))):
        some = list(group)
        columns, body = _told(COLUMNS, [cells(line, budget.verdict(line.row)) for line in some])
        header = [column.replace("\n", " ") for column in columns]
        rule = ["---", "---", *["---:"] * (len(columns) - 3), "---"]
        rows = ["| " + " | ".join(row) + " |" for row in (header, rule, *body)]
        parts.append("\n".join([f"**{heading(some[0])}**", "", *rows, "", budget.render(some) + _remarks(some)]))
    return "\n\n".join(parts) + "\n"


def _told(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows without the columns in which every row says that there is nothing to say."""
    kept = [i for i in range(len(columns)) if any(row[i] not in SILENT for row in rows)]
    return [columns[i] for i in kept], [[row[i] for i in kept] for row in rows]


def heading(line: Line) -> str:
    """The run that a table is about, in a line."""
    rows, width = _limits(line)
    row = line.row
    return (
        f"{row['workload']}, at most {rows:,} rows x {width:,} tokens: "
        f"{row['steps']:,} steps, {row['open_shapes']:,} open shapes"
    )


def cells(line: Line, verdict: str) -> tuple[str, ...]:
    """One policy in the order of `COLUMNS`; a star marks a list completed with its maxima."""
    row, policy = line.row, line.point.policy()
    row_buckets = len({shape.rows for shape in policy.shapes})
    return (
        line.point.rows_ladder + ("*" if _is_completed(line) else ""),
        line.point.width_ladder,
        f"{row_buckets} x {policy.count // row_buckets} = {policy.count:,}",
        f"{row['shapes_used']:,}",
        f"{row['waste']:.1%}",
        f"{row['total_waste']:.1%}",
        f"{row['off_list_steps']:,}",
        "-" if row["compiles_bucketed"] is None else f"{row['compiles_bucketed']:,}",
        "-" if row["capture_mib"] is None else f"{row['capture_mib']:,.0f}",
        verdict,
    )


def document(lines: Sequence[Line], budget: Budget) -> dict[str, Any]:
    """The same as one JSON document: the budget, and every row with its verdict."""
    return {
        "schema_version": SCHEMA_VERSION,
        "budget": {"graphs": budget.graphs, "mib": budget.mib},
        "points": [line.row | {"budget": budget.verdict(line.row)} for line in lines],
    }


def times_table(lines: Sequence[Line]) -> Table:
    """The step times of points that were run."""
    rows = [
        (
            line.row["workload"],
            f"{line.point.max_batch_size} x {line.point.max_model_len}",
            line.point.rows_ladder,
            line.point.width_ladder,
            *(_figure(line.row[f"step_ms_{mode}"], ".2f") for mode in ("open", "bucketed")),
            _figure(line.row["step_ratio"], ".2f"),
            f"{_figure(line.row['step_ratio_low'], '.2f')}..{_figure(line.row['step_ratio_high'], '.2f')}",
            _figure(line.row["capture_s_measured"], ".1f"),
        )
        for line in lines
    ]
    return simple_table(
        "Decode steps (this machine, this run: compare within a line)",
        ("traffic", "limits", "rows", "widths", "open\nms", "bucketed\nms", "ratio", "quartiles", "capture\ns"),
        rows,
        caption="medians; ratio = bucketed / open",
    )


def _is_completed(line: Line) -> bool:
    """Whether the point's list lacked its maxima and was given them."""
    from nanoserve.ladders import capture_list

    point = line.point
    own = capture_list(point.rows_ladder, point.width_ladder, point.max_batch_size, point.max_model_len)
    return point.completed and own.count != point.policy().count


def _remarks(lines: Sequence[Line]) -> str:
    return (
        "\n* completed with its maxima; without, steps off the list run eager" if any(map(_is_completed, lines)) else ""
    )


def _limits(line: Line) -> tuple[int, int]:
    return line.point.max_batch_size, line.point.max_model_len


def _figure(value: float | None, spec: str) -> str:
    return "-" if value is None else format(value, spec)
