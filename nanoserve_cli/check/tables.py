"""A check as a table for a terminal and as markdown for a page: a line a limit, its worst row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING

from nanoserve_cli.check import words
from nanoserve_cli.check.checking import Report
from nanoserve_cli.check.verdicts import GOOD, Status, Verdict, rank, worst_first
from nanoserve_cli.check.words import Command
from nanoserve_cli.tables import simple_table

if TYPE_CHECKING:
    from rich.table import Table

HEADER = ("budget\n  metric", "limit", "measured", "off by", "verdict")
STYLES: dict[Status, str] = {
    "fail": "red",
    "missing": "red",
    "not comparable": "red",
    "soft": "yellow",
    "improved": "green",
}


@dataclass(frozen=True)
class Line:
    """One limit of a budget: its worst verdict, and the verdicts on all rows."""

    worst: Verdict
    of: Sequence[Verdict]

    @property
    def verdict(self) -> str:
        """The worst verdict and, of several rows, how many have it."""
        alike = sum(verdict.status == self.worst.status for verdict in self.of)
        rows = "" if len(self.of) == 1 else f", {alike} of {len(self.of)} rows"
        return words.NAMES[self.worst.status] + rows

    @property
    def cells(self) -> tuple[str, ...]:
        """Limit, figure, by how much, verdict."""
        worst = self.worst
        return words.limit(worst.limit), words.measured(worst), words.change(worst), self.verdict


def lines(verdicts: Sequence[Verdict]) -> Iterator[Line]:
    """A line a limit, in the file's order."""
    for _, of_budget in groupby(verdicts, key=lambda verdict: verdict.budget):
        by_limit: dict[tuple[int, str], list[Verdict]] = {}
        for verdict in of_budget:
            by_limit.setdefault((verdict.limit.place.start, verdict.limit.kind), []).append(verdict)
        for of in by_limit.values():
            yield Line(worst_first(of)[0], of)


def summary(report: Report) -> str:
    """How many verdicts of each kind, and what that comes to."""
    counted = ", ".join(f"{count:,} {status}" for status, count in report.totals.items() if count)
    return f"{report.path}: {counted}: {'passed' if report.exit_code == 0 else f'failed (exit {report.exit_code})'}"


def table(report: Report) -> Table:
    """The whole report for a terminal, budget by budget."""
    rows: list[tuple[str, ...]] = []
    styles: list[str | None] = []
    for budget, of_budget in groupby(lines(report.verdicts), key=lambda line: line.worst.budget):
        rows.append((budget, "", "", "", ""))
        styles.append("bold")
        for line in of_budget:
            rows.append((f"  {line.worst.metric}", *line.cells))
            styles.append(STYLES.get(line.worst.status))
    made = simple_table(f"Budgets of {report.path}", HEADER, rows)
    made.padding = (0, 1, 0, 0)
    made.columns[-1].justify = "left"
    for row, style in zip(made.rows, styles, strict=True):
        row.style = style
    return made


def telling(report: Report) -> list[Verdict]:
    """The verdicts that fail, warn, or have a better figure than is written; worst first."""
    return [verdict for verdict in worst_first(report.verdicts) if verdict.status not in GOOD]


def markdown(report: Report, command: Command) -> str:
    """The report for a page, worst first; what differs from its limit comes again with where it is and what to do."""
    header = [("verdict", "budget", "metric", *HEADER[1:4]), ("---", "---", "---", "---:", "---:", "---:")]
    ranked = sorted(lines(report.verdicts), key=lambda line: rank(line.worst))
    body = [(line.verdict, line.worst.budget, line.worst.metric, *line.cells[:3]) for line in ranked]
    rows = ["| " + " | ".join(map(_escaped, row)) + " |" for row in (*header, *body)]
    said = [f"- {_item(verdict, command)}" for verdict in telling(report)]
    return "\n".join([f"### {_escaped(summary(report))}", "", *rows, "", *said]).rstrip() + "\n"


def _item(verdict: Verdict, command: Command) -> str:
    """A verdict as a line of a list, what may be copied as code."""
    sentence = _escaped(f"{words.NAMES[verdict.status]} {words.sentence(verdict)}")
    accept = f"; `{words.acceptance(verdict, command)}`" if verdict.acceptable else ""
    return f"{sentence}; `{words.place(verdict, command.path)}`{accept}"


def _escaped(text: str) -> str:
    """Text that is only text in a table's cell."""
    return escape(text, quote=False).replace("|", "\\|").replace("`", "\\`")
