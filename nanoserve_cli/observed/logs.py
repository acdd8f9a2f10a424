"""One pass over a log with every reader of log lines; the most exact kind that has rows is what was observed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nanoserve_cli.observed import gauges, sglang, vllm
from nanoserve_cli.observed.clock import Clock
from nanoserve_cli.observed.model import LogFormat, Observed
from nanoserve_cli.observed.settings import ServerSettings
from nanoserve_cli.observed.source import open_log
from nanoserve_cli.observed.tally import Tally, rows_and_samples
from nanoserve_cli.workload.errors import TraceError

# The most exact first: of the kinds that have rows, the first one is taken.
LOG_FORMATS: tuple[LogFormat, ...] = (
    LogFormat(
        "vllm-cudagraph-metrics",
        "vLLM's graph tables (--cudagraph-metrics): every step, counted by size and mode",
        "|",
        vllm.graph_table_row,
        "steps",
        vllm.graph_table_notes,
    ),
    LogFormat(
        "vllm-iterations",
        "vLLM's per-iteration lines: every step",
        "Iteration(",
        vllm.iteration,
        "steps",
        vllm.iteration_notes,
    ),
    LogFormat(
        "sglang-decode",
        "SGLang's decode lines: one of every so many decode steps",
        "Decode batch",
        sglang.decode_line,
        "steps",
        sglang.decode_notes,
        sglang.decode_scale,
    ),
    LogFormat(
        "vllm-engine",
        "vLLM's periodic engine lines: running requests every few seconds",
        "throughput: ",
        vllm.engine_line,
        "seconds",
        vllm.engine_notes,
    ),
    LogFormat(
        "prometheus",
        "Prometheus text with vLLM's or SGLang's gauge of running requests",
        "_running",
        gauges.prometheus_line,
        "seconds",
        gauges.prometheus_notes,
    ),
)


QUOTING = ("Received request ", "Receive: obj=", "Finish: obj=")
"""Lines with these quote what users wrote, which may be a server's log: they are passed over."""


class NothingFound(TraceError):
    """A log without a decode step that could be counted; `nearest` is what came closest, or empty."""

    def __init__(self, path: Path, nearest: str) -> None:
        super().__init__(f"{path}: {nearest and f'{nearest}; '}no log line tells the rows of a decode step")
        self.nearest = nearest


def read_log(path: Path, only: LogFormat | None = None) -> Observed:
    """What the log at `path` holds, of the format `only` or of the most exact one there is.

    Raises NothingFound where no line has a decode step, and TraceError where the file cannot be read.
    """
    settings, clock = ServerSettings(), Clock()
    tallies = [Tally(known) for known in LOG_FORMATS if only is None or known is only]
    watched = [(tally.format.needle, tally) for tally in tallies]
    number = 0
    with open_log(path) as lines:
        for number, line in enumerate(lines, 1):
            if any(mark in line for mark in QUOTING):
                continue
            settings.feed(line)
            speaking = [tally for needle, tally in watched if needle in line]
            if speaking:
                now = clock.read(line)
                for tally in speaking:
                    tally.add(number, line, now)
            else:
                clock.pass_by(line)
    chosen = next((tally for tally in tallies if tally.has_rows), None)
    if chosen is None:
        raise NothingFound(path, _nearest(tallies, settings))
    return _observed(path, chosen, tallies, settings, number)


def read_settings(path: Path) -> ServerSettings:
    """What any text file says about a server, as a start-up log or a JSON dump of its configuration does.

    Raises TraceError where the file cannot be read.
    """
    settings = ServerSettings()
    with open_log(path) as lines:
        for line in lines:
            settings.feed(line)
    return settings


def _observed(path: Path, chosen: Tally, tallies: list[Tally], settings: ServerSettings, lines: int) -> Observed:
    weighted, weighing = chosen.timed_rows(settings)
    rows, idle, samples = rows_and_samples(weighted)
    notes = [*chosen.format.notes(settings), *weighing, *_circumstances(chosen, settings), *_others(chosen, tallies)]
    return Observed(
        path=str(path),
        kind=chosen.format.name,
        about=chosen.format.about,
        rows=rows,
        weight_unit=chosen.format.unit,
        samples=samples,
        untimed="" if samples is not None else "no line has a date and time",
        idle=idle,
        capture_sizes=settings.capture_sizes,
        max_batch=settings.max_batch,
        mean_width=chosen.mean_width,
        eager=chosen.eager(settings, rows),
        mixed=chosen.mixed(settings),
        lines_read=lines,
        skipped=chosen.skips.all(),
        notes=tuple(notes),
    )


def _circumstances(chosen: Tally, settings: ServerSettings) -> Iterator[str]:
    if chosen.engines > 1:
        yield (
            f"{chosen.engines} engines or starts are weighed apart and added up; where ranks step together, the graph "
            "of all is that of the largest"
        )
    if chosen.restarts:
        yield f"the step counter went back {chosen.restarts} times: new starts of the server"
    if chosen.missing:
        yield f"{chosen.missing} iterations are missing between lines"
    if settings.lists_seen > 1:
        yield f"the log holds {settings.lists_seen} different capture lists: the last is taken"


def _others(chosen: Tally, tallies: list[Tally]) -> Iterator[str]:
    for tally in tallies:
        if tally is chosen or not tally.lines:
            continue
        why = "less exact" if tally.has_rows else "no decode step in them"
        yield f"also seen, not used: {tally.lines} lines of {tally.format.name} ({why})"


def _nearest(tallies: list[Tally], settings: ServerSettings) -> str:
    """What came closest to a decode step: lines without rows, broken lines, or a capture list alone."""
    for tally in tallies:
        if tally.mixed(settings):
            return f"has {tally.lines} lines of {tally.format.name}, all of steps with prefill or off the graphs"
        if tally.lines:
            return f"has {tally.lines} lines of {tally.format.name}, none with a request running"
    broken = [(some, tally.format.name) for tally in tallies for some in tally.skips.all()]
    if broken:
        worst, name = max(broken, key=lambda pair: pair[0].count)
        return f"is nearest to {name}, but for {worst.reason} ({worst.count}, first at line {worst.first_line})"
    if settings.capture_sizes:
        return f"has a capture list of {len(settings.capture_sizes)} sizes, without the batches it served"
    return ""
