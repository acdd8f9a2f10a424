"""An engine whose decode steps are replays: counted, the same tokens, and loud where a replay would lie."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shape_strategies import capture_lists, policies

from nanoserve import (
    CaptureFailed,
    CaptureList,
    DecodeBuckets,
    DecodePolicy,
    Engine,
    GateError,
    SamplingParams,
    Shape,
    StaircaseBuckets,
    audit_blocks,
)

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from nanoserve import CaptureUnsound, StorageUnsound, check_step_inert  # noqa: E402
from nanoserve.decode.compiled import CompiledDecode, reset_dynamo  # noqa: E402
from nanoserve.decode.graphs import GraphCounts, GraphDecode  # noqa: E402
from nanoserve.decode.recorded import RecordedGraphs  # noqa: E402
from nanoserve.model.decoder import DecodeInputs, Decoder  # noqa: E402

Build = Callable[..., Engine]
CPU = torch.device("cpu")
ROWS, LONGEST = 4, 48
BUCKETS = DecodeBuckets(ROWS, LONGEST, width_multiple=16)
STAIRS = StaircaseBuckets(ROWS, LONGEST, {1: [48], 2: [20, 48], 4: [32, 48]})
PROMPT_LENS = (5, 16, 1, 9, 17, 3, 12, 2)
CROWD = (4, 8, 16, 30, 12, 8, 16, 21)
PROMPTS = [[(31 * i + 7 * j * j + 3) % 97 for j in range(length)] for i, length in enumerate(PROMPT_LENS)]


def graphs(build: Build, **options: Any) -> Engine:
    """An engine over recorded graphs with its arena poisoned before every replay; not audited unless asked."""
    options = {"policy": BUCKETS, "runner": "graphs", "audit": False, **options}
    engine = build(ROWS, LONGEST, **options)
    engine.worker.runner.backend.arena.poison = True  # type: ignore[attr-defined]
    return engine


def runner_of(engine: Engine) -> GraphDecode:
    return engine.worker.runner  # type: ignore[attr-defined, no-any-return]


def serve(engine: Engine, which: Sequence[int] = range(len(CROWD)), **options: Any) -> dict[int, tuple[int, ...]]:
    """The crowd's tokens by request."""
    for i in which:
        engine.add_request(PROMPTS[i], max_tokens=CROWD[i], request_id=str(i), **options)
    tokens = {}
    for _ in range(1000):
        if not engine.has_requests:
            break
        tokens |= {int(output.request_id): output.tokens for output in engine.step().outputs}
    assert len(tokens) == len(which)
    return tokens


# Counts.


@pytest.mark.parametrize("policy", [BUCKETS, STAIRS, DecodeBuckets(ROWS, LONGEST, width_multiple=48)])
def test_warm_up_captures_every_shape_once_and_serving_none(build: Build, policy: DecodePolicy) -> None:
    engine = graphs(build, policy=policy)
    runner = runner_of(engine)
    assert runner.counts == GraphCounts(0, 0, 0)
    engine.warm_up()
    warm = runner.counts
    assert (warm.captures, warm.eager_steps) == (policy.count, 0)
    assert runner.captured == set(policy.shapes)
    serve(engine)
    did = runner.counts - warm
    assert (did.captures, did.eager_steps, did.replay_share) == (0, 0, 1.0)
    assert did.replays > 30


def test_a_second_warm_up_captures_nothing(build: Build) -> None:
    engine = graphs(build)
    engine.warm_up()
    warm = runner_of(engine).counts
    engine.warm_up()
    assert (runner_of(engine).counts - warm).captures == 0


def test_what_a_run_did_is_the_difference_of_two_readings() -> None:
    before, after = GraphCounts(9, 9, 0), GraphCounts(9, 21, 4)
    assert after - before == GraphCounts(0, 12, 4)
    assert (after - before).replay_share == 0.75
    assert (after - after).replay_share is None
    assert GraphCounts(0, 0, 3).replay_share == 0.0


def test_every_decode_step_is_counted_once(build: Build) -> None:
    engine = graphs(build)
    engine.warm_up()
    before, decoded = runner_of(engine).counts, 0
    engine.add_request([1, 2, 3], max_tokens=9)
    while engine.has_requests:
        decoded += engine.step().plan is not None
    assert (runner_of(engine).counts - before).replays == decoded == 8


def test_five_captures_for_the_seeds_512_steps(build: Build) -> None:
    """3 rows of 8, a 16-token prompt, multiple 128: the row bucket 4 by five widths, captured as they come."""
    engine = build(8, 528, policy=DecodeBuckets(8, 528), runner="graphs", audit=False)
    runner = runner_of(engine)
    for i in range(3):
        engine.add_request([i + 1] * 16, max_tokens=513, ignore_eos=True)
    while engine.has_requests:
        engine.step()
    assert runner.counts == GraphCounts(5, 512, 0)
    assert runner.captured == {Shape(4, width) for width in (128, 256, 384, 512, 528)}


def test_an_open_run_captures_every_step_anew(build: Build) -> None:
    """One capture a step, each replayed once: why an open run has no use for graphs."""
    engine = graphs(build, policy=None)
    engine.add_request([1, 2, 3], max_tokens=20)
    while engine.has_requests:
        engine.step()
    assert runner_of(engine).counts == GraphCounts(19, 19, 0)
    engine.add_request([4, 5, 6], max_tokens=20)
    while engine.has_requests:
        engine.step()
    assert runner_of(engine).counts == GraphCounts(19, 38, 0), "the shapes of the first request are known"


def test_captures_take_time_and_it_is_kept_by_shape(build: Build) -> None:
    engine = graphs(build)
    engine.warm_up()
    seconds = runner_of(engine).capture_seconds
    assert set(seconds) == set(BUCKETS.shapes)
    assert all(0 < value < 30 for value in seconds.values())


def test_the_arena_of_a_warm_engine_is_the_largest_graphs(build: Build) -> None:
    """Warm-up goes largest first."""
    whole, largest = graphs(build), graphs(build)
    whole.warm_up()
    largest.warm_up([Shape(ROWS, LONGEST)])
    assert runner_of(whole).backend.pool_bytes == runner_of(largest).backend.pool_bytes > 0


# The same tokens.


@pytest.fixture(scope="module")
def alone(shared_decoder: Decoder) -> dict[int, tuple[int, ...]]:
    """Every request by itself, eager, in the row bucket of 4 that the crowd runs in."""
    one_bucket = DecodeBuckets(ROWS, LONGEST, rows=[4], widths=[16, 32, 48])
    tokens = {}
    for i in range(len(CROWD)):
        engine = Engine.build(copy.deepcopy(shared_decoder), ROWS, LONGEST, device="cpu", policy=one_bucket)
        tokens |= serve(engine, [i])
    assert len({made[:2] for made in tokens.values()}) == len(CROWD), "tokens depend on the prompt"
    return tokens


FOUR_ROWS = DecodeBuckets(ROWS, LONGEST, rows=[4], widths=[16, 32, 48])


def test_a_crowd_of_unequal_lengths_makes_the_tokens_that_each_makes_alone(
    build: Build, alone: dict[int, tuple[int, ...]]
) -> None:
    """Rows end at different steps and leave holes; a replay reads from row 0 all the same."""
    engine = graphs(build, policy=FOUR_ROWS)
    engine.warm_up()
    assert serve(engine) == alone
    assert audit_blocks(engine.cache) == 0


def no_slot_moves(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.cache.slot_table, "move", lambda source, target, columns: None)


def no_compaction(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests move up, the cache's rows stay where they are: what a replay reads from row 0 is somebody else's."""
    cache = engine.cache

    def compact() -> list[tuple[int, int]]:
        holes = [row for row in range(cache.num_rows) if not cache._active[row]]
        sources = [row for row in range(cache.num_rows) if cache._active[row]]
        moves = []
        for hole in holes:
            if sources and sources[-1] > hole:
                moves.append((sources.pop(), hole))
        return moves

    monkeypatch.setattr(cache, "compact", compact)


@pytest.mark.parametrize("mutant", [no_slot_moves, no_compaction])
@pytest.mark.parametrize("audit", [False, True])
def test_a_crowd_shows_that_compaction_is_missing(
    build: Build,
    monkeypatch: pytest.MonkeyPatch,
    alone: dict[int, tuple[int, ...]],
    mutant: Callable[[Engine, pytest.MonkeyPatch], None],
    audit: bool,
) -> None:
    """By its tokens, or by the error of a gate; never by luck."""
    engine = graphs(build, policy=FOUR_ROWS, audit=audit)
    mutant(engine, monkeypatch)
    try:
        tokens = serve(engine)
    except (AssertionError, GateError, KeyError, RuntimeError, ValueError, IndexError):
        return
    assert not audit
    assert tokens != alone


@pytest.mark.parametrize("policy", [BUCKETS, STAIRS])
@pytest.mark.parametrize("blocks", [{}, {"num_blocks": 14, "block_size": 4}], ids=["roomy", "preempted"])
def test_tokens_are_eagers_with_preemption(build: Build, policy: DecodePolicy, blocks: dict[str, int]) -> None:
    """The same buckets, so bit for bit: no near ties are allowed for."""
    engines = [graphs(build, policy=policy, **blocks), build(ROWS, LONGEST, policy=policy, **blocks)]
    engines[0].warm_up()
    first, second = (serve(engine) for engine in engines)
    assert first == second


def test_sampled_tokens_are_eagers_too(build: Build) -> None:
    sampling = SamplingParams(temperature=0.8, top_p=0.9, seed=3)
    engines = graphs(build), build(ROWS, LONGEST, policy=BUCKETS)
    first, second = (serve(engine, sampling=sampling) for engine in engines)
    assert first == second


class Traffic:
    """Random admissions, aborts and steps, the same for every engine of one seed."""

    def __init__(self, seed: int, most: int = 20) -> None:
        self.rng, self.count, self.most = np.random.default_rng(seed), 0, most
        self.live: list[str] = []

    def before_step(self, engine: Engine) -> None:
        rng = self.rng
        if len(self.live) < 9 and rng.random() < 0.4:
            for _ in range(int(rng.integers(1, 4))):
                name, self.count = str(self.count), self.count + 1
                prompt = rng.integers(0, 97, size=int(rng.integers(1, LONGEST - self.most))).tolist()
                engine.add_request(prompt, max_tokens=int(rng.integers(1, self.most)), request_id=name)
                self.live.append(name)
        if self.live and rng.random() < 0.08:
            engine.abort(self.live.pop(int(rng.integers(len(self.live)))))

    def step(self, engine: Engine) -> Any:
        self.before_step(engine)
        result = engine.step()
        for output in result.outputs:
            if output.request_id in self.live:
                self.live.remove(output.request_id)
        return result


def test_200_steps_with_aborts_and_preemptions_make_eagers_tokens_at_every_step(build: Build) -> None:
    blocks = {"num_blocks": 14, "block_size": 4}
    ways = [
        (Traffic(1), graphs(build, **blocks)),
        (Traffic(1), build(ROWS, LONGEST, policy=BUCKETS, audit=False, **blocks)),
    ]
    preempted = 0
    for _ in range(200):
        results = [traffic.step(engine) for traffic, engine in ways]
        assert results[0].tokens == results[1].tokens
        assert results[0].outputs == results[1].outputs
        preempted += len(results[0].preempted)
    assert preempted > 3


def addresses(engine: Engine) -> dict[str, int]:
    worker, runner = engine.worker, runner_of(engine)
    named = {
        **worker.persistent(),  # type: ignore[attr-defined]
        **{name: get() for name, get in runner._buffers.items()},
        **dict(worker.decoder.named_parameters()),  # type: ignore[attr-defined]
        "the arena": runner.backend.arena._segments[0],
    }
    return {name: tensor.data_ptr() for name, tensor in named.items()}


def mixed_run(engine: Engine, steps: int, seed: int) -> tuple[int, int, int]:
    """Decode steps, preemptions and aborts of a run whose every step is watched."""
    engine.warm_up()
    traffic, warm, fixed = Traffic(seed), runner_of(engine).counts, addresses(engine)
    decoded = preempted = ended = 0
    for _ in range(steps):
        result = traffic.step(engine)
        decoded += result.plan is not None
        preempted += len(result.preempted)
        ended += len(result.outputs)
        assert addresses(engine) == fixed
    did = runner_of(engine).counts - warm
    assert (did.captures, did.replays, did.eager_steps) == (0, decoded, 0)
    return decoded, preempted, traffic.count - ended - len(traffic.live)


def test_1000_mixed_steps_make_no_storage_and_move_nothing(build: Build) -> None:
    """Audited: gates, the storage watch, blocks. Retracing every step is left out here: it takes a minute."""
    engine = graphs(build, audit=True, num_blocks=14, block_size=4)
    runner_of(engine)._audit = False
    decoded, preempted, aborted = mixed_run(engine, 1000, seed=2)
    assert decoded > 900
    assert preempted > 20
    assert aborted > 20


def test_60_mixed_steps_are_traced_again_and_are_what_was_captured(build: Build) -> None:
    policy = DecodeBuckets(ROWS, LONGEST, rows=[2, 4], widths=[32, 48])
    decoded, preempted, _ = mixed_run(graphs(build, policy=policy, audit=True, num_blocks=14, block_size=4), 60, seed=5)
    assert decoded > 50
    assert preempted > 0


@pytest.mark.slow
def test_1000_mixed_steps_each_traced_again(build: Build) -> None:
    decoded, preempted, aborted = mixed_run(graphs(build, audit=True, num_blocks=14, block_size=4), 1000, seed=2)
    assert min(decoded, preempted, aborted) > 20


def test_the_audit_refuses_storage_made_while_inputs_are_written(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = graphs(build, audit=True)
    engine.warm_up([Shape(1, 16)])
    inputs = engine.worker.inputs  # type: ignore[attr-defined]
    write = inputs.write

    def writing(plan: Any, tokens: Any) -> Any:
        step = write(plan, tokens)
        return step._replace(positions=step.positions.clone())

    monkeypatch.setattr(inputs, "write", writing)
    with pytest.raises(StorageUnsound, match=r"aten\.clone.* made new storage, \(1,\)"):
        engine.generate([[1, 2]], max_tokens=3)


def test_an_input_that_is_no_window_of_the_buffer_is_refused_by_the_replay(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = graphs(build)
    engine.warm_up([Shape(1, 16)])
    inputs = engine.worker.inputs  # type: ignore[attr-defined]
    write = inputs.write
    monkeypatch.setattr(inputs, "write", lambda plan, tokens: write(plan, tokens)._replace(slots=plan.slots.clone()))
    with pytest.raises(CaptureUnsound, match=r"^slots moved since shape 1x16 was captured"):
        engine.generate([[1, 2]], max_tokens=3)


# Padding.


@pytest.mark.parametrize(("rows", "audit"), [(1, False), (2, False), (3, False), (4, False), (3, True)])
def test_a_replayed_step_is_inert(build: Build, rows: int, audit: bool) -> None:
    engine = graphs(build, policy=FOUR_ROWS if audit else BUCKETS, audit=audit)
    for i in range(rows):
        engine.add_request(PROMPTS[i], max_tokens=20)
    for _ in range(3):
        engine.step()
    assert check_step_inert(engine) == rows
    before = runner_of(engine).counts
    engine.step()
    assert (runner_of(engine).counts - before).replays == 1


def test_looking_at_every_step_changes_no_token(build: Build) -> None:
    watched, plain = graphs(build), graphs(build)
    for i in range(4):
        for engine in (watched, plain):
            engine.add_request(PROMPTS[i], max_tokens=12)
    while watched.has_requests:
        check_step_inert(watched)
        assert watched.step().tokens == plain.step().tokens


# Off the list.


def test_steps_off_a_capture_list_run_eager_unpadded_and_are_counted(build: Build) -> None:
    listed = CaptureList([Shape(2, 16), Shape(4, 16)])
    engine = graphs(build, policy=listed)
    engine.warm_up()
    assert runner_of(engine).counts.captures == 2
    before, off = runner_of(engine).counts, 0
    for i in range(3):
        engine.add_request(PROMPTS[(0, 2, 5)[i]], max_tokens=20)
    while engine.has_requests:
        plan = engine.step().plan
        if plan is not None and listed.find(plan.batch_size, plan.width) is None:
            off += 1
            assert plan.shape == plan.open_shape
    did = runner_of(engine).counts - before
    assert (did.captures, did.eager_steps) == (0, off)
    assert 0 < off < did.replays + off
    assert did.replay_share == did.replays / (did.replays + off)


def test_an_incomplete_list_makes_the_tokens_of_a_complete_one(build: Build) -> None:
    listed = graphs(build, policy=CaptureList([Shape(4, 16), Shape(4, 32)]))
    assert serve(listed) == serve(graphs(build, policy=FOUR_ROWS))
    assert runner_of(listed).counts.eager_steps > 0


# A capture that fails.


class Refusing(RecordedGraphs):
    """A device whose memory does not do for some shapes: captures are refused by their number."""

    def __init__(self, *refused: int) -> None:
        super().__init__(CPU, poison=True)
        self.refused, self.asked = set(refused), 0

    def capture(self, body: Callable[[], Tensor], persistent: Mapping[str, Tensor]) -> Any:
        self.asked += 1
        if self.asked - 1 in self.refused:
            raise CaptureFailed("CUDA refused the capture: out of memory. In this order: lower num_blocks, drop widths")
        return super().capture(body, persistent)


def refusing(build: Build, *refused: int, **options: Any) -> Engine:
    engine = graphs(build, **options)
    runner_of(engine).backend = Refusing(*refused)
    return engine


LARGEST_FIRST = sorted(BUCKETS.shapes, key=lambda shape: (shape.cells, shape), reverse=True)


def test_a_capture_that_fails_names_the_shape_and_what_to_change(build: Build) -> None:
    engine = refusing(build, 2)
    message = rf"^shape {LARGEST_FIRST[2]}, after 2 of 9 graphs: .*out of memory.*lower num_blocks"
    with pytest.raises(CaptureFailed, match=message):
        engine.warm_up()
    assert runner_of(engine).counts.captures == 2


def test_after_a_failed_warm_up_another_captures_what_is_missing(build: Build) -> None:
    engine = refusing(build, 2)
    with pytest.raises(CaptureFailed):
        engine.warm_up()
    engine.warm_up()
    assert runner_of(engine).captured == set(BUCKETS.shapes)
    assert serve(engine) == serve(build(ROWS, LONGEST, policy=BUCKETS))


@pytest.mark.parametrize("refused", [(0,), (8,), (0, 1, 2, 3, 4, 5, 6, 7), (1, 3, 5, 7)])
def test_with_allow_partial_the_engine_goes_on_with_the_list_of_what_it_has(
    build: Build, refused: tuple[int, ...]
) -> None:
    engine = refusing(build, *refused)
    engine.warm_up(allow_partial=True)
    has = [shape for i, shape in enumerate(LARGEST_FIRST) if i not in refused]
    assert engine.cache.decode_buckets == CaptureList(has, max_batch_size=ROWS, max_model_len=LONGEST)
    assert runner_of(engine).captured == set(has)
    warm = runner_of(engine).counts
    for i in range(3):
        engine.add_request(PROMPTS[i], max_tokens=6)
    while engine.has_requests:
        engine.step()
    did = runner_of(engine).counts - warm
    assert did.captures == 0
    assert did.replays + did.eager_steps > 0


def test_with_allow_partial_the_tokens_stay_the_same(build: Build, alone: dict[int, tuple[int, ...]]) -> None:
    engine = refusing(build, 1, policy=FOUR_ROWS)
    engine.warm_up(allow_partial=True)
    tokens = {i: serve(engine, [i])[i] for i in (0, 1, 2)}
    assert tokens == {i: alone[i] for i in (0, 1, 2)}


# FAULT: the runner still lists the shapes it has no graph for. A step off the list that happens to be exactly one of
# them, unpadded, is refused as if warm-up had forgotten it, and its requests fail.
def test_with_allow_partial_a_step_of_the_very_shape_that_failed_runs_eager(build: Build) -> None:
    """4x48 was refused; four rows reach exactly that width on the way."""
    policy = DecodeBuckets(ROWS, LONGEST, rows=[4], widths=[32, 48])
    engine = refusing(build, 0, policy=policy)
    engine.warm_up(allow_partial=True)
    for i in range(4):
        engine.add_request([i + 1] * 28, max_tokens=21)
    while engine.has_requests:
        engine.step()
    assert runner_of(engine).counts.eager_steps > 0


def test_with_allow_partial_nothing_captured_is_still_an_error(build: Build) -> None:
    with pytest.raises(CaptureFailed, match="none of 9 shapes could be captured"):
        refusing(build, *range(9)).warm_up(allow_partial=True)


def test_a_shape_that_was_not_warmed_up_is_an_error_of_the_step_and_the_engine_goes_on(build: Build) -> None:
    engine = graphs(build)
    engine.warm_up([shape for shape in BUCKETS.shapes if shape.rows == 1])
    engine.add_request([1, 2], max_tokens=3, request_id="a")
    engine.add_request([1, 2], max_tokens=3, request_id="b")
    engine.step()
    with pytest.raises(CaptureUnsound, match="2x16 has no graph"):
        engine.step()
    assert {output.outcome for output in engine.step().outputs} == {"failed"}
    assert engine.generate([[1, 2]], max_tokens=3)[0].outcome == "finished"


# A runner by hand: a stub back end whose graphs run the body again.


class Rerunning:
    """Captures nothing: a replay runs the body. For the runner's own bookkeeping."""

    pool_bytes = 0

    class Graph:
        warm_up_seconds = 0.0

        def __init__(self, body: Callable[[], Tensor]) -> None:
            self.replay = body

    def capture(self, body: Callable[[], Tensor], persistent: Mapping[str, Tensor]) -> Any:
        return self.Graph(body)

    def verify(self, graph: Any, body: Callable[[], Tensor], persistent: Mapping[str, Tensor]) -> None:
        pass


class Counted:
    """An inner runner that returns ones and says which shapes it ran."""

    def __init__(self) -> None:
        self.ran: list[Shape] = []

    def run(self, inputs: DecodeInputs) -> Tensor:
        self.ran.append(Shape(*inputs.slots.shape))
        return torch.ones(inputs.slots.shape[0], 3)

    def close(self) -> None:
        pass


class ByHand:
    """A graph runner over stubs, and windows of persistent inputs of any shape."""

    def __init__(self, shapes: DecodePolicy | CaptureList | None, rows: int, width: int) -> None:
        self.vectors = torch.zeros(4, rows, dtype=torch.int64)
        self.table = torch.zeros(rows, width, dtype=torch.int64)
        self.inner = Counted()
        buffers = {"the input buffer": lambda: self.vectors, "the slot table": lambda: self.table}
        self.runner = GraphDecode(self.inner, shapes, Rerunning(), buffers, {}, torch.zeros(rows, 3))

    def run(self, shape: Shape) -> Tensor:
        ids, positions, writes, lens = self.vectors[:, : shape.rows].unbind(0)
        window = self.table[: shape.rows, : shape.width]
        return self.runner.run(DecodeInputs(ids, positions, writes, window, lens))


@given(policies())
@settings(max_examples=40)
def test_no_step_of_a_policy_is_ever_without_a_shape(policy: DecodePolicy) -> None:
    """Whatever the limits, ladders and staircases: after warm-up every step of the limits is a replay."""
    hand = ByHand(policy, policy.max_batch_size, policy.max_model_len)
    for shape in policy.shapes:
        hand.run(shape)
    hand.runner.close()
    warm = hand.runner.counts
    assert warm.captures == policy.count
    steps = 0
    for rows in range(1, policy.max_batch_size + 1):
        for width in range(1, policy.max_model_len + 1):
            hand.run(policy.shape_for(rows, width))
            steps += 1
    assert hand.runner.counts - warm == GraphCounts(0, steps, 0)


@given(capture_lists(), st.data())
@settings(max_examples=60)
def test_every_step_beside_a_list_is_a_replay_of_a_covering_graph_or_eager_as_it_is(
    listed: CaptureList, data: st.DataObject
) -> None:
    hand = ByHand(listed, 13, 61)
    for shape in listed.shapes:
        hand.run(shape)
    hand.runner.close()
    rows, width = data.draw(st.integers(1, 13)), data.draw(st.integers(1, 61))
    found, before = listed.find(rows, width), hand.runner.counts
    hand.run(found or Shape(rows, width))
    did = hand.runner.counts - before
    if found is None:
        assert did == GraphCounts(0, 0, 1)
        assert hand.inner.ran[-1] == Shape(rows, width)
        assert not any(shape.rows >= rows and shape.width >= width for shape in listed.shapes)
    else:
        assert did == GraphCounts(0, 1, 0)
        assert found.rows >= rows
        assert found.width >= width


def test_logits_are_a_window_of_one_static_buffer() -> None:
    hand = ByHand(BUCKETS, ROWS, LONGEST)
    addresses = {hand.run(shape).data_ptr() for shape in BUCKETS.shapes}
    assert len(addresses) == 1
    assert [tuple(hand.run(Shape(rows, 16)).shape) for rows in (1, 2, 4)] == [(1, 3), (2, 3), (4, 3)]


def test_an_output_kept_across_a_replay_of_another_shape_is_found() -> None:
    hand = ByHand(BUCKETS, ROWS, LONGEST)
    for shape in BUCKETS.shapes:
        hand.run(shape)
    kept = hand.run(Shape(2, 16))
    with pytest.raises(CaptureUnsound, match="still held: this replay of shape 4x32"):
        hand.run(Shape(4, 32))
    del kept
    hand.run(Shape(4, 32))


# FAULT: a capture takes whoever holds the logits at that moment for its own: the kept output is overwritten in silence,
# and when it is dropped, every later replay is refused although nobody holds anything.
def test_an_output_kept_across_the_capture_of_a_new_shape_is_found() -> None:
    hand = ByHand(None, ROWS, LONGEST)
    kept = hand.run(Shape(2, 16))
    with pytest.raises(CaptureUnsound, match="still held"):
        hand.run(Shape(2, 17))
    assert kept.eq(1).all()


def test_an_output_dropped_after_the_capture_of_a_new_shape_leaves_replays_working() -> None:
    hand = ByHand(None, ROWS, LONGEST)
    kept = hand.run(Shape(2, 16))
    try:
        hand.run(Shape(2, 17))
    except CaptureUnsound:
        del kept
        hand.run(Shape(2, 17))
    else:
        del kept
    hand.run(Shape(2, 16))
    hand.run(Shape(2, 17))


# FAULT: an error that the caller keeps, as a server does in a future, holds the logits through its traceback: every
# later step of the engine is refused.
def test_an_error_kept_by_the_caller_stops_no_later_step(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = graphs(build)
    engine.warm_up()
    engine.add_request([1, 2], max_tokens=4, sampling=SamplingParams(temperature=1.0))
    engine.step()
    request = engine.scheduler.running[0]
    assert request is not None
    monkeypatch.setattr(request.sampler, "draw", lambda logits: 1 // 0)
    kept = None
    try:
        engine.step()
    except ZeroDivisionError as error:
        kept = error
    assert kept is not None
    assert engine.generate([[3, 4]], max_tokens=4)[0].outcome == "finished"


def test_an_error_mid_step_that_nobody_keeps_stops_no_later_step(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = graphs(build)
    engine.warm_up()
    engine.add_request([1, 2], max_tokens=4, sampling=SamplingParams(temperature=1.0))
    engine.step()
    request = engine.scheduler.running[0]
    assert request is not None
    monkeypatch.setattr(request.sampler, "draw", lambda logits: 1 // 0)
    failed = False
    try:
        engine.step()
    except ZeroDivisionError:
        failed = True
    gc.collect()
    assert failed
    assert {output.outcome for output in engine.step().outputs} == {"failed"}
    assert engine.generate([[3, 4]], max_tokens=4)[0].outcome == "finished"


# A compiled body.


def over_compiled(
    decoder: Decoder, policy: DecodePolicy | CaptureList
) -> tuple[GraphDecode, Callable[[Shape], Tensor]]:
    reset_dynamo()
    decoder.prepare(LONGEST)
    config = decoder.config
    pool = torch.zeros(config.num_layers, 2, ROWS * LONGEST + 1, config.num_kv_heads, config.head_dim)
    vectors, table = torch.zeros(4, ROWS, dtype=torch.int64), torch.zeros(ROWS, LONGEST, dtype=torch.int64)
    inner = CompiledDecode(decoder, pool, policy)
    buffers: dict[str, Callable[[], Tensor]] = {
        "vectors": lambda: vectors,
        "table": lambda: table,
        "pool": lambda: pool,
    }
    runner = GraphDecode(inner, policy, Rerunning(), buffers, {}, torch.zeros(ROWS, config.vocab_size))

    def run(shape: Shape) -> Tensor:
        ids, positions, writes, lens = vectors[:, : shape.rows].unbind(0)
        return runner.run(DecodeInputs(ids, positions, writes, table[: shape.rows, : shape.width], lens))

    return runner, run


@torch.no_grad()
def test_a_compiled_body_compiles_once_a_shape_and_is_captured(decoder: Decoder) -> None:
    policy = DecodeBuckets(ROWS, LONGEST, rows=[4], widths=[32, 48])
    runner, run = over_compiled(decoder, policy)
    for shape in policy.shapes:
        run(shape)
    runner.close()
    for shape in policy.shapes:
        run(shape)
    assert runner.counts == GraphCounts(2, 4, 0)
    assert runner._inner.region.compiles == 2  # type: ignore[attr-defined]


# FAULT: closing a graph runner does not close what it runs: a compile after warm-up is no error.
@torch.no_grad()
def test_closing_the_graphs_closes_the_compiler_under_them(decoder: Decoder) -> None:
    policy = DecodeBuckets(ROWS, LONGEST, rows=[4], widths=[48])
    runner, run = over_compiled(decoder, policy)
    run(Shape(4, 48))
    runner.close()
    assert runner._inner.region._backend.closed  # type: ignore[attr-defined]


# FAULT: after a partial capture the compiled body still knows the whole policy and refuses unpadded steps.
@torch.no_grad()
def test_over_a_compiled_body_a_step_off_a_partial_list_runs_eager(build: Build) -> None:
    reset_dynamo()
    policy = DecodeBuckets(ROWS, LONGEST, rows=[4], widths=[32, 48])
    engine = graphs(build, policy=policy)
    runner = runner_of(engine)
    runner._inner = CompiledDecode(engine.worker.decoder, engine.cache.pool, policy)  # type: ignore[attr-defined]

    class RefusingTheFirst(Rerunning):
        asked = 0

        def capture(self, body: Callable[[], Tensor], persistent: Mapping[str, Tensor]) -> Any:
            self.asked += 1
            if self.asked == 1:
                raise CaptureFailed("no memory")
            body()  # as a capture on CUDA warms up
            return super().capture(body, persistent)

    runner.backend = RefusingTheFirst()
    engine.warm_up(allow_partial=True)
    engine.generate([[1] * 30], max_tokens=6)
    assert runner.counts.eager_steps > 0


# One decoder, two engines.


def test_two_engines_over_one_decoder_replay_side_by_side(decoder: Decoder) -> None:
    """The second finds the RoPE table long enough and leaves it where the first has captured it."""
    engines = [
        Engine.build(decoder, ROWS, length, device="cpu", runner="graphs", bucket_decode=True, audit=True)
        for length in (48, 32)
    ]
    for engine in engines:
        engine.warm_up([engine.cache.decode_buckets.shapes[0]])  # type: ignore[union-attr]
    for engine in engines:
        engine.add_request([1, 2, 3], max_tokens=5, request_id="a")
    tokens: list[list[Any]] = [[], []]
    while engines[0].has_requests:
        for made, engine in zip(tokens, engines, strict=True):
            made += [token for _, token in engine.step().tokens]
    assert tokens[0] == tokens[1]


def test_a_longer_engine_over_the_same_decoder_moves_the_table_and_the_first_one_says_so(decoder: Decoder) -> None:
    """Loud, at least: the first engine's graphs read the old table's address."""
    first = Engine.build(decoder, ROWS, 32, device="cpu", runner="graphs", bucket_decode=True)
    first.warm_up([Shape(1, 32)])
    Engine.build(decoder, ROWS, 48, device="cpu")
    with pytest.raises(CaptureUnsound, match="the RoPE table moved since shape 1x32 was captured"):
        first.generate([[1, 2]], max_tokens=3)


# Options.


def test_the_back_end_follows_the_device_and_can_be_forced(build: Build) -> None:
    assert isinstance(runner_of(build(2, 16, runner="graphs", bucket_decode=True)).backend, RecordedGraphs)
    with pytest.raises(ValueError, match="graph backend cuda needs a CUDA device, the model is on cpu: use recorded"):
        build(2, 16, runner="graphs", bucket_decode=True, graph_backend="cuda")
    with pytest.raises(ValueError, match="recorded cannot see inside compiled code: use graph body eager"):
        build(2, 16, runner="graphs", bucket_decode=True, graph_body="compiled")
    with pytest.raises(ValueError, match="graph backend 'metal' is unknown; choose one of auto, cuda, recorded"):
        build(2, 16, runner="graphs", bucket_decode=True, graph_backend="metal")


def test_an_open_graph_engine_has_nothing_to_warm_up(build: Build) -> None:
    with pytest.raises(ValueError, match="no closed set to warm up"):
        build(2, 16, runner="graphs").warm_up()
