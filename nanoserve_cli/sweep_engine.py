"""What of a sweep needs torch: dynamo's compiles, the capture bill, and points that are really run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from nanoserve.buckets import CaptureList, Shape
from nanoserve.capture_bill import price_shapes
from nanoserve.decode import RunnerOptions
from nanoserve.decode.counting import count_compiles_each
from nanoserve.engine import Engine
from nanoserve.model_worker import ModelWorker
from nanoserve.pricing import RunCost
from nanoserve.step_time import FixedStep, parse_step_time
from nanoserve_cli.capture import MIB, CaptureRate, bill_for
from nanoserve_cli.compare import ClockSettings, Comparison, EngineSettings, RunUnsound, compare
from nanoserve_cli.grid import Measurement, Point
from nanoserve_cli.model_choice import ModelChoice, choose_model
from nanoserve_cli.pricer import load
from nanoserve_cli.records import count_columns, time_columns
from nanoserve_cli.stats import Spread

BLOCK_SIZE = 16
CAPTURE_MIB_LIMIT, CAPTURE_SECONDS_LIMIT = 4096, 120.0


@lru_cache(maxsize=1)
def chosen_model(measurement: Measurement, seed: int) -> ModelChoice:
    """The model of a sweep, loaded once in a process. Raises what `choose_model` raises."""
    return choose_model(measurement.model, device=measurement.device, dtype=measurement.dtype, seed=seed)


@dataclass(frozen=True)
class CompileBook:
    """Dynamo's compiles and recompiles of every distinct shape of a sweep."""

    each: dict[Shape, tuple[int, int]]

    @classmethod
    def of(cls, choice: ModelChoice, shapes: Iterable[Shape]) -> CompileBook:
        """Presents each shape to a compiled decode step, once for the whole sweep, and once more when it is warm."""
        captures = CaptureList(shapes)
        limits = captures.max_batch_size, captures.max_model_len
        blocks_per_row = -(-captures.max_model_len // BLOCK_SIZE)
        engine = Engine.build(
            choice.decoder, *limits, block_size=BLOCK_SIZE, num_blocks=blocks_per_row, policy=captures
        )
        assert isinstance(engine.worker, ModelWorker)
        return cls(count_compiles_each(engine.worker, captures))

    def columns(self, cost: RunCost) -> dict[str, Any]:
        """The compile columns of one point: what its used shapes cost."""
        counts = [self.each[shape] for shape, _ in cost.steps_per_shape]
        return {
            "compiles_bucketed": sum(compiles for compiles, _ in counts),
            "recompiles_bucketed": sum(recompiles for _, recompiles in counts),
        }


class BillBook:
    """The predicted capture bill of policies: the pool's MiB from their largest shapes, seconds from two captures."""

    def __init__(self, choice: ModelChoice) -> None:
        assert choice.decoder is not None
        self._decoder = choice.decoder
        self._live: dict[Shape, int] = {}

    @cached_property
    def _rate(self) -> CaptureRate:
        return CaptureRate.sample(self._decoder, 16, 2048, graph_backend="auto")

    def columns(self, shapes: Sequence[Shape]) -> dict[str, Any]:
        """The predicted columns of one closed set."""
        largest = undominated(shapes)
        missing = [shape for shape in largest if shape not in self._live]
        if missing:
            prices = price_shapes(self._decoder.config, missing, self._decoder.dtype)
            self._live |= {price.shape: price.live_bytes for price in prices}
        return {
            "capture_mib": max(self._live[shape] for shape in largest) / MIB,
            "capture_s": self._rate.seconds(shapes)[1],
        }


def undominated(shapes: Sequence[Shape]) -> list[Shape]:
    """The shapes that no other covers on both axes. A live set grows with each axis, so one of them has the largest."""
    kept: list[Shape] = []
    widest = 0
    for shape in sorted(shapes, key=lambda shape: (-shape.rows, -shape.width)):
        if shape.width > widest:
            kept.append(shape)
            widest = shape.width
    return kept


def measure_point(task: tuple[Point, RunCost]) -> dict[str, Any]:
    """Runs a point open and bucketed, `repeats` times: its count and time columns, and what its captures took.

    A task is a point and its price. Raises RunUnsound where what ran does not add up to it or differs between repeats,
    and what `compare` raises.
    """
    point, cost = task
    assert point.measurement is not None
    choice = chosen_model(point.measurement, point.seed)
    runs = [_compared(point, choice) for _ in range(point.repeats)]
    counts = [count_columns(run) for run in runs]
    for number, (run, found) in enumerate(zip(runs, counts, strict=True), 1):
        if run.cost != cost:
            raise RunUnsound(
                f"repeat {number} ran {run.cost.steps} steps and {run.cost.padded_cells} padded cells, the simulation "
                f"says {cost.steps} and {cost.padded_cells}"
            )
        if differing := [name for name in found if found[name] != counts[0][name]]:
            name = differing[0]
            raise RunUnsound(f"{name} is {counts[0][name]} in the first repeat and {found[name]} in repeat {number}")
    return counts[0] | _medians([time_columns(run, None) for run in runs]) | _captured(point, choice)


def _compared(point: Point, choice: ModelChoice) -> Comparison:
    assert point.measurement is not None
    step_time = parse_step_time(point.step_time)
    assert isinstance(step_time, FixedStep)
    settings = EngineSettings(
        policy=point.policy(),
        decoder=choice.decoder,
        runner=RunnerOptions(point.measurement.runner, point.measurement.compile_backend),
        block_size=BLOCK_SIZE,
    )
    workload = load(point.traffic, point.max_model_len).workload
    return compare(workload, settings, ClockSettings("virtual", step_time.step_ns, seed=point.seed))


def _medians(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the repeats; of several, the quartiles of the ratio are those over the repeats."""
    spreads = {name: Spread.of(np.array([run[name] for run in runs if run[name] is not None])) for name in runs[0]}
    merged: dict[str, Any] = {name: spread and spread.median for name, spread in spreads.items()}
    ratio = spreads["step_ratio"]
    if ratio is not None and len(runs) > 1:
        merged |= {"step_ratio_low": ratio.low, "step_ratio_high": ratio.high}
    return merged


def _captured(point: Point, choice: ModelChoice) -> dict[str, Any]:
    """What capturing the point's whole set took, if that is affordable; empty columns where it is not."""
    assert choice.decoder is not None
    bill = bill_for(
        choice.decoder,
        point.policy(),
        block_size=BLOCK_SIZE,
        num_blocks=None,
        graph_backend="auto",
        graph_limit=None,
        pool_limit=None,
        byte_limit=CAPTURE_MIB_LIMIT * MIB,
        second_limit=CAPTURE_SECONDS_LIMIT,
    )
    if bill.not_captured is not None or bill.too_large:
        return {}
    seconds = sum(measured.capture_seconds + measured.warm_up_seconds for measured in bill.measured.values())
    return {"capture_s_measured": seconds, "capture_mib_measured": (bill.held_bytes or 0) / MIB}
