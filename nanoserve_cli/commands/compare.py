"""`nanoserve compare`: two results files of the same points, count by count."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nanoserve_cli import options as opt
from nanoserve_cli.console import out, reported, show

if TYPE_CHECKING:
    from nanoserve_cli.difference import Difference

HEADER = ("point", "count", "before", "after", "change", "")


def compare(
    before: Annotated[Path, typer.Argument(help="A results CSV: a sweep's, or a bench's runs.csv.")],
    after: Annotated[Path, typer.Argument(help="Another of the same points.")],
    format: Annotated[
        Literal["table", "markdown", "json"], opt.in_panel(opt.OUTPUT, help="What stdout gets.")
    ] = "table",
) -> None:
    """Compare two results files point by point: every count that changed, worst first. Times are not compared.

    Refuses, with exit code 4, files of another trace, schema or set of points.
    """
    with reported():
        from nanoserve_cli.difference import cells, difference
        from nanoserve_cli.tables import simple_table

        found = difference(before, after)
        summary = f"{len(found.changes)} of {found.counts:,} counts of {found.points:,} points changed"
        if format == "json":
            sys.stdout.write(json.dumps(_document(found), indent=2) + "\n")
        elif format == "markdown":
            lines = [HEADER, ("---", "---", "---:", "---:", "---:", "---"), *map(cells, found.changes)]
            body = "".join("| " + " | ".join(line) + " |\n" for line in lines)
            sys.stdout.write(f"{body}\n{summary}\n" if found.changes else f"{summary}\n")
        elif found.changes:
            rows = [cells(change) for change in found.changes]
            show(simple_table(f"{before} -> {after}", HEADER, rows, caption=summary))
        else:
            out().print(summary, markup=False)


def _document(found: Difference) -> dict[str, Any]:
    return {
        "points": found.points,
        "counts": found.counts,
        "changes": [
            {
                "point": change.point,
                "count": change.column.name,
                "before": change.before,
                "after": change.after,
                "verdict": change.verdict,
            }
            for change in found.changes
        ],
    }
