"""Anything in any order: add, step, abort, exhaust, look ahead, fail; the engine's invariants hold after every rule.

The same machine drives an engine that only plans, one with weights, and one whose forwards fail. The pools are too
small for their rows, so preemption is ordinary. Requests finish by themselves, by length and by a stop token.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from near_ties import assert_same_but_for_near_ties

from nanoserve import (
    DecodeBuckets,
    Engine,
    RequestOutput,
    RequestRejected,
    SamplingParams,
    StaircaseBuckets,
    audit_blocks,
    check_plan,
    plan_decode,
)
from nanoserve.plan import DecodePlan

if TYPE_CHECKING:
    from nanoserve.model.decoder import Decoder

ROWS, LONGEST, BLOCK, BLOCKS = 4, 22, 4, 9
POLICIES = [
    None,
    DecodeBuckets(ROWS, LONGEST, width_multiple=8),
    StaircaseBuckets(ROWS, LONGEST, {1: [5, 11, LONGEST], 3: [LONGEST], ROWS: [10, LONGEST]}),
]


class EngineMachine(RuleBasedStateMachine):
    """What was asked, what came back, and the engine between them."""

    raises_never = True

    model: Decoder | None = None
    vocab = 50

    @initialize(policy=st.sampled_from(POLICIES), max_prefill_tokens=st.sampled_from([1, 9, 1000]))
    def build(self, policy: Any, max_prefill_tokens: int) -> None:
        self.engine = Engine.build(
            copy.deepcopy(self.model),
            ROWS,
            LONGEST,
            block_size=BLOCK,
            num_blocks=BLOCKS,
            policy=policy,
            max_prefill_tokens=max_prefill_tokens,
        )
        self.asked: dict[str, tuple[int, int]] = {}
        self.ended: dict[str, RequestOutput] = {}
        self.releases = self.moves = 0
        self.made: dict[str, list[int]] = {}
        self.prompts: dict[str, list[int]] = {}
        self.greedy: list[str] = []
        self.looked_ahead = False
        plan_of = self.engine._plan

        def watched(rows: int) -> DecodePlan | None:
            cache = self.engine.cache
            assert cache._active[:rows].all(), "at plan time the active rows are the prefix"
            plan = plan_of(rows)
            if plan is not None:
                check_plan(plan, cache)
            return plan

        self.engine._plan = watched  # type: ignore[method-assign]
        self.count_releases_and_moves()

    def count_releases_and_moves(self) -> None:
        cache = self.engine.cache
        release, compact = cache.release, cache.compact

        def counted_release(row: int) -> None:
            release(row)
            self.releases += 1

        def counted_compact() -> list[tuple[int, int]]:
            moves = compact()
            self.moves += len(moves)
            assert self.moves <= self.releases, "a move closes a hole that a release made"
            return moves

        cache.release, cache.compact = counted_release, counted_compact  # type: ignore[method-assign]

    # Rules.

    @rule(
        prompt=st.integers(1, LONGEST),
        outputs=st.integers(1, LONGEST),
        stop=st.booleans(),
        seed=st.none() | st.integers(0, 3),
    )
    def add(self, prompt: int, outputs: int, stop: bool, seed: int | None) -> None:
        outputs = min(outputs, LONGEST + 1 - prompt)
        request_id = f"r{len(self.asked)}"
        self.prompts[request_id] = [(7 * i + len(self.asked)) % self.vocab for i in range(prompt)]
        if seed is None and not stop:
            self.greedy.append(request_id)
        self.engine.add_request(
            self.prompts[request_id],
            max_tokens=outputs,
            request_id=request_id,
            sampling=None if seed is None else SamplingParams(temperature=1.0, seed=seed),
            stop_token_ids=range(0, self.vocab, 5) if stop else (),
        )
        self.asked[request_id] = (prompt, outputs)
        self.made[request_id] = []

    @rule(kind=st.sampled_from(["empty", "none", "long", "twice"]))
    def add_what_can_never_run(self, kind: str) -> None:
        live = [name for name in self.asked if name not in self.ended]
        if kind == "twice" and not live:
            return
        prompt = [] if kind == "empty" else [1] * (LONGEST if kind == "long" else 1)
        with pytest.raises(RequestRejected):
            self.engine.add_request(
                prompt, max_tokens=0 if kind == "none" else 2, request_id=live[0] if kind == "twice" else "never"
            )
        assert "never" not in self.engine.scheduler

    @rule()
    def step(self) -> None:
        result = self.engine.step()
        if not self.looked_ahead:  # else an abort since then may have made the room
            assert not set(result.preempted) & set(result.admitted), "thrown out and taken straight back"
        self.looked_ahead = False
        names = [name for name, _ in result.tokens]
        if self.raises_never:  # else what was made before a step raised is told by the next
            assert len(names) == len(set(names)), "one token a step"
        for name, token in result.tokens:
            self.made[name].append(token)
        for output in result.outputs:
            self.end(output)

    @rule(count=st.integers(2, 30))
    def run(self, count: int) -> None:
        for _ in range(count):
            self.step()

    @precondition(lambda self: self.engine.has_requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        live = [name for name in self.asked if name not in self.ended]
        name = data.draw(st.sampled_from(live))
        output = self.engine.abort(name)
        self.end(output)
        with pytest.raises(KeyError):
            self.engine.abort(name)

    @precondition(lambda self: self.engine.has_requests)
    @rule()
    def look_ahead(self) -> None:
        """Preparing the next step and planning it leaves a step that runs all the same."""
        rows = self.engine.scheduler.prepare()
        self.looked_ahead = True
        if rows:
            check_plan(plan_decode(self.engine.cache, rows), self.engine.cache)

    @rule()
    def exhaust(self) -> None:
        """Every block in use and every row wanted: the queue is long, and each request grows to the limit."""
        for _ in range(ROWS + 1):
            self.add(prompt=BLOCK, outputs=LONGEST - BLOCK, stop=False, seed=None)
        for _ in range(6):
            self.step()

    @rule()
    def drain(self) -> None:
        steps = 0
        while self.engine.has_requests:
            self.step()
            steps += 1
            assert steps < 5000, "no progress"
        assert set(self.ended) == set(self.asked)
        assert audit_blocks(self.engine.cache) == 0

    # Invariants.

    def end(self, output: RequestOutput) -> None:
        name = output.request_id
        assert name not in self.ended, "one outcome a request"
        prompt, outputs = self.asked[name]
        assert output.prompt_len == prompt
        self.check_tokens(output)
        if output.reason == "length":
            assert len(output.tokens) == outputs
        assert len(output.tokens) <= outputs
        self.ended[name] = output

    def check_tokens(self, output: RequestOutput) -> None:
        assert output.outcome in ("finished", "aborted")
        assert list(output.tokens) == self.made[output.request_id], "as they were reported, none lost and none twice"

    @invariant()
    def every_block_is_accounted_for(self) -> None:
        cache = self.engine.cache
        held = audit_blocks(cache)
        assert held + cache.allocator.num_free == cache.num_blocks == BLOCKS

    @invariant()
    def every_request_is_in_one_place(self) -> None:
        scheduler = self.engine.scheduler
        waiting = [request.request_id for request in scheduler.waiting]
        running = [request.request_id for request in scheduler.running if request is not None]
        assert len(scheduler.running) == scheduler.cache.num_rows
        assert sorted(waiting + running + list(self.ended)) == sorted(self.asked)
        arrivals = [request.arrival for request in scheduler.waiting]
        assert arrivals == sorted(arrivals), "the queue is in order of arrival, the preempted at its head"

    @invariant()
    def every_running_row_is_as_long_as_its_request(self) -> None:
        cache, scheduler = self.engine.cache, self.engine.scheduler
        for row, request in enumerate(scheduler.running):
            assert cache._active[row] == (request is not None)
            if request is not None:
                assert cache.lengths[row] == request.length - 1

    @invariant()
    def an_idle_engine_holds_nothing(self) -> None:
        if not self.engine.has_requests:
            assert audit_blocks(self.engine.cache) == 0
            assert set(self.ended) == set(self.asked)
            if not self.engine.scheduler.running:
                assert (self.engine.cache.slot_table.host == self.engine.cache.sink_slot).all()

    def teardown(self) -> None:
        if hasattr(self, "asked"):
            self.drain()
            self.an_idle_engine_holds_nothing()
            assert np.array_equal(np.sort(self.engine.cache.allocator.free_blocks), np.arange(BLOCKS))


def machine_run(machine: type[EngineMachine], examples: int, steps: int) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            suppress_health_check=list(HealthCheck),
            # Shrinking runs the machine hundreds of times more: minutes, where the log of rules says as much.
            phases=[Phase.generate],
        ),
    )


class WeightsMachine(EngineMachine):
    """Also: every step looked at is inert, and the most preempted greedy request made the tokens it makes alone."""

    @precondition(lambda self: self.engine.has_requests)
    @rule()
    def look_ahead(self) -> None:
        from nanoserve import check_step_inert

        check_step_inert(self.engine)
        self.looked_ahead = True

    def teardown(self) -> None:
        super().teardown()
        ended = [self.ended[name] for name in getattr(self, "greedy", ())]
        if ended:
            output = max(ended, key=lambda output: (output.preemptions, len(output.tokens)))
            alone = Engine.build(copy.deepcopy(self.model), ROWS, LONGEST, block_size=BLOCK)
            name = output.request_id
            (expected,) = alone.generate([self.prompts[name]], max_tokens=self.asked[name][1])
            assert_same_but_for_near_ties(self.model, self.prompts[name], output.tokens, expected.tokens)


class FaultyMachine(EngineMachine):
    """Also: forwards that raise. What was in them ends as failed, the rest goes on, and every end is reported."""

    raises_never = False

    @rule(call=st.sampled_from(["decode", "prefill"]), after=st.integers(0, 2))
    def fail(self, call: str, after: int) -> None:
        worker, left = self.engine.worker, [after]
        real = getattr(worker, call)

        def failing(*args: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise RuntimeError("the device is gone")
            return real(*args)

        setattr(worker, call, failing)
        with suppress(RuntimeError):
            for _ in range(4):
                self.step()
        setattr(worker, call, real)
        self.step()  # what ended while a step raised is told by the next

    def check_tokens(self, output: RequestOutput) -> None:
        assert output.outcome in ("finished", "aborted", "failed")


def weights_machine(decoder: Decoder) -> type[EngineMachine]:
    return type("WeightsMachine", (WeightsMachine,), {"model": decoder, "vocab": decoder.config.vocab_size})


def test_an_engine_that_only_plans() -> None:
    machine_run(EngineMachine, examples=200, steps=25)


def test_an_engine_with_weights(shared_decoder: Decoder) -> None:
    machine_run(weights_machine(shared_decoder), examples=40, steps=20)


def test_an_engine_whose_forwards_fail() -> None:
    # Pinned: requests admitted in a step whose decode fails decode without a prefill; the last to fail is never told.
    machine_run(FaultyMachine, examples=60, steps=20)


@pytest.mark.slow
@pytest.mark.parametrize("machine", [EngineMachine, FaultyMachine])
def test_an_engine_that_only_plans_at_length(machine: type[EngineMachine]) -> None:
    machine_run(machine, examples=1000, steps=50)


@pytest.mark.slow
def test_an_engine_with_weights_at_length(shared_decoder: Decoder) -> None:
    machine_run(weights_machine(shared_decoder), examples=80, steps=30)
