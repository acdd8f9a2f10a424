"""Small traffic for the tests of `tune`: traces on disk, requests in memory, and the command itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner

from nanoserve.fitting import Axis
from nanoserve.step_time import FixedStep
from nanoserve.steps import Segment, Steps
from nanoserve.workload import Workload
from nanoserve_cli.app import app
from nanoserve_cli.traffic import TrafficOptions
from nanoserve_cli.tuning.evidence import Evidence, Load, Part
from nanoserve_cli.tuning.fits import Rules
from nanoserve_cli.tuning.gather import gather, simulated

STEP = FixedStep(25_000_000)


def tune_cli(*arguments: object) -> Any:
    """`nanoserve tune` in this process, 80 columns wide."""
    return CliRunner().invoke(app, ["tune", *map(str, arguments)], env={"COLUMNS": "80", "TERM": "dumb"})


def steady(requests: int, *, every_ms: int, prompt: int = 90, outputs: int = 13) -> Workload:
    """Equal requests at equal distances: on 25 ms steps `(outputs - 1) * 25 / every_ms` of them decode together."""
    arrival = np.arange(requests, dtype=np.int64) * every_ms * 1_000_000
    return Workload(arrival, np.full(requests, prompt, np.int64), np.full(requests, outputs, np.int64))


def drawn(requests: int, *, seed: int = 3, every_ms: float = 40.0) -> Workload:
    """Requests of mixed lengths at random distances."""
    draw = np.random.default_rng(seed)
    gaps = (draw.exponential(every_ms, requests) * 1e6).astype(np.int64)
    return Workload(np.cumsum(gaps) - gaps[0], draw.integers(5, 120, requests), draw.integers(2, 60, requests))


def evidence(
    workload: Workload,
    *,
    loads: Sequence[float] = (1.0,),
    holdout: float = 0.3,
    limits: tuple[int, int] = (16, 256),
    has_traffic: bool = True,
) -> Evidence:
    """Requests as `gather` makes evidence of them, without a file."""
    made = tuple(simulated(workload, factor, limits[0], STEP, holdout) for factor in loads)
    return Evidence("drawn", "requests", made, True, *limits, size=(len(workload), "requests"), notes=())


def rules(limits: tuple[int, int] = (16, 256), budget: int = 8, granularity: int = 32) -> Rules:
    """Without constraints."""
    return Rules(Axis(limits[0]), Axis(limits[1], granularity), budget)


def run_of(*segments: tuple[int, int, int]) -> Steps:
    """Segments of `(rows, width, steps)`, one after the other, every row as long as the step is wide."""
    clock, made = 0, []
    for rows, width, steps in segments:
        made.append(Segment(clock, rows, width, steps, rows * (steps * width + steps * (steps - 1) // 2)))
        clock += steps
    return Steps.of(made)


def recorded(fit: Steps, held: Steps | None, *, limits: tuple[int, int] = (16, 256), inner: Any = None) -> Evidence:
    """Recorded steps, cut already."""
    load = Load(1.0, Part.of(fit), None if held is None else Part.of(held), inner)
    return Evidence("recorded", "steps", (load,), True, *limits, size=(fit.total_steps, "steps"), notes=())


def write_trace(path: Path, workload: Workload) -> Path:
    """A request trace as CSV."""
    columns = zip(*(c.tolist() for c in (workload.arrival_ns, workload.prompt_len, workload.output_len)), strict=True)
    lines = [f"{arrival / 1e9:.6f},{prompt},{outputs}\n" for arrival, prompt, outputs in columns]
    return write(path, ["arrived_at,num_prefill_tokens,num_decode_tokens\n", *lines])


def write(path: Path, lines: Iterable[str]) -> Path:
    """A text file."""
    path.write_text("".join(lines), encoding="utf-8")
    return path


def gathered(path: Path, **changes: Any) -> Evidence:
    """`gather` of a file."""
    settings: dict[str, Any] = {"max_batch_size": None, "max_model_len": 256} | changes
    return gather(TrafficOptions(source=str(path)), **settings)
