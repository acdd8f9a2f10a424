"""Traffic through an engine on a clock: every request accounted for, every step recorded.

The virtual clock is a grid of equal ticks in integer nanoseconds, one engine step a tick, so that what happens is the
same on every machine. A request is offered at the first tick at or after its arrival; it prefills in the tick that
admits it and decodes from the next. The real clock offers a request when its time has come, and steps without a pause.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from nanoserve.buckets import Shape
from nanoserve.engine import Engine, StepResult
from nanoserve.prefill import PrefillBatch
from nanoserve.scheduler import RequestOutput, RequestRejected
from nanoserve.steps import Steps, StepsRecorder
from nanoserve.workload import Workload
from nanoserve_cli.prefix import RowsWithoutCompaction
from nanoserve_cli.units import NS_PER_S

Progress = Callable[[int], None]


@dataclass
class RequestRecord:
    """One request from its arrival to its end.

    Steps are ticks of the clock that ran. `queue_steps` is from the tick it was offered to the one that admitted it;
    `service_steps` from there to its end, both included. The nanoseconds are since the start of the replay, and
    None under the virtual clock: `due_ns` when it should have been offered, `offered_ns` when it was.
    """

    index: int
    arrival_ns: int
    prompt_len: int
    output_len: int
    outcome: str = "waiting"
    reason: str = ""
    made: int = 0
    preemptions: int = 0
    arrival_step: int | None = None
    admitted_step: int | None = None
    finished_step: int | None = None
    due_ns: int | None = None
    offered_ns: int | None = None
    token_ns: list[int] = field(default_factory=list)

    @property
    def queue_steps(self) -> int | None:
        """Steps it waited for a row."""
        if self.admitted_step is None or self.arrival_step is None:
            return None
        return self.admitted_step - self.arrival_step

    @property
    def service_steps(self) -> int | None:
        """Steps from its first prefill to its last token."""
        if self.finished_step is None or self.admitted_step is None:
            return None
        return self.finished_step - self.admitted_step + 1


@dataclass(frozen=True, eq=False)
class Replay:
    """What a replay did. Seconds are wall clock, one entry a decode step; `presented` is how often each shape ran."""

    requests: tuple[RequestRecord, ...]
    tokens: tuple[tuple[int, ...], ...]
    steps: Steps
    presented: dict[Shape, int]
    prefills: tuple[PrefillBatch, ...]
    preemptions: int
    moves: int
    prefix_steps_without_compaction: int
    plan_seconds: NDArray[np.float64]
    decode_seconds: NDArray[np.float64]
    prefill_seconds: float
    wall_seconds: float

    @property
    def graph_cells(self) -> int:
        """Cells the forwards computed."""
        return sum(shape.cells * steps for shape, steps in self.presented.items())

    @property
    def decoded_tokens(self) -> int:
        """Tokens that decode steps made: one a row and step; those of prefills are not among them."""
        return int((self.steps.rows * self.steps.steps).sum())

    @property
    def outcomes(self) -> dict[str, int]:
        """How many requests ended in each way; they add up to all of them."""
        return dict(Counter(record.outcome for record in self.requests))


def prompt_of(index: int, length: int, vocab_size: int | None, seed: int) -> tuple[int, ...]:
    """Token ids of request `index`: drawn from `seed` and `index` alone, so that no neighbour changes them."""
    if vocab_size is None:
        return (0,) * length
    return tuple(np.random.default_rng((seed, index)).integers(0, vocab_size, length).tolist())


def replay_virtual(
    engine: Engine,
    workload: Workload,
    *,
    step_ns: int,
    seed: int = 0,
    before_step: Callable[[], object] | None = None,
    progress: Progress | None = None,
) -> Replay:
    """Replays `workload` on a grid of `step_ns` nanoseconds. Counts are the same on every machine.

    `before_step` is called before each step that something runs in; `progress` with the requests ended so far.
    ValueError for a grid below 1 ns.
    """
    if step_ns < 1:
        raise ValueError(f"a step must last at least 1 ns, got {step_ns}")
    book = _Book(engine, workload, seed)
    due = -(-workload.arrival_ns // step_ns)
    tick = 0
    while book.upcoming < len(workload) or engine.has_requests:
        if not engine.has_requests:
            tick = max(tick, int(due[book.upcoming]))
        while book.upcoming < len(workload) and due[book.upcoming] <= tick:
            book.offer(tick)
        if before_step is not None:
            before_step()
        book.note(engine.step(), tick)
        tick += 1
        if progress is not None:
            progress(book.ended)
    return book.close()


def replay_real(
    engine: Engine,
    workload: Workload,
    *,
    speedup: float = 1.0,
    seed: int = 0,
    before_step: Callable[[], object] | None = None,
    progress: Progress | None = None,
) -> Replay:
    """Replays `workload` as it came, `speedup` times as fast. Due times are computed once, from the start.

    ValueError for a speedup that is not positive.
    """
    if not 0 < speedup < float("inf"):
        raise ValueError(f"speedup must be above 0, got {speedup}")
    book = _Book(engine, workload, seed)
    due = (workload.arrival_ns / speedup).astype(np.int64)
    tick = 0
    while book.upcoming < len(workload) or engine.has_requests:
        while book.upcoming < len(workload) and due[book.upcoming] <= book.now_ns():
            book.offer(tick, due_ns=int(due[book.upcoming]))
        if not engine.has_requests:
            if book.upcoming < len(workload):
                time.sleep(max(0.0, (int(due[book.upcoming]) - book.now_ns()) / NS_PER_S))
            continue
        if before_step is not None:
            before_step()
        book.note(engine.step(), tick, timed=True)
        tick += 1
        if progress is not None:
            progress(book.ended)
    return book.close()


class _Book:
    """Keeps the records of a replay while it runs."""

    def __init__(self, engine: Engine, workload: Workload, seed: int) -> None:
        self._engine = engine
        self._seed = seed
        columns = (workload.arrival_ns, workload.prompt_len, workload.output_len)
        self._records = [
            RequestRecord(index, *row) for index, row in enumerate(zip(*(c.tolist() for c in columns), strict=True))
        ]
        self._tokens: list[tuple[int, ...]] = [()] * len(workload)
        self._steps = StepsRecorder()
        self._presented: Counter[Shape] = Counter()
        self._prefills: list[PrefillBatch] = []
        self._rows = RowsWithoutCompaction(engine.cache.max_batch_size)
        self._preemptions = self._moves = 0
        self._plan_seconds: list[float] = []
        self._decode_seconds: list[float] = []
        self._prefill_seconds = 0.0
        self._start_ns = time.perf_counter_ns()
        self.upcoming = 0
        self.ended = 0

    def now_ns(self) -> int:
        """Nanoseconds since the start."""
        return time.perf_counter_ns() - self._start_ns

    def offer(self, tick: int, *, due_ns: int | None = None) -> None:
        """Gives the next request to the engine; one it will not take ends here, rejected."""
        record = self._records[self.upcoming]
        self.upcoming += 1
        record.arrival_step, record.due_ns = tick, due_ns
        record.offered_ns = None if due_ns is None else self.now_ns()
        prompt = prompt_of(record.index, record.prompt_len, self._engine.scheduler.vocab_size, self._seed)
        try:
            self._engine.add_request(
                prompt, max_tokens=record.output_len, request_id=str(record.index), ignore_eos=True
            )
        except RequestRejected as error:
            record.outcome, record.reason = "rejected", error.reason
            self.ended += 1

    def note(self, result: StepResult, tick: int, *, timed: bool = False) -> None:
        """Records one step."""
        plan = result.plan
        self._rows.step(result)
        if plan is not None:
            self._steps.add(plan.batch_size, plan.width, plan.live_cells, step=tick)
            self._presented[plan.shape] += 1
            self._plan_seconds.append(result.plan_seconds)
            self._decode_seconds.append(result.decode_seconds)
        self._prefills += result.prefills
        self._prefill_seconds += result.prefill_seconds
        self._preemptions += len(result.preempted)
        self._moves += len(result.moves)
        for request_id in result.admitted:
            record = self._records[int(request_id)]
            record.admitted_step = tick if record.admitted_step is None else record.admitted_step
        if timed:
            now = self.now_ns()
            for request_id, _ in result.tokens:
                self._records[int(request_id)].token_ns.append(now)
        for output in result.outputs:
            self._end(output, tick)

    def _end(self, output: RequestOutput, tick: int) -> None:
        record = self._records[int(output.request_id)]
        record.outcome, record.reason = output.outcome, output.reason
        record.made, record.preemptions = len(output.tokens), output.preemptions
        record.finished_step = tick
        self._tokens[record.index] = output.tokens
        self.ended += 1

    def close(self) -> Replay:
        """The whole of it."""
        return Replay(
            requests=tuple(self._records),
            tokens=tuple(self._tokens),
            steps=self._steps.steps(),
            presented=dict(sorted(self._presented.items())),
            prefills=tuple(self._prefills),
            preemptions=self._preemptions,
            moves=self._moves,
            prefix_steps_without_compaction=self._rows.prefix_steps,
            plan_seconds=np.array(self._plan_seconds),
            decode_seconds=np.array(self._decode_seconds),
            prefill_seconds=self._prefill_seconds,
            wall_seconds=self.now_ns() / NS_PER_S,
        )
