"""Lists under their own cost: padding slows steps, slow steps gather rows, and rows change what the padding costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from nanoserve.simulate import simulate
from nanoserve.step_time import StepTime
from nanoserve_cli.tuning.candidates import Candidate
from nanoserve_cli.tuning.evidence import Evidence, Load


@dataclass(frozen=True)
class Settled:
    """One load as it would run under one list, from the moment on at which the held-out part begins.

    `ms_per_token` is the mean time that a row spends in a decode step, which makes it a token: what users wait. The
    seconds of all steps would not do, for a server that is never idle is as busy under any list. `longest_wait` is in
    steps, of the whole run.
    """

    candidate: Candidate
    factor: float
    steps: int
    ms_per_token: float
    mean_rows: float
    longest_wait: int


def settle(evidence: Evidence, candidates: Iterable[Candidate], step_time: StepTime) -> tuple[Settled, ...]:
    """Simulates every load anew under each list. ValueError where the source holds no requests, or a run no decode
    step in its last part.
    """
    lists = list(candidates)
    return tuple(_settled(load, one, evidence.max_batch_size, step_time) for load in evidence.loads for one in lists)


def _settled(load: Load, candidate: Candidate, max_batch_size: int, step_time: StepTime) -> Settled:
    if load.workload is None:
        raise ValueError("a step time that depends on the shape needs requests to simulate: this source has none")
    run = simulate(load.workload, max_batch_size, step_time=step_time, policy=candidate.policy)
    steps = run.steps.between(run.cut_at(load.cut_ns), run.clock.end_step)
    if not len(steps):
        raise ValueError(f"load {load.factor:g}: {candidate.name} leaves no decode step to the part held out")
    # Within a segment the steps may differ in length; the rows do not, so that its first and last moment tell all.
    lasting = run.clock.end_of(steps.start_step + steps.steps - 1) - run.clock.start_of(steps.start_step)
    tokens = int((steps.rows * steps.steps).sum())
    return Settled(
        candidate,
        load.factor,
        steps.total_steps,
        float(steps.rows @ lasting) / tokens / 1e6,
        float(np.average(steps.rows, weights=steps.steps)),
        run.max_waiting_steps,
    )
