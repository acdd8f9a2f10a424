"""A table with a line for each sample of the running requests, as per-second monitors write it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from nanoserve_cli.observed.gauges import Series, running_rows, sample_time, weigh
from nanoserve_cli.observed.model import Observed
from nanoserve_cli.observed.tally import Skips, rows_and_samples, timed, weighing_notes
from nanoserve_cli.workload.errors import RowError, TraceError
from nanoserve_cli.workload.fields import Record
from nanoserve_cli.workload.sniff import Sniffed

RUNNING = (
    "running",
    "num_running",
    "running_reqs",
    "running_requests",
    "num_running_reqs",
    "num_requests_running",
    "vllm:num_requests_running",
    "sglang:num_running_reqs",
)
TIMES = ("t", "ts", "time", "timestamp", "datetime", "seconds", "elapsed", "elapsed_s", "time_s")
ENGINES = ("engine", "dp_rank")


def is_running(features: frozenset[str]) -> bool:
    """Whether one of the columns counts running requests."""
    return _column(features, RUNNING) is not None


def read_running(path: Path, sniffed: Sniffed) -> Observed:
    """Samples weighted by the time they stand for. Raises TraceError where no sample has a request running."""
    running, time, engine = (_column(sniffed.columns, names) for names in (RUNNING, TIMES, ENGINES))
    series: dict[str, Series] = {}
    skips, number = Skips(), 0
    for number, line in sniffed.rows:
        try:
            record = sniffed.decode(line)
            rows = running_rows(_text(record, running))
            at = None if time is None else sample_time(_text(record, time))
        except RowError as bad:
            skips.add(bad.reason, number)
            continue
        series.setdefault("" if engine is None else str(record.get(engine)), Series()).add(at, rows)
    if not any(any(one.rows) for one in series.values()):
        raise TraceError(f"{path}: no sample has a request running ({_counts(series, skips)})")
    weighed = weigh(list(series.values()))
    by_rows, idle, samples = rows_and_samples(timed(weighed))
    notes = ["rows only: no widths, and no number of steps", "requests in prefill count as running"]
    return Observed(
        path=str(path),
        kind="running",
        about=f"samples of the running requests, column {running}",
        rows=by_rows,
        weight_unit="seconds",
        samples=samples,
        untimed="" if time is not None else f"no column of times: looked for {', '.join(TIMES)}",
        idle=idle,
        lines_read=number,
        skipped=skips.all(),
        notes=(*notes, *weighing_notes(weighed)),
    )


def _column(columns: Iterable[str], names: tuple[str, ...]) -> str | None:
    """The column of that meaning: the earliest of `names` that there is, in any case."""
    by_name = {column.lower(): column for column in columns}
    return next((by_name[name] for name in names if name in by_name), None)


def _text(record: Record, column: str | None) -> str:
    value = record.get(column or "")
    if value is None or value == "":
        raise RowError(f"{column} is missing")
    return str(value)


def _counts(series: dict[str, Series], skips: Skips) -> str:
    parts = [f"{sum(len(one.rows) for one in series.values())} samples of 0"]
    parts += [f"{some.count}: {some.reason}, first at line {some.first_line}" for some in skips.all()]
    return "; ".join(parts)
