"""A check as GitHub Actions shows it: annotations on the budget file's lines, and the job summary.

Forms and limits as in GitHub's documentation of workflow commands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from nanoserve_cli.check import words
from nanoserve_cli.check.checking import Report
from nanoserve_cli.check.verdicts import Verdict, worst_first
from nanoserve_cli.check.words import Command

SHOWN = 10
"""Annotations of each kind that are shown of a step; the rest is dropped in silence."""
SUMMARY_BYTES = 1024 * 1024
"""The most that a step may write: a larger summary is not shown at all."""
SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"
CUT = "\n\n*Cut here: {lines:,} more lines would be past the 1 MiB that a step may write.*\n"


def workflow_commands(report: Report, command: Command) -> Iterator[str]:
    """A workflow command for every verdict that says something, worst first; the last shown counts those that are not.

    What fails is an error, what is soft a warning, what improved a notice.
    """
    kinds: Mapping[str, list[Verdict]] = {"error": [], "warning": [], "notice": []}
    for verdict in worst_first(report.verdicts):
        if report.fails(verdict):
            kinds["error"].append(verdict)
        elif verdict.status in {"soft", "improved"}:
            kinds["warning" if verdict.status == "soft" else "notice"].append(verdict)
    for kind, verdicts in kinds.items():
        yield from _of_kind(kind, verdicts, report.path, command)


def _of_kind(kind: str, verdicts: Sequence[Verdict], path: Path, command: Command) -> Iterator[str]:
    shown = verdicts if len(verdicts) <= SHOWN else verdicts[: SHOWN - 1]
    for verdict in shown:
        message = f"{words.sentence(verdict)}; {words.remedy(verdict, command)}"
        yield _command(kind, message, file=path, line=verdict.limit.place.line, title=_title(verdict))
    if len(shown) < len(verdicts):
        left = len(verdicts) - len(shown)
        yield _command(kind, f"{left} more: GitHub shows {SHOWN} of a step, the job summary has them all", file=path)


def _title(verdict: Verdict) -> str:
    return f"{verdict.budget}: {verdict.metric} {words.NAMES[verdict.status]}"


def _command(kind: str, message: str, **properties: object) -> str:
    written = ",".join(f"{name}={escape_property(str(value))}" for name, value in properties.items())
    return f"::{kind} {written}::{escape_data(message)}"


def escape_data(text: str) -> str:
    """A message of a workflow command, which ends at its line."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def escape_property(text: str) -> str:
    """The value of a property, which ends at a colon or comma, too."""
    return escape_data(text).replace(":", "%3A").replace(",", "%2C")


def append_summary(path: Path, markdown: str) -> None:
    """Adds to the job summary what still fits, by whole lines, with a note where it does not. Raises OSError."""
    before = path.read_bytes() if path.exists() else b""
    apart = "" if not before or before.endswith(b"\n") else "\n"
    if text := cut(markdown, SUMMARY_BYTES - len(before) - len(apart)):
        with path.open("a", encoding="utf-8", newline="\n") as file:
            file.write(apart + text)


def cut(markdown: str, room: int) -> str:
    """The first lines of it that fit into `room` bytes, and how many did not; nothing where not even that fits."""
    if len(markdown.encode()) <= room:
        return markdown
    lines = markdown.splitlines()
    kept: list[str] = []
    left = room - len(CUT.format(lines=len(lines)).encode())
    for line in lines:
        left -= len(line.encode()) + 1
        if left < 0:
            break
        kept.append(line)
    return "\n".join(kept) + CUT.format(lines=len(lines) - len(kept)) if kept else ""
