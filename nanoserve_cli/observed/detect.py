"""`read_observed`: whatever a server or a bench left behind, recognised by content."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nanoserve_cli.observed.lifecycle import is_lifecycle, read_lifecycle
from nanoserve_cli.observed.logs import LOG_FORMATS, NothingFound, read_log
from nanoserve_cli.observed.model import Observed
from nanoserve_cli.observed.running import is_running, read_running
from nanoserve_cli.observed.segments import is_steps, read_steps
from nanoserve_cli.observed.source import may_be_log
from nanoserve_cli.workload.errors import TraceError, did_you_mean, shorten
from nanoserve_cli.workload.formats import FORMATS, recognised
from nanoserve_cli.workload.readers import read_trace
from nanoserve_cli.workload.sniff import Sniffed, sniff
from nanoserve_cli.workload.source import open_lines


@dataclass(frozen=True)
class TableFormat:
    """A CSV or JSON-lines file, recognised by its columns or keys."""

    name: str
    about: str
    fits: Callable[[frozenset[str]], bool]
    read: Callable[[Path, Sniffed], Observed]


# Before the request traces: the records of a run have everything that a request trace has, and more.
TABLE_FORMATS: tuple[TableFormat, ...] = (
    TableFormat("steps", "a steps.csv of nanoserve", is_steps, read_steps),
    TableFormat("lifecycle", "first_token_ts and last_token_ts of each request", is_lifecycle, read_lifecycle),
    TableFormat("running", "a line for each sample, with a column of running requests", is_running, read_running),
)


def format_names() -> list[str]:
    """Every name that `read_observed` takes as `format`."""
    return [known.name for registry in (TABLE_FORMATS, LOG_FORMATS, FORMATS) for known in registry]


def read_observed(path: str | Path, *, format: str | None = None) -> Observed:
    """Read what a server recorded at `path`: as `format` if given, else as what its content is recognised as.

    Tables are tried first, then request traces, then the lines of a log. Raises TraceError, one line for a
    person, where the file gives no decode step; it says what was looked for and what came nearest.
    """
    path = Path(path)
    if format is not None:
        return _read_as(path, format)
    try:
        with open_lines(path) as lines:
            sniffed = sniff(lines)
    except TraceError as refused:
        if not may_be_log(path):
            raise
        return _read_log(path, str(refused).removeprefix(f"{path}: "))
    if sniffed is None:
        raise TraceError(f"{path}: is empty")
    for table in TABLE_FORMATS:
        if table.fits(sniffed.features):
            return _read_table(path, table)
    if recognised(sniffed.container, sniffed.features) is not None:
        return _of_trace(path)
    return _read_log(path, _columns_found(sniffed.columns))


def _read_as(path: Path, format: str) -> Observed:
    table = next((known for known in TABLE_FORMATS if known.name == format), None)
    if table is not None:
        return _read_table(path, table)
    log = next((known for known in LOG_FORMATS if known.name == format), None)
    if log is not None:
        return read_log(path, log)
    if format not in format_names():
        raise TraceError(f"unknown format {format!r}: {did_you_mean(format, format_names())}")
    return _of_trace(path, format)


def _read_table(path: Path, table: TableFormat) -> Observed:
    with open_lines(path) as lines:
        sniffed = sniff(lines)
        if sniffed is None:
            raise TraceError(f"{path}: is empty")
        if not table.fits(sniffed.features):
            raise TraceError(f"{path}: is no {table.name} file ({table.about}); {_columns_found(sniffed.columns)}")
        twice = [name for name, count in Counter(sniffed.columns).items() if count > 1]
        if twice:
            raise TraceError(f"{path}: the column {twice[0]!r} stands twice in the header: remove one of them")
        return table.read(path, sniffed)


def _of_trace(path: Path, format: str | None = None) -> Observed:
    trace = read_trace(path, format=format)
    return Observed(
        path=str(path),
        kind=trace.format,
        about=next(known.about for known in FORMATS if known.name == trace.format),
        workload=trace,
        untimed="a request trace has times of arrival: its steps follow by simulation",
        lines_read=trace.rows_read,
        skipped=trace.skipped,
        notes=(*trace.notes, "requests, not steps: rows and widths follow by simulation"),
    )


def _read_log(path: Path, otherwise: str) -> Observed:
    """The file as a log; if it is none either, `otherwise` is the nearest thing that was found."""
    try:
        return read_log(path)
    except NothingFound as nothing:
        kinds = ", ".join(known.name for registry in (LOG_FORMATS, TABLE_FORMATS) for known in registry)
        raise TraceError(
            f"{path}: {nothing.nearest or otherwise}; nothing in it tells the rows of a decode step: looked for "
            f"{kinds} and request traces"
        ) from None


def _columns_found(columns: tuple[str, ...]) -> str:
    """What a first line has, as columns, in one line of an error."""
    text = ", ".join(shorten(name, 24) for name in columns)
    return "columns found: " + shorten("".join(mark if mark.isprintable() else "?" for mark in text), 160)
