"""Per-request records of a run: a row decodes between its first token and its last, so rows over time follow."""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nanoserve_cli.observed.model import Observed
from nanoserve_cli.observed.tally import Skips, TimedRows, rows_and_samples
from nanoserve_cli.units import NS_PER_S
from nanoserve_cli.workload.errors import RowError, TraceError
from nanoserve_cli.workload.fields import Record, seconds
from nanoserve_cli.workload.sniff import Sniffed

FIRST, LAST = "first_token_ts", "last_token_ts"


def is_lifecycle(features: frozenset[str]) -> bool:
    """Whether records with these keys have both stamps."""
    return {FIRST, LAST} <= features


def read_lifecycle(path: Path, sniffed: Sniffed) -> Observed:
    """Rows weighted by seconds, exact to the stamps. Raises TraceError where no request made a second token."""
    first, last, skips = array("q"), array("q"), Skips()
    requests = single = number = 0
    for number, line in sniffed.rows:
        try:
            begin, end = _decoding(sniffed.decode(line))
        except RowError as bad:
            skips.add(bad.reason, number)
            continue
        requests += 1
        single += begin == end
        if begin < end:
            first.append(begin)
            last.append(end)
    if not first:
        raise TraceError(f"{path}: none of {requests} requests made a token after its first: {FIRST} is {LAST}")
    rows, idle, samples = rows_and_samples(rows_over_time(np.array(first, np.int64), np.array(last, np.int64)))
    return Observed(
        path=str(path),
        kind="lifecycle",
        about="per-request records: first and last token times",
        rows=rows,
        weight_unit="seconds",
        samples=samples,
        idle=idle,
        lines_read=number,
        skipped=skips.all(),
        notes=_notes(requests, single),
    )


def _decoding(record: Record) -> tuple[int, int]:
    """When a request decodes, in nanoseconds of the server's clock."""
    begin, end = seconds(record, FIRST), seconds(record, LAST)
    if end < begin:
        raise RowError(f"{LAST} is before {FIRST}")
    return begin, end


def rows_over_time(first: NDArray[np.int64], last: NDArray[np.int64]) -> TimedRows:
    """`(time, rows from then on, seconds until they change)` by a sweep over the stamps, which are nanoseconds.

    `first` and `last` are when each request begins and ends to decode; each ends after it begins.
    """
    moments, place = np.unique(np.concatenate([first, last]), return_inverse=True)
    change = np.repeat([1.0, -1.0], first.size)
    rows = np.bincount(place, weights=change, minlength=moments.size).astype(np.int64).cumsum()
    lasting = np.diff(moments) / NS_PER_S
    return list(zip(moments[:-1].tolist(), rows[:-1].tolist(), lasting.tolist(), strict=True))


def _notes(requests: int, single: int) -> tuple[str, ...]:
    notes = [
        f"{requests} requests: each is a row from its first token to its last, though it be preempted in between",
        "rows only; the lengths in such records give widths by simulation: --format vllm-requests",
    ]
    if single:
        notes.append(f"{single} requests made one token and so never decode")
    return tuple(notes)
