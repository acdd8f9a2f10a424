"""Who runs in a step: first come first served, the boundary, preemption by recompute, aborts, and the crowd."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from nanoserve import BatchedPagedKVCache, Engine, RequestRejected, SamplingParams, StepResult, audit_blocks
from nanoserve.scheduler import Request, Scheduler


def engine_of(max_batch_size: int, max_model_len: int, **options: object) -> Engine:
    """Plans only; every gate and the audit run on every step."""
    return Engine.build(None, max_batch_size, max_model_len, audit=True, **options)  # type: ignore[arg-type]


def add(engine: Engine, *requests: tuple[str, int, int]) -> None:
    for request_id, prompt_len, max_tokens in requests:
        engine.add_request([0] * prompt_len, max_tokens=max_tokens, request_id=request_id)


def drain(engine: Engine, limit: int = 2000) -> list[StepResult]:
    results = []
    while engine.has_requests:
        results.append(engine.step())
        assert len(results) < limit, "the engine makes no progress"
    return results


def running(engine: Engine) -> list[str | None]:
    return [request and request.request_id for request in engine.scheduler.running]


def everything_free(engine: Engine) -> bool:
    return audit_blocks(engine.cache) == 0 and not engine.has_requests


# First come, first served.


def test_rows_are_taken_in_order_of_arrival() -> None:
    engine = engine_of(2, 16)
    add(engine, ("a", 3, 4), ("b", 3, 2), ("c", 3, 2), ("d", 3, 2))
    assert [step.admitted for step in drain(engine)] == [("a", "b"), (), ("c",), (), ("d",), ()]


def test_a_request_that_does_not_fit_holds_up_those_behind_it() -> None:
    """Skipping it would starve it: it waits at the head until blocks are free."""
    engine = engine_of(4, 64, block_size=4, num_blocks=16)
    add(engine, ("large", 40, 3), ("larger", 39, 2), ("small", 1, 2))
    results = drain(engine)
    assert [step.admitted for step in results] == [("large",), (), (), ("larger", "small"), ()]
    assert everything_free(engine)


def test_a_finished_row_is_free_in_the_next_step() -> None:
    engine = engine_of(1, 16)
    add(engine, ("a", 3, 1), ("b", 3, 1))
    first, second = engine.step(), engine.step()
    assert (first.admitted, [o.request_id for o in first.outputs]) == (("a",), ["a"])
    assert (second.admitted, [o.request_id for o in second.outputs]) == (("b",), ["b"])


def test_a_row_prefilled_in_a_step_is_no_decode_row_of_it() -> None:
    engine = engine_of(4, 16)
    add(engine, ("a", 3, 5))
    assert engine.step().plan is None
    add(engine, ("b", 9, 5))
    plan = engine.step().plan
    assert plan is not None
    assert (plan.batch_size, plan.width) == (1, 4)
    plan = engine.step().plan
    assert plan is not None
    assert (plan.batch_size, plan.width) == (2, 10)


# The boundary: prompt + outputs - 1 <= max_model_len.


@pytest.mark.parametrize(
    ("max_model_len", "prompt", "outputs"),
    [(528, 16, 513), (528, 528, 1), (528, 1, 528), (1, 1, 1), (20, 17, 4), (2, 1, 2)],
)
def test_the_last_token_made_needs_no_slot(max_model_len: int, prompt: int, outputs: int) -> None:
    """The seed's 528-wide run: 16 prompt tokens and 513 outputs, of which the last is never fed back."""
    engine = engine_of(2, max_model_len)
    with pytest.raises(RequestRejected, match=f"need {max_model_len + 1} slots, max_model_len is {max_model_len}"):
        add(engine, ("over", prompt, outputs + 1))
    with pytest.raises(RequestRejected, match=f"{prompt + 1} prompt tokens"):
        add(engine, ("over", prompt + 1, outputs))
    assert not engine.has_requests
    add(engine, ("fits", prompt, outputs))
    results = drain(engine)
    (output,) = results[-1].outputs
    assert (output.outcome, output.reason, len(output.tokens)) == ("finished", "length", outputs)
    widths = [step.plan.width for step in results if step.plan]
    assert widths == list(range(prompt + 1, prompt + outputs))
    if outputs > 1:
        assert widths[-1] == max_model_len, "the last step is as wide as the table"
    assert everything_free(engine)


@pytest.mark.parametrize("block_size", [1, 3, 16, 64])
def test_every_length_up_to_the_boundary_fits_the_smallest_pool(block_size: int) -> None:
    """Nothing taken in can hang for want of blocks: the pool always holds one request of max_model_len."""
    engine = engine_of(3, 20, block_size=block_size, num_blocks=-(-20 // block_size))
    for prompt in range(1, 21):
        add(engine, (f"long-{prompt}", prompt, 21 - prompt), (f"short-{prompt}", prompt, 1))
    results = drain(engine)
    ended = [output for step in results for output in step.outputs]
    assert len(ended) == 40
    assert {output.reason for output in ended} == {"length"}
    assert everything_free(engine)


# Rejections.


@pytest.mark.parametrize(
    ("reason", "request_id", "prompt", "max_tokens", "says"),
    [
        ("duplicate_id", "a", [1], 2, "'a' is already live"),
        ("empty_prompt", "x", [], 2, "prompt is empty"),
        ("no_output", "x", [1], 0, "max_tokens is 0"),
        ("no_output", "x", [1], -1, "max_tokens is -1"),
        ("too_long", "x", [1] * 17, 1, "17 prompt tokens and 1 outputs need 17 slots, max_model_len is 16"),
        ("too_long", "x", [1], 17, "need 17 slots"),
        ("unknown_token", "x", [1, 50], 2, "token id 50 is outside the vocabulary of 50"),
        ("unknown_token", "x", [-1], 2, "token id -1"),
    ],
)
def test_a_rejection_has_its_reason_and_disturbs_nothing(
    reason: str, request_id: str, prompt: list[int], max_tokens: int, says: str
) -> None:
    """vllm#7632: an empty prompt, taken in, killed the engine for everybody."""
    cache = BatchedPagedKVCache(2, 16, block_size=4)
    scheduler = Scheduler(cache, vocab_size=50)
    scheduler.add("a", [1], 4, SamplingParams(), frozenset())
    scheduler.schedule()
    scheduler.add("b", [1, 2], 4, SamplingParams(), frozenset())
    before = (list(scheduler.waiting), list(scheduler.running), audit_blocks(cache), "x" in scheduler)
    with pytest.raises(RequestRejected, match=says) as caught:
        scheduler.add(request_id, prompt, max_tokens, SamplingParams(), frozenset())
    assert caught.value.reason == reason
    assert (list(scheduler.waiting), list(scheduler.running), audit_blocks(cache), "x" in scheduler) == before


def test_an_id_is_free_again_once_its_request_has_ended() -> None:
    engine = engine_of(2, 16)
    for _ in range(2):
        add(engine, ("a", 3, 2))
        with pytest.raises(RequestRejected):
            add(engine, ("a", 3, 2))
        drain(engine)
        add(engine, ("a", 3, 2))
        engine.abort("a")


def test_names_that_are_given_by_the_engine_are_never_in_use() -> None:
    engine = engine_of(4, 16)
    add(engine, ("request-0", 1, 2), ("request-1", 1, 2))
    assert engine.add_request([1], max_tokens=2) == "request-2"


# Preemption.


def test_the_youngest_is_preempted_and_comes_back_before_everybody_who_waits() -> None:
    engine = engine_of(4, 32, block_size=4, num_blocks=8)
    add(engine, ("a", 7, 8), ("b", 7, 8), ("c", 7, 8), ("d", 7, 2))
    assert engine.step().admitted == ("a", "b", "c", "d")
    results = drain(engine)
    assert [step.preempted for step in results if step.preempted] == [("c",)]
    order = [request_id for step in results for request_id in step.admitted]
    assert order == ["c"]
    outputs = {o.request_id: o for step in results for o in step.outputs}
    assert {k: len(o.tokens) for k, o in outputs.items()} == {"a": 8, "b": 8, "c": 8, "d": 2}
    assert {k: o.preemptions for k, o in outputs.items()} == {"a": 0, "b": 0, "c": 1, "d": 0}
    assert everything_free(engine)


def test_several_preempted_at_once_keep_their_order_of_arrival() -> None:
    engine = engine_of(4, 32, block_size=4, num_blocks=8)
    add(engine, ("a", 4, 20), ("b", 4, 20), ("c", 4, 20), ("d", 4, 20), ("e", 4, 1))
    admitted, preempted = [], []
    for step in drain(engine):
        admitted += step.admitted
        preempted += step.preempted
        assert not set(step.preempted) & set(step.admitted), "what was just thrown out is not taken straight back"
    assert admitted[:4] == ["a", "b", "c", "d"]
    assert preempted[:2] == ["d", "c"], "the youngest first"
    returns = list(dict.fromkeys(admitted[4:]))
    assert returns == ["b", "c", "d", "e"], "they come back oldest first, and before whoever came after them"
    assert everything_free(engine)


def test_the_youngest_in_a_middle_row_leaves_its_hole_to_compaction() -> None:
    """After a compaction the last row is not the youngest: the victim sits in row 0, with neighbours after it."""
    engine = engine_of(3, 32, block_size=4, num_blocks=8)
    add(engine, ("gone", 3, 2), ("old", 3, 20), ("young", 3, 20))
    engine.step()
    engine.step()
    engine.step()
    assert running(engine) == ["young", "old"]
    preempting = next(step for step in iter(engine.step, None) if step.preempted)
    assert preempting.preempted == ("young",)
    assert preempting.moves == ((1, 0),)
    assert preempting.plan is not None
    assert preempting.plan.batch_size == 1
    assert running(engine) == ["old"]
    drain(engine)
    assert everything_free(engine)


def test_a_row_preempted_beside_a_hole() -> None:
    engine = engine_of(4, 32, block_size=4, num_blocks=9)
    add(engine, ("a", 7, 20), ("b", 7, 20), ("c", 7, 20), ("d", 7, 20))
    engine.step()
    engine.step()
    engine.abort("b")
    step = engine.step()
    assert step.plan is not None
    assert step.plan.batch_size == len(running(engine)) == 3
    engine.abort("a")
    drain(engine)
    assert everything_free(engine)


def test_a_preempted_request_prefills_its_prompt_and_what_it_made() -> None:
    """vllm#16832: recompute covers prompt and generated tokens, and the budget is not started again."""
    engine = engine_of(2, 24, block_size=4, num_blocks=6)
    add(engine, ("old", 4, 12), ("young", 4, 12))
    lengths = []
    for step in drain(engine):
        lengths += [(batch.prompts, batch.length) for batch in step.prefills]
        for output in step.outputs:
            assert len(output.tokens) == 12
    assert lengths[0] == (2, 4)
    assert lengths[1:] == [(1, 13)], "9 tokens were made when the pool ran out: 4 + 9 are recomputed, 3 more follow"
    assert everything_free(engine)


def test_preparing_twice_changes_nothing() -> None:
    """`check_step_inert` prepares the step that `step` then runs."""
    engine = engine_of(3, 32, block_size=4, num_blocks=8)
    add(engine, ("a", 7, 9), ("b", 7, 9), ("c", 7, 9))
    seen = []
    while engine.has_requests:
        rows = engine.scheduler.prepare()
        assert engine.scheduler.prepare() == rows
        step = engine.step()
        assert (step.plan.batch_size if step.plan else 0) == rows
        seen += step.preempted
    assert seen == ["c"]


# Aborts.


def test_an_abort_while_waiting() -> None:
    engine = engine_of(1, 16)
    add(engine, ("a", 3, 4), ("b", 3, 4), ("c", 3, 4))
    engine.step()
    output = engine.abort("b")
    assert (output.outcome, output.reason, output.tokens) == ("aborted", "waiting", ())
    assert [name for step in drain(engine) for name in step.admitted] == ["c"]


def test_an_abort_while_running_returns_the_blocks_at_once_and_keeps_the_tokens() -> None:
    engine = engine_of(3, 16, block_size=4)
    add(engine, ("a", 3, 9), ("b", 3, 9), ("c", 3, 9))
    for _ in range(3):
        engine.step()
    held = audit_blocks(engine.cache)
    output = engine.abort("a")
    assert (output.outcome, output.reason, len(output.tokens)) == ("aborted", "running", 3)
    assert audit_blocks(engine.cache) == held - 2
    step = engine.step()
    assert step.moves == ((2, 0),)
    assert step.plan is not None
    assert step.plan.batch_size == 2
    drain(engine)
    assert everything_free(engine)


def test_an_abort_between_the_preemption_and_the_return() -> None:
    engine = engine_of(2, 24, block_size=4, num_blocks=6)
    add(engine, ("old", 4, 12), ("young", 4, 12))
    while not engine.step().preempted:
        pass
    output = engine.abort("young")
    assert (output.outcome, output.reason, len(output.tokens), output.preemptions) == ("aborted", "waiting", 9, 1)
    results = drain(engine)
    assert [o.request_id for step in results for o in step.outputs] == ["old"]
    assert everything_free(engine)


def test_an_abort_between_prepare_and_step() -> None:
    engine = engine_of(3, 16, block_size=4)
    add(engine, ("a", 4, 9), ("b", 4, 9), ("c", 4, 9))
    engine.step()
    engine.scheduler.prepare()
    engine.abort("b")
    step = engine.step()
    assert step.plan is not None
    assert step.plan.batch_size == 2
    drain(engine)
    assert everything_free(engine)


def test_every_row_aborted_leaves_an_idle_engine() -> None:
    engine = engine_of(3, 16)
    add(engine, ("a", 4, 9), ("b", 4, 9), ("c", 4, 9))
    engine.step()
    for name in ("b", "a", "c"):
        engine.abort(name)
    assert everything_free(engine)
    step = engine.step()
    assert (step.plan, step.moves, step.outputs) == (None, (), ())
    assert engine.cache.num_rows == 0


def test_only_a_live_request_can_be_aborted() -> None:
    engine = engine_of(1, 16)
    add(engine, ("a", 3, 1))
    drain(engine)
    for name in ("a", "never"):
        with pytest.raises(KeyError, match=name):
            engine.abort(name)


# The crowd: 4, 8, 16 and 32 tokens over 8 rows.

CROWD = (4, 8, 16, 32)


def prefix_steps_without_compaction(outputs: Sequence[int], rows: int) -> tuple[int, int]:
    """(decode steps, those on the ordered prefix) where a request stays in the row it was given, the lowest free."""
    waiting, left = list(outputs), [0] * rows
    steps = on_prefix = 0
    while waiting or any(left):
        decoding = [row for row in range(rows) if left[row]]
        steps += bool(decoding)
        on_prefix += bool(decoding) and decoding == list(range(len(decoding)))
        free = [row for row in range(rows) if not left[row]]
        for row in decoding:
            left[row] -= 1
        for row, made in zip(free, waiting, strict=False):
            left[row] = made - 1  # the first token is made in prefill
        del waiting[: len(free)]
    return steps, on_prefix


@pytest.mark.parametrize(
    ("crowd", "decode_steps", "without", "moves"),
    [
        (CROWD * 2, 31, 3, 4),
        (CROWD * 8, 79, 37, 20),
        (tuple(sorted(CROWD * 2, reverse=True)), 31, 31, 0),
    ],
    ids=["8 requests", "32 requests", "8 requests, longest first"],
)
def test_every_decode_step_of_a_crowd_runs_on_the_ordered_prefix(
    crowd: tuple[int, ...], decode_steps: int, without: int, moves: int
) -> None:
    """A replay reads from row 0: without compaction a hole would make its neighbour's continuation, silently."""
    engine = engine_of(8, 64, bucket_decode=True)
    add(engine, *((f"r{i}", 5 + i % 3, outputs) for i, outputs in enumerate(crowd)))
    planned, moved, released = 0, 0, 0
    for step in drain(engine):
        moved += len(step.moves)
        assert moved <= released
        if step.plan is not None:
            planned += 1
            assert step.plan.is_window
        released += len(step.outputs)
    simulated, on_prefix = prefix_steps_without_compaction(crowd, 8)
    print(f"{planned} decode steps, all on the prefix; {on_prefix} would be without compaction; {moved} moves")
    assert planned == simulated
    assert (planned, on_prefix, moved) == (decode_steps, without, moves)
    assert released == len(crowd)
    assert everything_free(engine)


def test_request_block_slots_and_length_move_together() -> None:
    """Only a crowd of unequal lengths shows a request that was left behind by its row."""
    engine = engine_of(8, 64, block_size=4)
    add(engine, *((f"r{i}", 3 + 2 * i, CROWD[i % 4]) for i in range(8)))
    homes: dict[str, list[int]] = {}
    while engine.has_requests:
        engine.step()
        for row, request in enumerate(engine.scheduler.running):
            if isinstance(request, Request):
                blocks = engine.cache.block_table.of(row).tolist()
                assert blocks[: len(homes.get(request.request_id, []))] == homes.get(request.request_id, [])
                homes[request.request_id] = blocks
                assert int(engine.cache.lengths[row]) == request.length - 1
