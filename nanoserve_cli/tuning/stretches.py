"""Stretches of a simulated run as workloads of their own: replayed, they are the same decode steps."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from nanoserve.simulate import Simulation
from nanoserve.steps import Steps
from nanoserve.workload import Workload


@dataclass(frozen=True, eq=False)
class Stretch:
    """Requests whose replay on the grid of the run takes exactly `steps`, numbered from 1 on."""

    workload: Workload
    steps: Steps


def stretches(
    workload: Workload, run: Simulation, *, step_ns: int, first_step: int, steps: int, count: int
) -> list[Stretch]:
    """`count` stretches spread evenly over the run from `first_step` on, of `steps` steps in all; one if it is short.

    Those without a decode step are left out. `run` is of `workload` on a grid of `step_ns`.
    """
    first, end = max(first_step, 1), run.clock.end_step
    if end - first <= steps:
        count, steps = 1, end - first
    starts = [first + i * (end - first) // count for i in range(count)]
    found = (stretch(workload, run, step_ns=step_ns, start=start, stop=start + steps // count) for start in starts)
    return [one for one in found if one is not None]


def stretch(workload: Workload, run: Simulation, *, step_ns: int, start: int, stop: int) -> Stretch | None:
    """The steps `start..stop - 1` of a run; None where no row decodes in them. ValueError for a start below 1.

    What runs at the start is prefilled in the step before it, with what it had made by then as part of its prompt; what
    is not done at the end makes no more tokens.
    """
    if start < 1:
        raise ValueError(f"a stretch needs a step before it to prefill in, got a start at step {start}")
    decoded = run.steps.between(start, stop)
    if not len(decoded):
        return None
    before = start - 1
    last = np.minimum(run.finished_step, stop - 1)
    chosen = np.flatnonzero((run.admitted_step < stop) & (run.finished_step >= start))
    begun = np.maximum(before - run.admitted_step, 0)  # tokens made before the step that prefills it here
    admitted = run.admitted_step + begun
    order = chosen[np.argsort(admitted[chosen], kind="stable")]
    arrival = (admitted[order] - before) * step_ns
    requests = Workload(arrival - arrival[0], (workload.prompt_len + begun)[order], (last - admitted + 1)[order])
    offset = before + int(arrival[0]) // step_ns
    return Stretch(requests, replace(decoded, start_step=decoded.start_step - offset))
