"""`read_trace`: a recorded trace, in whatever format, as a `Workload` with an account of every row."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nanoserve.workload import Workload
from nanoserve_cli.assets import TRACES
from nanoserve_cli.workload.errors import RowError, TraceError, shorten
from nanoserve_cli.workload.formats import FORMATS, Container, TraceFormat, named, recognised
from nanoserve_cli.workload.sniff import Sniffed, sniff
from nanoserve_cli.workload.source import open_lines, sha256_of
from nanoserve_cli.workload.stamps import Stamps, in_time_order
from nanoserve_cli.workload.synthetic import arrivals, streams


@dataclass(frozen=True)
class Skipped:
    """Rows that held no request: why, how many, and the line of the first, counted from 1."""

    reason: str
    count: int
    first_line: int


@dataclass(frozen=True, eq=False)
class Trace:
    """A workload that was read from a file, and everything that was noticed on the way.

    `sha256` is of the file as stored, and `key` the registered trace with that sum, if one has it.
    `rows_read` counts the rows looked at, kept or `skipped`; in some formats one row is several requests.
    `out_of_order` counts the requests that stood after a later one in the file; they are sorted, equal
    stamps keeping the file's order. `stamps` says how fine the recorded times are, and is None where the
    arrivals were drawn instead. `notes` say what was assumed.
    """

    workload: Workload
    format: str
    path: str
    sha256: str
    key: str | None
    rows_read: int
    skipped: tuple[Skipped, ...]
    out_of_order: int
    stamps: Stamps | None
    notes: tuple[str, ...]

    @property
    def span_ns(self) -> int:
        """Nanoseconds from the first arrival to the last."""
        return int(self.workload.arrival_ns[-1])

    @property
    def rows_skipped(self) -> int:
        """Rows that held no request, of all reasons."""
        return sum(skipped.count for skipped in self.skipped)


def read_trace(
    path: str | Path,
    *,
    format: str | None = None,
    strict: bool = False,
    limit: int | None = None,
    request_rate: float | None = None,
    burstiness: float = 1.0,
    seed: int = 0,
) -> Trace:
    """Read the trace at `path`, of the format it is recognised as or of the one that `format` names.

    A row that holds no request is skipped and counted; with `strict` the first one ends the reading.
    `limit` stops after so many kept requests, in the file's order. `request_rate` (requests a second)
    replaces the recorded times with drawn ones, as `synthetic.arrivals` does, and must be given where the
    format has none. Rows are streamed into columns of 24 bytes a request.

    Raises TraceError, with one line for a person, where the file gives no request or, with `strict`, has a
    bad row; ValueError for a `limit` below 1 or a rate that `arrivals` refuses.
    """
    path = Path(path)
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    chosen = None if format is None else named(format)
    sha256 = sha256_of(path)
    with open_lines(path) as lines:
        sniffed = sniff(lines)
        if sniffed is None:
            raise TraceError(f"{path}: is empty")
        known = _format_of(path, sniffed, chosen)
        if not known.timed and request_rate is None:
            raise TraceError(f"{path}: has lengths and no times: give --request-rate to draw the arrivals")
        rows = _read_rows(path, sniffed, known, strict=strict, limit=limit)

    order, out_of_order = in_time_order(rows.arrival)
    recorded = rows.arrival[order]
    notes = [known.assumes] if known.assumes else []
    if request_rate is None:
        arrival, stamps = recorded - recorded[0], Stamps.of(recorded)
    else:
        arrival, stamps = arrivals(recorded.size, request_rate, burstiness, streams(seed).arrival), None
        notes.append(f"arrivals drawn at {request_rate:g} requests/s, burstiness {burstiness:g}, seed {seed}")
    return Trace(
        workload=Workload(arrival, rows.prompt[order], rows.output[order]),
        format=known.name,
        path=str(path),
        sha256=sha256,
        key=next((asset.key for asset in TRACES if asset.sha256 == sha256), None),
        rows_read=rows.read,
        skipped=rows.skipped,
        out_of_order=out_of_order,
        stamps=stamps,
        notes=tuple(notes),
    )


@dataclass(frozen=True, eq=False)
class _Rows:
    arrival: NDArray[np.int64]
    prompt: NDArray[np.int64]
    output: NDArray[np.int64]
    read: int
    skipped: tuple[Skipped, ...]


def _read_rows(path: Path, sniffed: Sniffed, known: TraceFormat, *, strict: bool, limit: int | None) -> _Rows:
    columns = array("q"), array("q"), array("q")
    skipped: dict[str, Skipped] = {}
    read = 0
    for number, line in sniffed.rows:
        read += 1
        try:
            requests = known.requests(sniffed.decode(line))
        except RowError as bad:
            if strict:
                raise TraceError(f"{path}, line {number}: {bad}") from None
            before = skipped.get(bad.reason, Skipped(bad.reason, 0, number))
            skipped[bad.reason] = replace(before, count=before.count + 1)
            continue
        for request in requests:
            for column, value in zip(columns, request, strict=True):
                column.append(value)
        if limit is not None and len(columns[0]) >= limit:
            break
    if not columns[0]:
        raise TraceError(f"{path}: {_nothing_in(sniffed, tuple(skipped.values()))} (format {known.name})")
    arrival, prompt, output = (np.array(column[:limit], np.int64) for column in columns)
    return _Rows(arrival, prompt, output, read, tuple(skipped.values()))


def _nothing_in(sniffed: Sniffed, skipped: tuple[Skipped, ...]) -> str:
    if not skipped:
        return f"is a header only; {_columns_found(sniffed)}"
    worst = max(skipped, key=lambda some: some.count)
    total = sum(some.count for some in skipped)
    return f"no row of {total} holds a request: {worst.reason} ({worst.count}, first at line {worst.first_line})"


def _format_of(path: Path, sniffed: Sniffed, chosen: TraceFormat | None) -> TraceFormat:
    """The format to read with. Raises TraceError where none fits, or where the chosen one cannot."""
    if sniffed.broken:
        raise TraceError(f"{path}: starts like JSON, but none of its first lines is a whole JSON object")
    twice = [name for name, count in Counter(sniffed.columns).items() if count > 1]
    if sniffed.container == "csv" and twice:
        raise TraceError(
            f"{path}: the column {twice[0]!r} stands twice in the header: which one counts is anybody's guess"
        )
    if chosen is None:
        found = recognised(sniffed.container, sniffed.features)
        if found is None:
            known = _known(sniffed.container)
            raise TraceError(f"{path}: no known trace format: {_columns_found(sniffed)}; known: {known}")
        return found
    if chosen.container != sniffed.container:
        raise TraceError(f"{path}: format {chosen.name} is {chosen.container}, the file is {sniffed.container}")
    missing = chosen.reads - sniffed.features
    if missing and chosen.container == "csv":
        raise TraceError(f"{path}: format {chosen.name} needs {', '.join(sorted(missing))}; {_columns_found(sniffed)}")
    return chosen


def _columns_found(sniffed: Sniffed) -> str:
    text = ", ".join(shorten(name, 24) for name in sniffed.columns)
    return "columns found: " + shorten("".join(mark if mark.isprintable() else "?" for mark in text), 160)


def _known(container: Container) -> str:
    fitting = [known for known in FORMATS if known.container == container]
    return "; ".join(f"{known.name} ({', '.join(sorted(known.signature))})" for known in fitting)
