"""What of a sweep needs torch: dynamo's compiles, the capture bill, and points that are really run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch

from nanoserve.buckets import CaptureList, DecodePolicy, Shape
from nanoserve.build import default_device
from nanoserve.capture_bill import price_shapes
from nanoserve.decode import RunnerOptions
from nanoserve.decode.compiled import check_compiler
from nanoserve.decode.counting import count_compiles_each
from nanoserve.engine import Engine
from nanoserve.model.config import check_supports
from nanoserve.model.decoder import Decoder
from nanoserve.model.errors import UnsupportedModel
from nanoserve.model_worker import ModelWorker
from nanoserve.pricing import RunCost
from nanoserve.step_time import FixedStep, parse_step_time
from nanoserve.workload import Workload
from nanoserve_cli.capture import MIB, CaptureRate, bill_for
from nanoserve_cli.compare import ClockSettings, Comparison, EngineSettings, RunUnsound, compare
from nanoserve_cli.grid import Measurement, Point
from nanoserve_cli.model_choice import ModelChoice, choose_model
from nanoserve_cli.pricer import load
from nanoserve_cli.provenance import machine
from nanoserve_cli.records import count_columns, time_columns
from nanoserve_cli.stats import Spread

BLOCK_SIZE = 16
CAPTURE_MIB_LIMIT, CAPTURE_SECONDS_LIMIT = 4096, 120.0


@lru_cache(maxsize=1)
def chosen_model(measurement: Measurement, seed: int) -> ModelChoice:
    """The model of a sweep, loaded once in a process. Raises what `choose_model` raises."""
    return choose_model(measurement.model, device=measurement.device, dtype=measurement.dtype, seed=seed)


class SweepEngine:
    """The columns of every row that need a model: compiles, once `compile` has counted them, and the capture bill.

    Raises what `choose_model` raises; CompilerMissing where points are to run compiled and there is no compiler.
    """

    def __init__(self, measurement: Measurement, seed: int, *, runs: bool) -> None:
        # A worker runs on what is found here: where it sees a GPU that it did not ask for, others use it.
        device = default_device() if measurement.device == "auto" else measurement.device
        self.measurement = replace(measurement, device=device)
        self.choice = chosen_model(self.measurement, seed)
        assert self.choice.decoder is not None
        if runs and measurement.runner == "compiled":
            check_compiler(measurement.compile_backend, torch.device(device))
        self._bills = BillBook(self.choice.decoder)
        self._compiles: dict[Shape, tuple[int, int]] | None = None

    @property
    def identity(self) -> dict[str, str | None]:
        """What of the model can move a figure: itself, and what it was found to run on and in."""
        choice = self.choice
        return {"model": choice.name, "sha256": choice.sha256, "device": choice.device, "dtype": choice.dtype}

    def refusal(self, max_model_len: int) -> str | None:
        """Why the model cannot serve so long a context; None where it can."""
        assert self.choice.decoder is not None
        try:
            check_supports(self.choice.decoder.config, max_model_len)
        except UnsupportedModel as error:
            return str(error)
        return None

    def step_mib(self, shapes: Iterable[Shape]) -> float:
        """MiB that a step of the largest of `shapes` holds at a time: compiling it runs it once. 0.0 for no shape."""
        return self._bills.live_bytes(sorted(shapes)) / MIB

    def compile(self, shapes: Iterable[Shape], report: Callable[[int], None]) -> None:
        """Presents each shape to a compiled decode step, once for the whole sweep, and once more when all are warm."""
        captures, done = CaptureList(shapes), 0

        def count(_: Shape) -> None:
            nonlocal done
            done += 1
            report(done)

        limits = captures.max_batch_size, captures.max_model_len
        one_row = -(-captures.max_model_len // BLOCK_SIZE)
        engine = Engine.build(self.choice.decoder, *limits, block_size=BLOCK_SIZE, num_blocks=one_row, policy=captures)
        assert isinstance(engine.worker, ModelWorker)
        self._compiles = count_compiles_each(engine.worker, captures, progress=count)

    def columns(self, policy: DecodePolicy | CaptureList, cost: RunCost) -> dict[str, Any]:
        """The predicted bill of a policy, and where they were counted the compiles of the shapes that a run used.

        No bill where the model cannot serve the policy's length.
        """
        columns = {} if self.refusal(policy.max_model_len) else self._bills.columns(policy.shapes)
        if self._compiles is not None:
            counts = [self._compiles[shape] for shape, _ in cost.steps_per_shape]
            columns["compiles_bucketed"] = sum(compiles for compiles, _ in counts)
            columns["recompiles_bucketed"] = sum(recompiles for _, recompiles in counts)
        return columns


class BillBook:
    """The predicted capture bill of policies: the pool's MiB from their largest shapes, seconds from two captures."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._live: dict[Shape, int] = {}

    @cached_property
    def _rate(self) -> CaptureRate:
        config = self._decoder.config
        widest = min(2048, config.max_position_embeddings, config.sliding_window or 2048)
        return CaptureRate.sample(self._decoder, 16, widest, graph_backend="auto")

    def live_bytes(self, shapes: Sequence[Shape]) -> int:
        """The largest live set of ascending shapes; 0 for none."""
        largest = undominated(shapes)
        missing = [shape for shape in largest if shape not in self._live]
        if missing:
            prices = price_shapes(self._decoder.config, missing, self._decoder.dtype)
            self._live |= {price.shape: price.live_bytes for price in prices}
        return max((self._live[shape] for shape in largest), default=0)

    def columns(self, shapes: Sequence[Shape]) -> dict[str, Any]:
        """The predicted columns of one closed set, ascending."""
        return {"capture_mib": self.live_bytes(shapes) / MIB, "capture_s": self._rate.seconds(shapes)[1]}


def undominated(shapes: Sequence[Shape]) -> list[Shape]:
    """Of ascending shapes those that no other covers on both axes: a live set grows with each, so the largest is here.

    Descending in rows, ascending in width.
    """
    kept: list[Shape] = []
    for shape in reversed(shapes):
        if not kept or shape.width > kept[-1].width:
            kept.append(shape)
    return kept


@dataclass(frozen=True)
class Task:
    """A point to run, on what, what it was priced at, and the sum of the trace file that it was priced from."""

    point: Point
    measurement: Measurement
    cost: RunCost
    trace_sha256: str | None


def measure_point(task: Task) -> dict[str, Any]:
    """Runs a point open and bucketed, `repeats` times: its count and time columns, what captures took, the machine.

    Raises RunUnsound where the trace is not what was priced, where what ran does not add up to the price or differs
    between repeats, and what `compare` raises.
    """
    point = task.point
    choice = chosen_model(task.measurement, point.seed)
    traffic = load(point.traffic, point.max_model_len)
    if traffic.trace is not None and traffic.trace.sha256 != task.trace_sha256:
        raise RunUnsound(f"{traffic.trace.path} is another file than was priced: it changed, or the worker's differs")
    runner = RunnerOptions(task.measurement.runner, task.measurement.compile_backend)
    runs = [_compared(point, traffic.workload, choice, runner) for _ in range(point.repeats)]
    counts = [count_columns(run) for run in runs]
    for number, (run, found) in enumerate(zip(runs, counts, strict=True), 1):
        if run.cost != task.cost:
            raise RunUnsound(
                f"repeat {number} ran {run.cost.steps} steps and {run.cost.padded_cells} padded cells, the simulation "
                f"says {task.cost.steps} and {task.cost.padded_cells}"
            )
        if differing := [name for name in found if found[name] != counts[0][name]]:
            name = differing[0]
            raise RunUnsound(f"{name} is {counts[0][name]} in the first repeat and {found[name]} in repeat {number}")
    return (
        machine(choice.device)
        | counts[0]
        | _medians([time_columns(run, None) for run in runs])
        | _captured(point, choice)
    )


def _compared(point: Point, workload: Workload, choice: ModelChoice, runner: RunnerOptions) -> Comparison:
    step_time = parse_step_time(point.step_time)
    assert isinstance(step_time, FixedStep)
    settings = EngineSettings(
        policy=point.policy(),
        decoder=choice.decoder,
        runner=runner,
        block_size=BLOCK_SIZE,
        count_compiles=False,
    )
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
