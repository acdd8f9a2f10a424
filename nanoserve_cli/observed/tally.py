"""The readings of one kind, added up: weights by rows and in time, steps with prefill, lines that were broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from nanoserve_cli.observed.gauges import LONGEST_GAP, Series, Weighed, weigh
from nanoserve_cli.observed.model import Decode, Eager, LogFormat, Mixed, MixedSteps, RowWeights, Sample
from nanoserve_cli.observed.settings import ServerSettings
from nanoserve_cli.units import NS_PER_S
from nanoserve_cli.workload.errors import RowError
from nanoserve_cli.workload.readers import Skipped

TimedRows = list[tuple[int | None, int, float]]
"""`(time in ns or None, rows, weight)`, in time order; rows 0 is idle."""


class Skips:
    """Broken lines by reason."""

    def __init__(self) -> None:
        self._by_reason: dict[str, Skipped] = {}

    def add(self, reason: str, line_number: int) -> None:
        """One more for `reason`."""
        before = self._by_reason.get(reason, Skipped(reason, 0, line_number))
        self._by_reason[reason] = replace(before, count=before.count + 1)

    def all(self) -> tuple[Skipped, ...]:
        """Each reason once, in the order of their first lines."""
        return tuple(self._by_reason.values())


class Tally:
    """Everything the lines of one format said. Memory grows with the seconds a log spans, not with its lines.

    Lines weighted in steps are kept to the second: those of one second and equal rows are one sample.
    """

    def __init__(self, format: LogFormat) -> None:
        self.format = format
        self.lines = 0
        self.restarts = 0
        self.missing = 0
        self.skips = Skips()
        self._steps: Counter[tuple[int | None, int]] = Counter()
        self._series: dict[str, Series] = {}
        self._mixed: Counter[tuple[str, int, int | None]] = Counter()
        self._eager: Counter[int] = Counter()
        self._flagged = False
        self._context = [0, 0]
        self._voices: dict[str, str] = {}
        self._counters: dict[str, int] = {}

    def add(self, line_number: int, line: str, now: int | None) -> None:
        """One line with the format's needle, at `now` nanoseconds."""
        try:
            reading = self.format.read(line)
        except RowError as bad:
            self.skips.add(bad.reason, line_number)
            return
        if reading is None:
            return
        if isinstance(reading, Decode) and self._voices.setdefault(reading.engine, reading.voice) != reading.voice:
            self.skips.add("another rank's copy of its engine's line", line_number)
            return
        self.lines += 1
        self._follow(reading)
        if isinstance(reading, Mixed):
            self._mixed[reading.mode, reading.tokens, reading.padded] += reading.weight
        else:
            self._decode(reading, now if reading.at is None else reading.at)

    def _decode(self, reading: Decode, at: int | None) -> None:
        if self.format.unit == "seconds":
            self._series.setdefault(reading.engine, Series()).add(at, reading.rows)
        else:
            self._steps[at and at // NS_PER_S, reading.rows] += reading.weight
        if reading.graphed is not None:
            self._flagged = True
            self._eager[reading.rows] += 0 if reading.graphed else reading.weight
        if reading.tokens is not None:
            self._context[0] += reading.tokens
            self._context[1] += reading.rows

    def _follow(self, reading: Decode | Mixed) -> None:
        """Notes a counter that goes back, as after a new start, and one that leaves steps out."""
        if reading.counter is None:
            return
        expected = self._counters.get(reading.engine, reading.counter - 1) + 1
        self.restarts += reading.counter < expected
        self.missing += max(reading.counter - expected, 0)
        self._counters[reading.engine] = reading.counter

    @property
    def engines(self) -> int:
        """Engines, or processes of them, whose lines are told apart."""
        return len(self._voices)

    @property
    def has_rows(self) -> bool:
        """Whether any line had a decode step in it."""
        if self.format.unit == "seconds":
            return any(rows > 0 for series in self._series.values() for rows in series.rows)
        return any(rows > 0 for _, rows in self._steps)

    @property
    def mean_width(self) -> float | None:
        """Tokens of context a row, None where no line tells."""
        tokens, rows = self._context
        return tokens / rows if rows else None

    def timed_rows(self, settings: ServerSettings) -> tuple[TimedRows, list[str]]:
        """The weights in time order, and what has to be said of how they were had."""
        if self.format.unit == "seconds":
            weighed = weigh(list(self._series.values()))
            return timed(weighed), list(weighing_notes(weighed))
        scale = self.format.scale(settings)
        items = sorted(self._steps.items(), key=lambda item: (item[0][0] is not None, item[0]))
        return [(at if at is None else at * NS_PER_S, rows, weight * scale) for (at, rows), weight in items], []

    def mixed(self, settings: ServerSettings) -> tuple[MixedSteps, ...]:
        """Steps with prefill, the most frequent first."""
        scale = self.format.scale(settings)
        found = (
            MixedSteps(mode, tokens, padded, weight * scale) for (mode, tokens, padded), weight in self._mixed.items()
        )
        return tuple(sorted(found, key=lambda some: (-some.weight, some.mode, some.tokens)))

    def eager(self, settings: ServerSettings, rows: RowWeights) -> Eager | None:
        """What no graph served: as the lines say, as mode NONE lets one guess, or as the capture list implies."""
        top = max(settings.capture_sizes, default=0) if settings.capture_sizes is not None else None
        if self._flagged:
            scale = self.format.scale(settings)
            return eager_of({size: weight * scale for size, weight in self._eager.items()}, "the lines say so")
        off_graph = Counter[int]()
        for (mode, tokens, _), weight in self._mixed.items():
            if mode == "NONE" and (top is None or tokens > top):
                off_graph[tokens] += weight
        if off_graph:
            where = "" if top is None else f" above the list's largest, {top}"
            basis = f"mode NONE{where}: decode steps off the list or steps with prefill, the table does not tell"
            return eager_of(off_graph, basis)
        return above_the_list(rows, top)


def above_the_list(rows: RowWeights, top: int | None) -> Eager | None:
    """The rows above the largest captured size `top` (0 where nothing is captured); None where it is not known."""
    if top is None:
        return None
    basis = f"rows above the list's largest, {top}" if top else "the server captures no graph"
    return eager_of({size: weight for size, weight in rows if size > top}, basis)


def eager_of(weights: Mapping[int, float], basis: str) -> Eager:
    """An `Eager` of weights by size."""
    sizes = tuple(sorted((size, weight) for size, weight in weights.items() if size > 0 and weight > 0))
    return Eager(sum(weight for _, weight in sizes), sizes, basis)


def rows_and_samples(weighted: TimedRows) -> tuple[RowWeights, float, tuple[Sample, ...] | None]:
    """The weights by rows, the idle weight, and the samples; None for those where a sample has no time."""
    by_rows: dict[int, float] = {}
    for _, rows, weight in weighted:
        by_rows[rows] = by_rows.get(rows, 0) + weight
    idle = by_rows.pop(0, 0.0)
    stamps = [at for at, _, _ in weighted if at is not None]
    samples = None
    if stamps:
        first = stamps[0]
        # What stands before the first stamp of a file has its time.
        samples = tuple(
            Sample(((first if at is None else at) - first) / NS_PER_S, rows, weight)
            for at, rows, weight in weighted
            if rows
        )
    return tuple(sorted(by_rows.items())), idle, samples


def timed(weighed: Weighed) -> TimedRows:
    """Weighed samples as plain rows."""
    columns = (weighed.times.tolist(), weighed.rows.tolist(), weighed.weights.tolist())
    return [(None if at < 0 else at, rows, weight) for at, rows, weight in zip(*columns, strict=True)]


def weighing_notes(weighed: Weighed) -> Iterable[str]:
    """How samples were weighted by time."""
    if weighed.interval is None:
        yield "no engine has two samples an hour or less apart: each stands for one second"
        return
    yield f"each sample stands for the time to the next, the last for the median gap: {weighed.interval:g} s"
    if weighed.unbridged:
        yield f"{weighed.unbridged} gaps of over {LONGEST_GAP} times that, or over an hour, count as one gap each"
    if weighed.out_of_order:
        yield f"{weighed.out_of_order} samples stood after a later one and were sorted by time"
