"""A `steps.csv` as a run writes it: every step with its rows, width and live cells."""

from __future__ import annotations

from pathlib import Path

from nanoserve.steps import Segment, Steps
from nanoserve_cli.observed.model import Observed
from nanoserve_cli.observed.tally import Skips
from nanoserve_cli.workload.errors import RowError, TraceError
from nanoserve_cli.workload.fields import MAX_STAMP_NS, Record
from nanoserve_cli.workload.sniff import Sniffed


def is_steps(features: frozenset[str]) -> bool:
    """Whether these are the columns of a `steps.csv`."""
    return set(Segment._fields) <= features


def read_steps(path: Path, sniffed: Sniffed) -> Observed:
    """The segments as they were written. Raises TraceError where they are no run in time order, or none."""
    segments, skips, number = [], Skips(), 0
    for number, line in sniffed.rows:
        try:
            segments.append(_segment(sniffed.decode(line)))
        except RowError as bad:
            skips.add(bad.reason, number)
    if not segments:
        raise TraceError(f"{path}: is a steps.csv without a segment")
    try:
        steps = Steps.of(segments)
    except ValueError as error:
        raise TraceError(f"{path}: is no run of steps: {error}") from None
    return Observed(
        path=str(path),
        kind="steps",
        about="steps.csv of a nanoserve run: every decode step with rows, width and live cells",
        steps=steps,
        weight_unit="steps",
        untimed="steps are in order by start_step, without times",
        lines_read=number,
        skipped=skips.all(),
    )


def _segment(record: Record) -> Segment:
    values = []
    for name in Segment._fields:
        text = str(record[name]).strip()
        if not (text.isascii() and text.isdecimal()):
            raise RowError(f"{name} is not a count", text)
        if int(text) >= MAX_STAMP_NS:
            raise RowError(f"{name} is out of range", text)
        values.append(int(text))
    return Segment(*values)
