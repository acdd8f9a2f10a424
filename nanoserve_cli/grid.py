"""The points of a sweep: lists of settings, their product or their pairs, each point a traffic under a policy."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from typing import Any

from nanoserve.buckets import CaptureList, DecodeBuckets
from nanoserve.gates import CAPTURE_LIMIT
from nanoserve.ladders import capture_list, completed, row_ladder, width_ladder
from nanoserve_cli.traffic import TrafficOptions

PLACES = ("trace_dir",)
"""Fields of the traffic that say where a file is found, not what it holds."""


@dataclass(frozen=True)
class Lockstep:
    """Equal requests that decode together: what `nanoserve bench` runs without traffic."""

    rows: int = 3
    prompt: int = 16
    steps: int = 512

    @property
    def label(self) -> str:
        """Its name in a table."""
        return (
            f"lockstep-{self.steps}"
            if self.rows == 3 and self.prompt == 16
            else (f"lockstep-{self.rows}x{self.prompt}+{self.steps}")
        )


@dataclass(frozen=True)
class Measurement:
    """How points are run where they are run: the model, what runs a step, and on what."""

    model: str = "tiny"
    runner: str = "eager"
    compile_backend: str = "count"
    device: str = "auto"
    dtype: str = "auto"


@dataclass(frozen=True)
class Point:
    """One traffic under one policy. `completed` is false for a list as its system has it, without its maxima."""

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
        traffic = self.traffic.label if isinstance(self.traffic, Lockstep) else self.traffic.source or "synthetic"
        form = "" if self.completed else " as it is"
        return f"{traffic} {self.max_batch_size}x{self.max_model_len} {self.rows_ladder} {self.width_ladder}{form}"

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
            "repeats": self.repeats,
        }

    def config_hash(self, **more: Any) -> str:
        """Of everything that can move a figure of its row; the trace's content is told by its own sha256."""
        document = asdict(self) | more
        for place in PLACES:
            document["traffic"].pop(place, None)
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class SweepSpec:
    """What to sweep. The five lists make the grid; the rest is the same for every point.

    Raises ValueError for an empty list, lists that cannot be linked, or limits and ladders that do not go together.
    """

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
    measure: bool = False
    measure_compiles: bool | None = None
    measurement: Measurement = Measurement()

    def points(self) -> tuple[Point, ...]:
        """Every point in the grid's order: by traffic, model length, batch, row ladder, width ladder, and form."""
        return tuple(
            point for traffic in self.traffic for setting in self._settings() for point in self._forms(traffic, setting)
        )

    def _settings(self) -> Iterator[tuple[int, int, str, str]]:
        lists = (self.max_model_len, self.max_batch, self.rows_ladder, self.width_ladder)
        for name, values in zip(("max_model_len", "max_batch", "rows_ladder", "width_ladder"), lists, strict=True):
            if not values:
                raise ValueError(f"{name} lists nothing: the grid has no point")
        if not self.link:
            return iter(product(*lists))
        longest = max(map(len, lists))
        if any(len(values) not in {1, longest} for values in lists):
            raise ValueError(
                f"link pairs lists of one length; max_model_len, max_batch, rows_ladder and width_ladder have "
                f"{', '.join(str(len(values)) for values in lists)} entries"
            )
        return zip(*(values * longest if len(values) == 1 else values for values in lists), strict=True)

    def _forms(self, traffic: Lockstep | TrafficOptions, setting: tuple[int, int, str, str]) -> Iterator[Point]:
        """A complete ladder is one point; one that lacks its maxima is two: as its system has it, and completed."""
        max_model_len, max_batch, rows, widths = setting
        _check_fits(traffic, max_batch, max_model_len)
        whole = (
            row_ladder(rows, max_batch)[-1] == max_batch and width_ladder(widths, max_model_len)[-1] == max_model_len
        )
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
        if not whole:
            yield replace(point, completed=False)
        yield point


def _check_fits(traffic: Lockstep | TrafficOptions, max_batch: int, max_model_len: int) -> None:
    if not isinstance(traffic, Lockstep):
        return
    if traffic.rows > max_batch:
        raise ValueError(f"a lockstep run of {traffic.rows} rows does not fit max_batch {max_batch}")
    if traffic.prompt + traffic.steps > max_model_len:
        raise ValueError(
            f"a prompt of {traffic.prompt} and {traffic.steps} steps need {traffic.prompt + traffic.steps} slots, "
            f"max_model_len is {max_model_len}"
        )


SPEC_FIELDS = tuple(field.name for field in fields(SweepSpec))
