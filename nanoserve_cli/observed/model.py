"""The result of every reader here, and what the readers of log lines hand over."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from nanoserve.steps import Steps
from nanoserve_cli.observed.settings import ServerSettings
from nanoserve_cli.workload.readers import Skipped, Trace

Unit = Literal["steps", "seconds"]

RowWeights = tuple[tuple[int, float], ...]
"""`(rows, weight)`, ascending in rows, every weight above 0."""


class Sample(NamedTuple):
    """`weight` steps or seconds with `rows` rows, `seconds` after the first sample of the file."""

    seconds: float
    rows: int
    weight: float


class MixedSteps(NamedTuple):
    """Steps that carried prefill, or may have: `tokens` is what they ran, `padded` what they were padded to.

    `mode` is vLLM's runtime mode, or `context` for iterations with context requests. `padded` is None where
    the source does not say.
    """

    mode: str
    tokens: int
    padded: int | None
    weight: float


@dataclass(frozen=True)
class Eager:
    """Weight that no captured graph served, by size. `basis` says how that is known and how surely."""

    weight: float
    rows: RowWeights
    basis: str


@dataclass(frozen=True, eq=False)
class Observed:
    """What a server recorded. Exactly one of `workload`, `steps` and `rows` is there.

    `rows` weighs the rows of decode steps by how many steps had them, or for how many seconds they ran
    (`weight_unit`); it has no widths. `samples` are the same weights in time order, or None, and then `untimed`
    says why; a `Trace` and `Steps` have their own order. `idle` is the weight of samples without a row.

    `capture_sizes` (ascending) and `max_batch` are the server's own, where the file holds them. `eager` is None
    where nothing tells; `mixed` are steps with prefill, the most frequent first, not in `rows`.
    `mean_width` is tokens of context a row: a lower bound of the widths. `skipped` counts lines that were of
    this kind and could not be read; `notes` say what the source cannot know and what was assumed.

    Raises ValueError where not exactly one of the three is given, or `rows` is empty.
    """

    path: str
    kind: str
    about: str
    workload: Trace | None = None
    steps: Steps | None = None
    rows: RowWeights | None = None
    weight_unit: Unit | None = None
    samples: tuple[Sample, ...] | None = None
    untimed: str = ""
    idle: float = 0.0
    capture_sizes: tuple[int, ...] | None = None
    max_batch: int | None = None
    mean_width: float | None = None
    eager: Eager | None = None
    mixed: tuple[MixedSteps, ...] = ()
    lines_read: int = 0
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if sum(part is not None for part in (self.workload, self.steps, self.rows)) != 1:
            raise ValueError("an observation has exactly one of a workload, steps and rows")
        if self.rows is not None and not self.rows:
            raise ValueError("an observation of rows needs at least one")

    @property
    def total_weight(self) -> float:
        """The weight of all rows, in `weight_unit`; 0 where there are none."""
        return sum(weight for _, weight in self.rows or ())


class Decode(NamedTuple):
    """One log line about a batch that decodes; `rows` is 0 where nothing ran.

    `weight` is in steps and has no meaning where the format is weighted by time. `engine` tells apart engines
    with batches of their own; `voice` tells ranks apart that repeat one engine's line. `graphed` is whether a
    captured graph served it, `tokens` the context of all rows, `at` a time in ns that the line gives
    outside its prefix; each None where the line does not say. `counter` is the server's number of the step.
    """

    rows: int
    weight: int = 1
    engine: str = ""
    voice: str = ""
    graphed: bool | None = None
    tokens: int | None = None
    at: int | None = None
    counter: int | None = None


class Mixed(NamedTuple):
    """One log line about steps with prefill, or that may have had some; as `MixedSteps` and `Decode`."""

    mode: str
    tokens: int
    padded: int | None = None
    weight: int = 1
    engine: str = ""
    counter: int | None = None


LineReader = Callable[[str], Decode | Mixed | None]
"""A line to what it says; None where it is no line of this kind; RowError where it is one, and broken."""


@dataclass(frozen=True)
class LogFormat:
    """A kind of log line, as the detection and `format=` know it.

    Every such line contains `needle`: only those are handed to `read`. `unit` is what a line is weighted by;
    a line weighted in steps stands for `scale(settings)` times its own weight. `notes` are what the lines
    cannot tell, and what was assumed.
    """

    name: str
    about: str
    needle: str
    read: LineReader
    unit: Unit
    notes: Callable[[ServerSettings], Iterable[str]]
    scale: Callable[[ServerSettings], int] = lambda settings: 1
