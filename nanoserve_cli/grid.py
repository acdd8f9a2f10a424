"""The points of a sweep: lists of settings, their product or their pairs, each point a traffic under a policy."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

from nanoserve.buckets import CaptureList, DecodeBuckets
from nanoserve.decode import RunnerOptions
from nanoserve.gates import CAPTURE_LIMIT
from nanoserve.ladders import capture_list, completed, row_ladder, width_ladder
from nanoserve_cli.traffic import TrafficOptions

PLACES = ("trace_dir",)
"""Fields of the traffic that say where a file is found, not what it holds."""

Setting = tuple[int, int, str, str]
"""A model length, a batch, a row rule and a width rule."""


@dataclass(frozen=True)
class Lockstep:
    """Equal requests that decode together: what `nanoserve bench` runs without traffic."""

    rows: int = 3
    prompt: int = 16
    steps: int = 512

    @property
    def label(self) -> str:
        """Its name in a table: `lockstep-STEPS` as in a bench, with its rows and prompt where they are others."""
        usual = (self.rows, self.prompt) == (Lockstep.rows, Lockstep.prompt)
        return f"lockstep-{self.steps}" if usual else f"lockstep-{self.rows}x{self.prompt}+{self.steps}"


@dataclass(frozen=True)
class Measurement:
    """Whose steps are compiled, billed and run, what runs them, and on what. ValueError for an unknown runner."""

    model: str = "tiny"
    runner: str = "eager"
    compile_backend: str = "count"
    device: str = "auto"
    dtype: str = "auto"

    def __post_init__(self) -> None:
        RunnerOptions(self.runner, self.compile_backend)


@dataclass(frozen=True)
class Point:
    """One traffic under one policy. `completed` is false for a list as its system has it, without its maxima.

    `measurement` is None where nothing is run, and `repeats` is then 1.
    """

    traffic: Lockstep | TrafficOptions
    max_batch_size: int
    max_model_len: int
    rows_ladder: str
    width_ladder: str
    completed: bool
    step_time: str
    seed: int
    repeats: int
    measurement: Measurement | None

    @property
    def label(self) -> str:
        """Its traffic and settings in a line."""
        source = self.traffic.label if isinstance(self.traffic, Lockstep) else self.traffic.source or "synthetic"
        form = "" if self.completed else " as it is"
        limits = f"{self.max_batch_size}x{self.max_model_len}"
        return f"{self.workload(source)} {limits} {self.rows_ladder} {self.width_ladder}{form}"

    def workload(self, source: str) -> str:
        """The traffic in words: `source`, and what of it is asked for."""
        settings = "" if isinstance(self.traffic, Lockstep) else self.traffic.settings
        return f"{source} {settings}".rstrip()

    @cached_property
    def ladders(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Its row and width buckets as the two rules have them, before a maximum is added."""
        return row_ladder(self.rows_ladder, self.max_batch_size), width_ladder(self.width_ladder, self.max_model_len)

    @property
    def lacks_maxima(self) -> bool:
        """Whether a ladder ends below its maximum, so that there are steps off the list until it is completed."""
        rows, widths = self.ladders
        return (rows[-1], widths[-1]) != (self.max_batch_size, self.max_model_len)

    def policy(self) -> DecodeBuckets | CaptureList:
        """What decode steps run under."""
        make = completed if self.completed else capture_list
        return make(self.rows_ladder, self.width_ladder, self.max_batch_size, self.max_model_len)

    def settings(self) -> dict[str, Any]:
        """The setting columns of its row, but for the traffic's and the policy's words."""
        return {
            "max_batch_size": self.max_batch_size,
            "max_model_len": self.max_model_len,
            "rows_ladder": self.rows_ladder,
            "width_ladder": self.width_ladder,
            "completed": self.completed,
            "clock": "virtual",
            "step_time": self.step_time,
            "repeats": None if self.measurement is None else self.repeats,
        }

    def config_hash(self, **more: Any) -> str:
        """Of everything that can move a figure of its row; the trace's content is told by its own sha256."""
        document = asdict(self) | more
        for place in PLACES:
            document["traffic"].pop(place, None)
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class SweepSpec:
    """What to sweep. The five lists make the grid; the rest is the same for every point."""

    traffic: tuple[Lockstep | TrafficOptions, ...] = (Lockstep(),)
    max_model_len: tuple[int, ...] = (8192,)
    max_batch: tuple[int, ...] = (8,)
    rows_ladder: tuple[str, ...] = ("pow2",)
    width_ladder: tuple[str, ...] = ("multiple:128",)
    link: bool = False
    step_time: str = "25"
    seed: int = 0
    repeats: int = 1
    budget_graphs: int = CAPTURE_LIMIT
    budget_mib: float | None = None
    host_only: bool = False
    measure: bool = False
    measure_compiles: bool | None = None
    measurement: Measurement = Measurement()

    @property
    def has_recorded_traffic(self) -> bool:
        """Whether a trace is looked up."""
        return any(isinstance(traffic, TrafficOptions) and traffic.source is not None for traffic in self.traffic)

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """Every point in the grid's order: by traffic, model length, batch, row ladder, width ladder, and form.

        Raises ValueError for an empty list, lists that cannot be linked, a point that is there twice, and limits,
        ladders and traffic that do not go together.
        """
        settings = tuple(self._settings())
        points = tuple(
            point for traffic in self.traffic for setting in settings for point in self._forms(traffic, setting)
        )
        if not points:
            raise ValueError("one of the lists is empty: the grid has no point")
        if twice := [point for point, times in Counter(points).items() if times > 1]:
            raise ValueError(f"the grid has a point twice: {twice[0].label}")
        return points

    def _settings(self) -> Iterator[Setting]:
        lists = (self.max_model_len, self.max_batch, self.rows_ladder, self.width_ladder)
        if not self.link:
            return iter(product(*lists))
        longest = max(map(len, lists))
        if any(len(values) not in {1, longest} for values in lists):
            raise ValueError(
                f"link pairs lists of one length; max_model_len, max_batch, rows_ladder and width_ladder have "
                f"{', '.join(str(len(values)) for values in lists)} entries"
            )
        return zip(*(values * longest if len(values) == 1 else values for values in lists), strict=True)

    def _forms(self, traffic: Lockstep | TrafficOptions, setting: Setting) -> Iterator[Point]:
        """A complete ladder is one point; one that lacks its maxima is two: as its system has it, and completed."""
        max_model_len, max_batch, rows, widths = setting
        _check_fits(traffic, max_batch, max_model_len)
        point = Point(
            traffic=traffic,
            max_batch_size=max_batch,
            max_model_len=max_model_len,
            rows_ladder=rows,
            width_ladder=widths,
            completed=True,
            step_time=self.step_time,
            seed=self.seed,
            repeats=self.repeats,
            measurement=self.measurement if self.measure else None,
        )
        if point.lacks_maxima:
            yield replace(point, completed=False)
        yield point


def _check_fits(traffic: Lockstep | TrafficOptions, max_batch: int, max_model_len: int) -> None:
    if not isinstance(traffic, Lockstep):
        return
    if traffic.rows > max_batch:
        raise ValueError(
            f"a lockstep run of {traffic.rows} rows does not fit max_batch {max_batch}: ask for fewer rows or a larger "
            "max_batch"
        )
    needed = traffic.prompt + traffic.steps
    if needed > max_model_len:
        raise ValueError(
            f"a prompt of {traffic.prompt} and {traffic.steps} steps need {needed} slots, max_model_len is "
            f"{max_model_len}: ask for fewer steps or a larger max_model_len"
        )
