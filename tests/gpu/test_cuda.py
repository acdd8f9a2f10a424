"""What only a GPU shows: that real CUDA graphs replay to eager's bits, what they hold, and what they cost.

Run by `make gpu`; skipped, with the reason, where there is no CUDA device. Times are recorded and decide nothing.
"""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from nanoserve import DecodeBuckets, DecodePolicy, Engine, Shape

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

from nanoserve import CaptureUnsound, check_step_inert  # noqa: E402
from nanoserve.capture_bill import price_shapes  # noqa: E402
from nanoserve.decode.compiled import reset_dynamo  # noqa: E402
from nanoserve.decode.cuda_graphs import CudaGraphs  # noqa: E402
from nanoserve.decode.eager import EagerDecode  # noqa: E402
from nanoserve.decode.graphs import GraphCounts, GraphDecode  # noqa: E402
from nanoserve.model.presets import PRESETS, preset_decoder  # noqa: E402

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    # The machine's torch and driver warn about things that are none of ours.
    pytest.mark.filterwarnings("default"),
]

Record = Callable[[str, Any], None]
ROWS, LONGEST = 8, 256
BUCKETS = DecodeBuckets(ROWS, LONGEST, width_multiple=64)
MIB = 2**20


@pytest.fixture(autouse=True)
def memory_given_back() -> Iterator[None]:
    """Each test starts with the caching allocator empty: engines hold gigabytes and graphs hold pools."""
    gc.collect()
    torch.cuda.empty_cache()
    yield
    gc.collect()
    torch.cuda.empty_cache()


def on_cuda(
    policy: DecodePolicy | None, *, model: str = "tiny", dtype: str = "float32", runner: str = "graphs", **options: Any
) -> Engine:
    decoder = preset_decoder(model, device="cuda", dtype=getattr(torch, dtype))
    rows, length = (ROWS, LONGEST) if policy is None else (policy.max_batch_size, policy.max_model_len)
    return Engine.build(decoder, rows, length, device="cuda", policy=policy, runner=runner, **options)


def runner_of(engine: Engine) -> GraphDecode:
    return engine.worker.runner  # type: ignore[attr-defined, no-any-return]


def compare_every_step(engine: Engine, *, atol: float = 0.0) -> dict[str, Any]:
    """From now on every decode step is also run eager, over a copy of the pool, and held against the replay.

    Compared are the logits of every graph row and the pool outside the sink: bit for bit, or within `atol`.
    """
    worker: Any = engine.worker
    run, pool, sink = worker.runner.run, engine.cache.pool, engine.cache.sink_slot
    seen: dict[str, Any] = {"steps": 0, "largest": 0.0, "shapes": set()}

    def compared(inputs: Any) -> Tensor:
        copied = pool.clone()
        expected = EagerDecode(worker.decoder, copied).run(inputs)
        logits: Tensor = run(inputs)
        for got, wanted in ((logits, expected), (pool[:, :, :sink], copied[:, :, :sink])):
            seen["largest"] = max(seen["largest"], float((got.float() - wanted.float()).abs().max()))
            assert torch.equal(got, wanted) if not atol else seen["largest"] <= atol
        seen["steps"] += 1
        seen["shapes"].add(Shape(*inputs.slots.shape))
        return logits

    worker.runner.run = compared
    return seen


def traffic(engine: Engine, steps: int, seed: int, longest_output: int = 60) -> int:
    """Steps with random admissions and aborts; returns how many preemptions there were."""
    rng, live, made, preempted = np.random.default_rng(seed), [], 0, 0
    vocabulary = engine.worker.vocab_size  # type: ignore[attr-defined]
    for _ in range(steps):
        if len(live) < 14 and rng.random() < 0.25:
            prompt = rng.integers(0, vocabulary, size=int(rng.integers(1, LONGEST - longest_output))).tolist()
            live.append(engine.add_request(prompt, max_tokens=int(rng.integers(1, longest_output))))
            made += 1
        if live and rng.random() < 0.02:
            engine.abort(live.pop(int(rng.integers(len(live)))))
        result = engine.step()
        preempted += len(result.preempted)
        ended = {output.request_id for output in result.outputs}
        assert all(output.outcome == "finished" for output in result.outputs), result.outputs
        live = [name for name in live if name not in ended]
    assert made > steps // 20
    return preempted


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_replay_is_eager_bit_for_bit(dtype: str, record_property: Record) -> None:
    """Every shape of the set on live memory: the same kernels on the same shapes."""
    engine = on_cuda(BUCKETS, dtype=dtype)
    engine.warm_up()
    assert isinstance(runner_of(engine).backend, CudaGraphs)
    seen = compare_every_step(engine)
    for rows in (1, 2, 4, 8):
        engine.generate([[7 * i + 1, 3, i + 2] for i in range(rows)], max_tokens=LONGEST - 3, ignore_eos=True)
    assert seen["shapes"] == set(BUCKETS.shapes)
    record_property("steps", seen["steps"])
    record_property("largest_difference", seen["largest"])


def test_500_mixed_steps_replay_eagers_bits_with_preemptions_and_aborts(record_property: Record) -> None:
    engine = on_cuda(BUCKETS, num_blocks=40, audit=True)
    engine.warm_up()
    seen, before = compare_every_step(engine), runner_of(engine).counts
    preempted = traffic(engine, 500, seed=1)
    did = runner_of(engine).counts - before
    assert (did.captures, did.eager_steps, did.replay_share) == (0, 0, 1.0)
    assert did.replays == seen["steps"] > 400
    assert preempted > 0
    record_property("replays", did.replays)
    record_property("preemptions", preempted)


@pytest.mark.parametrize("policy", [BUCKETS, DecodeBuckets(ROWS, LONGEST, rows=[8], widths=[256])], ids=["16", "1"])
def test_a_crowd_makes_the_tokens_of_an_eager_run_of_the_same_buckets(policy: DecodePolicy) -> None:
    """Unequal lengths, so that finished rows leave holes between two replays."""
    prompts = [[(31 * i + 7 * j * j) % 512 for j in range(3 + 11 * i)] for i in range(12)]
    made = []
    for runner in ("graphs", "eager"):
        engine = on_cuda(policy, runner=runner)
        engine.warm_up()
        for i, prompt in enumerate(prompts):
            engine.add_request(prompt, max_tokens=5 + 9 * ((5 * i) % 12), request_id=str(i), ignore_eos=True)
        tokens = {}
        while engine.has_requests:
            tokens |= {output.request_id: output.tokens for output in engine.step().outputs}
        made.append(tokens)
    assert len(made[0]) == len(prompts)
    assert made[0] == made[1]


def test_the_whole_closed_set_of_256_rows_by_8192_is_captured(record_property: Record) -> None:
    policy = DecodeBuckets(256, 8192, width_multiple=2048)
    engine = on_cuda(policy)
    seconds = engine.warm_up()
    runner = runner_of(engine)
    assert runner.counts.captures == policy.count == 36
    assert runner.captured == set(policy.shapes)
    engine.generate([[1, 2, 3]] * 3, max_tokens=8)
    assert runner.counts.captures == 36
    record_property("captures", 36)
    record_property("warm_up_seconds", round(seconds, 3))
    record_property("capture_seconds", round(sum(runner.capture_seconds.values()), 3))
    record_property("pool_mib", runner.backend.pool_bytes / MIB)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_measured_pool_is_the_predicted_one_within_20_percent(dtype: str, record_property: Record) -> None:
    """The allocator's own bytes of the graphs' pool against the largest live set; the device's difference beside it.

    Windows of over 50 MiB, beside which the allocator's segments of 2 and 20 MiB are small.
    """
    policy = DecodeBuckets(64, 2048, width_multiple=512)
    prices = price_shapes(PRESETS["small"], policy.shapes, getattr(torch, dtype))
    predicted = max(price.live_bytes for price in prices)
    engine = on_cuda(policy, model="small", dtype=dtype)
    engine.warm_up()
    backend: Any = runner_of(engine).backend
    measured = backend.pool_bytes
    record_property("predicted_mib", predicted / MIB)
    record_property("measured_pool_mib", measured / MIB)
    record_property("measured_device_difference_mib", backend.process_bytes / MIB)
    record_property("graphs", policy.count)
    assert measured == pytest.approx(predicted, rel=0.2)


def test_captured_in_ascending_order_the_pool_is_larger(record_property: Record) -> None:
    """Why warm-up goes largest first."""
    policy = DecodeBuckets(16, 2048, rows=[4, 16], widths=[512, 1024, 2048])
    held = {}
    for name, order in (("largest first", policy.shapes[::-1]), ("ascending", policy.shapes)):
        engine = on_cuda(policy, model="small")
        with torch.no_grad():
            for shape in order:
                engine.worker.prepare_shape(shape, runner_of(engine))  # type: ignore[attr-defined]
        held[name] = runner_of(engine).backend.pool_bytes
        record_property(f"{name} mib", held[name] / MIB)
        del engine
        gc.collect()
        torch.cuda.empty_cache()
    assert held["largest first"] < held["ascending"]


def test_nothing_is_captured_after_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even tried: a capture from here on would meet a `torch.cuda` without graphs."""
    engine = on_cuda(BUCKETS)
    engine.warm_up()
    runner = runner_of(engine)
    before, held = runner.counts, runner.backend.pool_bytes

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a capture after warm-up")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", refuse)
    monkeypatch.setattr(torch.cuda, "graph", refuse)
    traffic(engine, 200, seed=2)
    did = runner.counts - before
    assert (did.captures, did.eager_steps) == (0, 0)
    assert did.replays > 100
    assert runner.backend.pool_bytes == held


def test_a_shape_without_a_graph_is_an_error_that_names_it() -> None:
    engine = on_cuda(BUCKETS)
    engine.warm_up([Shape(1, 64)])
    engine.generate([[1, 2]], max_tokens=8)
    with pytest.raises(CaptureUnsound, match="a step of shape 2x64 has no graph and capture is over"):
        engine.generate([[1, 2], [3, 4]], max_tokens=4)


def test_a_capture_runs_nothing_and_the_first_result_is_a_replays() -> None:
    """The warm-up runs of an empty batch write the sink only; every other byte of the pool stays."""
    engine = on_cuda(BUCKETS)
    engine.cache.pool.normal_()
    before = engine.cache.pool.clone()
    engine.warm_up()
    torch.cuda.synchronize()
    sink = engine.cache.sink_slot
    assert torch.equal(engine.cache.pool[:, :, :sink], before[:, :, :sink])
    assert runner_of(engine).counts == GraphCounts(BUCKETS.count, 0, 0)


@pytest.mark.parametrize("rows", [1, 3, 5, 8])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_padded_rows_are_inert_with_poisoned_memory(rows: int, dtype: str) -> None:
    """NaN and inf in the sink, free blocks and unwritten tails, junk in padded inputs; three replays, the same bits."""
    engine = on_cuda(BUCKETS, dtype=dtype)
    engine.warm_up()
    for i in range(rows):
        engine.add_request([i + 1] * (3 + 9 * i), max_tokens=40, ignore_eos=True)
    for _ in range(4):
        engine.step()
        assert check_step_inert(engine) == rows


@pytest.mark.parametrize("name", ["the KV pool", "the RoPE table"])
def test_a_buffer_rebound_after_capture_is_named(name: str) -> None:
    engine = on_cuda(BUCKETS)
    engine.warm_up([Shape(1, 64)])
    worker: Any = engine.worker
    if name == "the KV pool":
        engine.cache.pool = engine.cache.pool.clone()
    else:
        worker.decoder.rope = worker.decoder.rope.clone()
    with pytest.raises(CaptureUnsound, match=rf"^{name} moved since shape 1x64 was captured"):
        engine.generate([[1, 2]], max_tokens=4)


def seconds_a_step(engine: Engine, rows: int, steps: int) -> float:
    """Median wall clock of a decode step whose tokens are on the host."""
    for i in range(rows):
        engine.add_request([i + 1] * 8, max_tokens=steps + 8, ignore_eos=True)
    for _ in range(5):
        engine.step()
    torch.cuda.synchronize()
    took = []
    for _ in range(steps):
        start = perf_counter()
        engine.step()
        took.append(perf_counter() - start)
    while engine.has_requests:
        engine.step()
    return median(took)


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("model", ["tiny", "small"])
def test_captured_against_eager_step_time_is_recorded(model: str, rows: int, record_property: Record) -> None:
    policy = DecodeBuckets(ROWS, LONGEST, rows=[1, 8], widths=[256])
    for runner in ("eager", "graphs"):
        engine = on_cuda(policy, model=model, runner=runner)
        engine.warm_up()
        took = seconds_a_step(engine, rows, steps=100)
        assert took > 0
        record_property(f"{runner}_step_ms", round(took * 1e3, 4))


@pytest.mark.parametrize("backend", ["count", "inductor"])
def test_the_compiled_body_is_captured(backend: str, record_property: Record) -> None:
    """Compiled in the warm-up on the capture stream, one graph a shape; nothing compiled or captured afterwards."""
    if backend == "inductor" and (find_spec("triton") is None or not (shutil.which("gcc") or shutil.which("cc"))):
        pytest.skip("inductor on CUDA needs triton and a C compiler")
    reset_dynamo()
    policy = DecodeBuckets(ROWS, LONGEST, rows=[1, 8], widths=[64, 256])
    engine = on_cuda(policy, graph_body="compiled", compile_backend=backend)
    engine.warm_up()
    runner = runner_of(engine)
    region = runner._inner.region  # type: ignore[attr-defined]
    assert (runner.counts.captures, region.compiles) == (4, 4)
    before = runner.counts
    # `count` runs the traced operators themselves; inductor's kernels add in another order.
    seen = compare_every_step(engine, atol=0.0 if backend == "count" else 5e-3)
    for rows in (1, 3):
        outputs = engine.generate([[5 * i + 1, 2, 3] for i in range(rows)], max_tokens=100, ignore_eos=True)
        assert [output.outcome for output in outputs] == ["finished"] * rows
    did = runner.counts - before
    assert (did.captures, did.eager_steps, region.compiles) == (0, 0, 4)
    assert did.replays == seen["steps"] == 198
    record_property("largest_difference", seen["largest"])


def test_a_set_that_does_not_fit_goes_on_with_what_it_has_where_that_was_allowed(record_property: Record) -> None:
    """The process may take 192 MiB more: narrow shapes fit that, the windows of 16 rows by 4096 do not."""
    policy = DecodeBuckets(16, 4096, rows=[1, 16], widths=[128, 4096])
    engine = on_cuda(policy, model="small")
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    predicted = {
        price.shape: price.live_bytes for price in price_shapes(PRESETS["small"], policy.shapes, torch.float32)
    }
    assert predicted[Shape(16, 4096)] > 384 * MIB
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 192 * MIB) / total)
    try:
        engine.warm_up(allow_partial=True)
        runner = runner_of(engine)
        assert Shape(16, 4096) not in runner.captured
        assert Shape(1, 128) in runner.captured
        (output,) = engine.generate([[1, 2, 3]], max_tokens=20, ignore_eos=True)
        assert output.outcome == "finished"
        record_property("captured", len(runner.captured))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
