"""A verdict in words: the one place where a limit, a figure and a failure become text, whatever face shows them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from math import isinf
from pathlib import Path

from nanoserve_cli.check.percent import render_percent
from nanoserve_cli.check.verdicts import Figure, Limit, Status, Verdict

KINDS = {"at_most": "at most", "at_least": "at least", "exactly": "exactly"}
NAMES: dict[Status, str] = {
    "fail": "FAIL",
    "missing": "MISSING",
    "not comparable": "NOT COMPARABLE",
    "soft": "soft",
    "improved": "improved",
    "reported": "reported",
    "pass": "pass",
}


@dataclass(frozen=True)
class Command:
    """The command line of a check, to be given again with `--update`: the budget file and the flags that matter."""

    path: Path
    flags: Sequence[str] = ()

    def accepting(self, name: str, *, strict: bool = False) -> str:
        """What accepts the figures of one budget; `strict` its improvements too."""
        more = ["--strict"] if strict and "--strict" not in self.flags else []
        return shlex.join(["nanoserve", "check", str(self.path), *self.flags, *more, "--update", name])


def figure(value: Figure | None) -> str:
    """A figure as a person reads it."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def limit(about: Limit) -> str:
    """`at most 5`, `at most +1%`; empty for what is only reported."""
    if about.kind == "reported":
        return ""
    if about.kind == "regress":
        sign = "+" if about.column.better == "lower" else "-"
        return f"{sign}{render_percent(about.margin)}" if about.margin else "no worse"
    return f"{KINDS[about.kind]} {figure(about.value)}"


def change(verdict: Verdict) -> str:
    """How far a figure is from its bound, as a share of it; empty where that is nothing to speak of."""
    if verdict.relative is None or abs(verdict.relative) < 0.00005:
        return ""
    return "from 0" if isinf(verdict.relative) else f"{verdict.relative:+.2%}"


def place(verdict: Verdict, path: Path) -> str:
    """Where the limit is written, as `file:line`."""
    return f"{path}:{verdict.limit.place.line}"


def measured(verdict: Verdict) -> str:
    """The figure; all its digits where fewer would read like the limit it is not."""
    text = figure(verdict.measured)
    is_hidden = verdict.status in {"fail", "soft"} and text == figure(verdict.bound)
    return repr(verdict.measured) if is_hidden else text


def sentence(verdict: Verdict) -> str:
    """Metric and budget, limit, figure, and by how much: what is wrong, without where and what to do."""
    row = f", {verdict.row}" if verdict.row and verdict.row != verdict.budget else ""
    parts = [] if verdict.measured is None else [f"measured {measured(verdict)}"]
    if verdict.beyond:
        share = f" ({change(verdict)})" if change(verdict) else ""
        parts.append(f"{figure(abs(verdict.beyond))} {'over' if verdict.beyond > 0 else 'under'}{share}")
    parts += [verdict.reason] if verdict.reason else []
    return f"{verdict.metric} of {verdict.budget}{row}: {', '.join([_wanted(verdict), *parts])}"


def _wanted(verdict: Verdict) -> str:
    if verdict.limit.kind == "reported":
        return "reported"
    if verdict.limit.kind != "regress":
        margin = f" ({render_percent(verdict.limit.margin)} soft)" if verdict.limit.margin else ""
        return f"limit {limit(verdict.limit)}{margin}"
    baseline = "the baseline" if verdict.bound is None else f"the baseline's {figure(verdict.bound)}"
    return f"limit {limit(verdict.limit)} {'on' if verdict.limit.margin else 'than'} {baseline}"


def acceptance(verdict: Verdict, command: Command) -> str:
    """The command that makes the figure the limit; of what is only better, with the flag that lets it."""
    return command.accepting(verdict.budget, strict=verdict.status == "improved")


def remedy(verdict: Verdict, command: Command) -> str:
    """What to do: that command, or that there is nothing to accept."""
    return f"accept: {acceptance(verdict, command)}" if verdict.acceptable else "nothing to accept"


def line(verdict: Verdict, command: Command) -> str:
    """All of it in one line."""
    return f"{NAMES[verdict.status]} {sentence(verdict)}; {place(verdict, command.path)}; {remedy(verdict, command)}"
