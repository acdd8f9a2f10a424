"""Requests to steps, by events: continuous batching over a pool that never runs out, first come first served by rows.

Between two events (an arrival that finds a row, an end) the rows stay the same and the width grows by one a step, so
the loop goes from event to event. A request is offered to the first step that starts at or after its arrival. The step
that admits it prefills it: it holds a row there and makes its first token, and decodes from the next step on. Its row
is free again `output_len` steps after its admission.

Under a `FixedStep` that is the grid of the virtual clock, and the result is the engine's own replay of the workload.
Under a step time that depends on the shape, time is continuous: a step starts when the one before it ends, so that
padding lengthens the steps, longer steps meet more arrivals, and more rows change the shape.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from sys import maxsize

import numpy as np
from numpy.typing import NDArray

from nanoserve.buckets import CaptureList, DecodePolicy
from nanoserve.step_time import FixedStep, StepTime
from nanoserve.steps import Column, Steps
from nanoserve.workload import Workload

Pace = Callable[[int, int], tuple[int, int]]


@dataclass(frozen=True, eq=False)
class StepClock:
    """When each step starts: stretches of equally long steps as columns (int64 arrays of one length), in time order.

    Stretch `i` begins with step `step[i]` at `ns[i]`; its steps last `step_ns[i]` each, up to the next stretch's first.
    `end_step` is the index after the last step's.
    """

    step: Column
    ns: Column
    step_ns: Column
    end_step: int

    def start_of(self, steps: Column) -> Column:
        """Nanoseconds at which each of `steps` (int64 array of step indices) starts."""
        at = np.searchsorted(self.step, steps, side="right") - 1
        return self.ns[at] + (steps - self.step[at]) * self.step_ns[at]

    def end_of(self, steps: Column) -> Column:
        """Nanoseconds at which each of `steps` ends."""
        at = np.searchsorted(self.step, steps, side="right") - 1
        return self.ns[at] + (steps + 1 - self.step[at]) * self.step_ns[at]

    def first_from(self, moments: Column) -> Column:
        """The first step that starts at or after each of `moments` (int64 array of ns); `end_step` where none does."""
        at = np.maximum(np.searchsorted(self.ns, moments, side="right") - 1, 0)
        steps = self.step[at] - (self.ns[at] - moments) // self.step_ns[at]
        following = np.append(self.step[1:], self.end_step)
        return np.clip(steps, 0, following[at])


@dataclass(frozen=True, eq=False)
class Simulation:
    """What a workload became: the run's decode steps, and of each request (int64 arrays) the steps of its life.

    Steps are numbered by the ticks of the grid under a `FixedStep`, idle ones included, else by the steps that ran,
    those that only prefill included. A request is offered to `arrival_step`, prefills in `admitted_step`, and makes its
    last token in `finished_step`. `clock` says when a step starts, in ns after the first arrival.
    """

    steps: Steps
    arrival_step: Column
    admitted_step: Column
    finished_step: Column
    clock: StepClock

    @cached_property
    def start_ns(self) -> Column:
        """When the first step of each segment of `steps` starts."""
        return self.clock.start_of(self.steps.start_step)

    @property
    def span_ns(self) -> int:
        """When the last step ends, be it a decode step or not; 0 for a run of none."""
        return int(self.clock.end_of(np.array([self.clock.end_step - 1]))[0])

    def cut_at(self, ns: int) -> int:
        """The first step that starts at `ns` or later: the steps with a lower index are the run up to that moment."""
        return int(self.clock.first_from(np.array([ns]))[0])

    @property
    def waiting_steps(self) -> Column:
        """Steps that each request waited for a row."""
        return self.admitted_step - self.arrival_step

    @property
    def mean_waiting_steps(self) -> float:
        """Their mean; 0.0 for no request."""
        return float(self.waiting_steps.mean()) if self.waiting_steps.size else 0.0

    @property
    def max_waiting_steps(self) -> int:
        """The longest of them; 0 for no request."""
        return int(self.waiting_steps.max(initial=0))


def simulate(
    workload: Workload,
    max_batch_size: int,
    *,
    step_time: StepTime,
    policy: DecodePolicy | CaptureList | None = None,
) -> Simulation:
    """Runs `workload` through `max_batch_size` rows. No request is rejected or preempted.

    `policy` says what a step runs as and so how long it lasts: None is its open shape, and so is a step off a capture
    list. A step in which nobody decodes has no shape. ValueError for a batch below 1, a step outside the policy's
    limits, a step time below 1 ns, or a run too long to be counted in int64 nanoseconds.
    """
    if max_batch_size < 1:
        raise ValueError(f"max_batch_size must be at least 1, got {max_batch_size}")
    try:
        pieces, admitted = _run(workload, max_batch_size, _pace_of(step_time, policy), _grid_of(step_time))
    except OverflowError:
        raise ValueError("the run is longer than 2**63 ns (292 years): make the steps shorter") from None
    first_step, start_ns, step_ns, rows, width, steps, live = np.ascontiguousarray(pieces.T)
    end_step = int(first_step[-1] + steps[-1]) if steps.size else 0
    decodes = rows > 0
    run = _merged(*(column[decodes] for column in (first_step, rows, width, steps, live)))
    if isinstance(policy, DecodePolicy) and len(run):
        # A fixed step looks no shape up, yet a run the policy does not cover is none of its server's.
        policy.shape_for(int(run.rows.max()), int((run.width + run.steps - 1).max()))
    clock = _clock(first_step, start_ns, step_ns, end_step)
    arrival = clock.first_from(workload.arrival_ns)
    return Simulation(run, arrival, admitted, admitted + workload.output_len - 1, clock)


def _run(workload: Workload, max_batch_size: int, pace: Pace, grid_ns: int | None) -> tuple[NDArray[np.int64], Column]:
    """The event loop. Returns pieces, and the step that admitted each request.

    A piece is steps of one length without an event: `step, start_ns, step_ns, rows, width, steps, live_cells`, the live
    cells those of its first step. `grid_ns` is None where a request that finds nobody running need not wait for a tick.
    """
    arrivals, lengths = workload.arrival_ns.data, (workload.prompt_len.data, workload.output_len.data)
    pieces, admitted = array("q"), array("q")
    batch = _Batch()
    step = now = upcoming = 0
    while batch.ends or upcoming < len(arrivals):
        if not batch.ends and arrivals[upcoming] > now:
            now = arrivals[upcoming]
            if grid_ns is not None:
                step = -(-now // grid_ns)
                now = step * grid_ns
        rows, first = len(batch.ends), upcoming
        limit = min(len(arrivals), upcoming + max_batch_size - rows)
        while upcoming < limit and arrivals[upcoming] <= now:
            upcoming += 1
        width = batch.width(step)
        step_ns, steps = pace(rows, width)
        if step_ns < 1:
            raise ValueError(f"a step must last at least 1 ns, not {step_ns} as one of {rows} rows by {width} does")
        if upcoming > first:
            steps = 1
        else:
            steps = min(steps, batch.ends[0][0] - step)
            if upcoming < limit:
                steps = min(steps, -((now - arrivals[upcoming]) // step_ns))
        pieces.extend((step, now, step_ns, rows, width, steps, batch.live_cells(step)))
        batch.release(step + steps)
        for request in range(first, upcoming):
            admitted.append(step)
            batch.add(step, *(column[request] for column in lengths))
        step += steps
        now += steps * step_ns
    if now > np.iinfo(np.int64).max:
        raise OverflowError
    return np.asarray(pieces).reshape(-1, 7), np.asarray(admitted)


class _Batch:
    """The rows that decode. A row's context in step t is `key + t`, its key being `prompt_len - admitted step`."""

    def __init__(self) -> None:
        self.ends: list[tuple[int, int]] = []  # a heap of (the step in which the row is free again, key)
        self._longest: list[tuple[int, int]] = []  # a heap of (-key, the same step); the ended leave it at its top only
        self._key_sum = 0

    def width(self, step: int) -> int:
        """The longest context; 0 without a row."""
        return step - self._longest[0][0] if self._longest else 0

    def live_cells(self, step: int) -> int:
        """The sum of the contexts."""
        return self._key_sum + len(self.ends) * step

    def add(self, step: int, prompt_len: int, output_len: int) -> None:
        """A request that prefills in `step`. One output is made there and then, and leaves nothing to decode."""
        if output_len > 1:
            key = prompt_len - step
            self._key_sum += key
            heappush(self.ends, (step + output_len, key))
            heappush(self._longest, (-key, step + output_len))

    def release(self, step: int) -> None:
        """Drops the rows that are free in `step`."""
        while self.ends and self.ends[0][0] <= step:
            self._key_sum -= heappop(self.ends)[1]
        while self._longest and self._longest[0][1] <= step:
            heappop(self._longest)


def _grid_of(step_time: StepTime) -> int | None:
    return step_time.step_ns if isinstance(step_time, FixedStep) else None


def _pace_of(step_time: StepTime, policy: DecodePolicy | CaptureList | None) -> Pace:
    """`(rows, width) -> (ns, steps)`: how long the step lasts, and how many from it on as the width grows."""
    if isinstance(step_time, FixedStep):
        fixed = (step_time.step_ns, maxsize)
        return lambda rows, width: fixed
    lookup = policy.find if isinstance(policy, CaptureList) else None if policy is None else policy.shape_for

    def pace(rows: int, width: int) -> tuple[int, int]:
        shape = lookup(rows, width) if rows and lookup is not None else None
        if shape is None:
            return step_time.ns(rows, rows * width), 1
        return step_time.ns(shape.rows, shape.cells), shape.width - width + 1

    return pace


def _merged(step: Column, rows: Column, width: Column, steps: Column, live: Column) -> Steps:
    """Decode pieces as segments, joined where a `StepsRecorder` would: where one goes on as the one before it did."""
    goes_on = (
        (step[1:] == (step + steps)[:-1])
        & (rows[1:] == rows[:-1])
        & (width[1:] == (width + steps)[:-1])
        & (live[1:] == (live + rows * steps)[:-1])
    )
    first = np.flatnonzero(np.concatenate(([True], ~goes_on))[: rows.size])
    cells = steps * live + rows * (steps * (steps - 1) // 2)
    return Steps(step[first], rows[first], width[first], np.add.reduceat(steps, first), np.add.reduceat(cells, first))


def _clock(step: Column, start_ns: Column, step_ns: Column, end_step: int) -> StepClock:
    """Pieces as stretches: one begins where a step's start or length is not what the step before it implies."""
    if not step.size:
        return StepClock(np.zeros(1, np.int64), np.zeros(1, np.int64), np.ones(1, np.int64), 0)
    goes_on = (step_ns[1:] == step_ns[:-1]) & (start_ns[1:] - start_ns[:-1] == (step[1:] - step[:-1]) * step_ns[:-1])
    first = np.flatnonzero(np.concatenate(([True], ~goes_on))[: step.size])
    return StepClock(step[first], start_ns[first], step_ns[first], end_step)
