"""The CUDA back end without a GPU: its order of calls on a scripted `torch.cuda`, its errors, and fake CUDA tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from nanoserve import CaptureFailed, DecodeBuckets, Engine, Shape

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from nanoserve import CaptureUnsound  # noqa: E402
from nanoserve.decode.cuda_graphs import WARM_UP_RUNS, CudaGraphs  # noqa: E402

Build = Callable[..., Engine]
CPU = torch.device("cpu")
BUCKETS = DecodeBuckets(4, 32, width_multiple=16)
MIB = 2**20


class Stream:
    def __init__(self, cuda: ScriptedCuda, name: str) -> None:
        self.cuda, self.name = cuda, name

    def wait_stream(self, other: Stream) -> None:
        self.cuda.calls.append(f"{self.name} waits for {other.name}")


class ScriptedCuda:
    """A `torch.cuda` that writes down what is asked of it, with streams, graphs, one pool and a memory that shrinks.

    `fail_capture` and `fail_warm_up` are the numbers of the captures and bodies that run out of memory.
    """

    def __init__(self, *, fail_capture: tuple[int, ...] = (), error: Exception | None = None) -> None:
        self.calls: list[str] = []
        self.main, self.current = Stream(self, "main"), Stream(self, "main")
        self.current = self.main
        self.capturing = False
        self.pools = self.graphs = 0
        self.fail_capture = fail_capture
        self.error = error or torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 512.00 MiB")

    def Stream(self, device: Any = None) -> Stream:  # noqa: N802
        self.calls.append("a stream")
        return Stream(self, "side")

    def current_stream(self, device: Any = None) -> Stream:
        return self.current

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def graph_pool_handle(self) -> tuple[int, int]:
        self.calls.append("a pool")
        self.pools += 1
        return (0, self.pools)

    def synchronize(self, device: Any = None) -> None:
        assert not self.capturing, "a synchronise in a capture fails it"
        self.calls.append("synchronize")

    def CUDAGraph(self) -> Any:  # noqa: N802
        cuda = self

        class Graph:
            number = cuda.graphs

            def replay(self) -> None:
                assert not cuda.capturing
                cuda.calls.append(f"replay {self.number} on {cuda.current.name}")

        self.graphs += 1
        return Graph()

    @contextmanager
    def graph(self, graph: Any, *, pool: Any, stream: Stream, capture_error_mode: str) -> Iterator[None]:
        self.calls.append(f"capture {graph.number} into {pool} on {stream.name}, {capture_error_mode}")
        self.capturing = True
        try:
            with self.stream(stream):
                if graph.number in self.fail_capture:
                    raise self.error
                yield
        finally:
            self.capturing = False

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        return ((1000 - 10 * self.graphs) * MIB, 1024 * MIB)

    def memory_snapshot(self, pool: Any) -> list[dict[str, int]]:
        assert pool == (0, 1)
        return [{"total_size": 20 * MIB}, {"total_size": 2 * MIB}]

    def ran(self) -> None:
        """What a body does when it runs."""
        self.calls.append(f"{'captured' if self.capturing else 'run'} on {self.current.name}")


def warm_ups(cuda: ScriptedCuda) -> list[str]:
    return ["run on side"] * WARM_UP_RUNS


def test_one_capture_is_these_calls_in_this_order() -> None:
    """The side stream waits for what was written, warms up, is waited for; then it captures, and nobody ran a byte."""
    cuda = ScriptedCuda()
    backend = CudaGraphs(CPU, cuda=cuda)
    assert cuda.calls == ["a stream", "a pool"]
    cuda.calls.clear()
    backend.capture(cuda.ran, {})  # type: ignore[arg-type, return-value]
    assert cuda.calls == [
        "side waits for main",
        *warm_ups(cuda),
        "main waits for side",
        "synchronize",
        "capture 0 into (0, 1) on side, thread_local",
        "captured on side",
        "synchronize",
    ]


def test_three_warm_ups_before_a_capture() -> None:
    assert WARM_UP_RUNS == 3


def test_every_capture_has_the_same_stream_and_pool_and_a_graph_of_its_own() -> None:
    cuda = ScriptedCuda()
    backend = CudaGraphs(CPU, cuda=cuda)
    for _ in range(3):
        backend.capture(cuda.ran, {})  # type: ignore[arg-type, return-value]
    captures = [call for call in cuda.calls if call.startswith("capture ")]
    assert captures == [f"capture {i} into (0, 1) on side, thread_local" for i in range(3)]
    assert (cuda.calls.count("a stream"), cuda.calls.count("a pool")) == (1, 1)


def test_a_replay_is_launched_on_the_callers_stream_and_runs_no_body() -> None:
    cuda = ScriptedCuda()
    graph = CudaGraphs(CPU, cuda=cuda).capture(cuda.ran, {})  # type: ignore[arg-type, return-value]
    cuda.calls.clear()
    graph.replay()
    assert cuda.calls == ["replay 0 on main"]


def test_memory_is_the_pools_segments_and_the_difference_of_two_readings() -> None:
    cuda = ScriptedCuda()
    backend = CudaGraphs(CPU, cuda=cuda)
    assert backend.process_bytes == 0
    for _ in range(2):
        backend.capture(cuda.ran, {})  # type: ignore[arg-type, return-value]
    assert backend.pool_bytes == 22 * MIB
    assert backend.process_bytes == 20 * MIB


def on_scripted_cuda(build: Build, cuda: ScriptedCuda, **options: Any) -> tuple[Engine, list[Shape]]:
    """An engine whose graphs are the scripted device's, and the shapes whose bodies ran, in order."""
    engine = build(4, 32, policy=BUCKETS, runner="graphs", audit=False)
    runner, ran = engine.worker.runner, []  # type: ignore[attr-defined]
    runner.backend = CudaGraphs(CPU, cuda=cuda)
    inner = runner._inner.run

    def run(inputs: Any) -> Any:
        ran.append(Shape(*inputs.slots.shape))
        cuda.ran()
        return inner(inputs)

    runner._inner.run = run
    return engine, ran


def test_an_engine_captures_largest_first_each_after_its_warm_ups_and_replays_none(build: Build) -> None:
    cuda = ScriptedCuda()
    engine, ran = on_scripted_cuda(build, cuda)
    engine.warm_up()
    in_order = list(dict.fromkeys(ran))
    assert set(in_order) == set(BUCKETS.shapes)
    assert [shape.cells for shape in in_order] == sorted((shape.cells for shape in in_order), reverse=True)
    assert ran == [shape for shape in in_order for _ in range(WARM_UP_RUNS + 1)]
    calls = [call.split(" into")[0] for call in cuda.calls if call.startswith(("capture ", "replay "))]
    assert calls == [f"capture {i}" for i in range(6)]


def test_after_warm_up_nothing_is_captured_and_no_body_runs(build: Build) -> None:
    cuda = ScriptedCuda()
    engine, ran = on_scripted_cuda(build, cuda)
    engine.warm_up([shape for shape in BUCKETS.shapes if shape.rows == 1])
    cuda.calls.clear()
    ran.clear()
    engine.generate([[1, 2, 3]], max_tokens=9)
    assert ran == []
    assert len(cuda.calls) == 8
    assert all(call.startswith("replay") and call.endswith("on main") for call in cuda.calls)
    engine.add_request([1], max_tokens=3)
    engine.add_request([2], max_tokens=3)
    engine.step()
    with pytest.raises(CaptureUnsound, match="a step of shape 2x16 has no graph and capture is over"):
        engine.step()
    assert ran == []


# Failures.


def test_a_refused_capture_says_the_error_the_memory_and_what_to_change_in_order() -> None:
    cuda = ScriptedCuda(fail_capture=(1,))
    backend = CudaGraphs(CPU, cuda=cuda)
    backend.capture(cuda.ran, {})  # type: ignore[arg-type, return-value]
    with pytest.raises(CaptureFailed) as caught:
        backend.capture(cuda.ran, {})  # type: ignore[arg-type, return-value]
    assert str(caught.value) == (
        "CUDA refused the capture: CUDA out of memory. Tried to allocate 512.00 MiB. 980 MiB are free and 22 MiB are "
        "in the graphs' pool. In this order: lower num_blocks, drop large width buckets, lower max_batch_size"
    )
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)
    assert cuda.current is cuda.main
    backend.capture(cuda.ran, {})  # type: ignore[arg-type, return-value]


def test_an_engine_names_the_shape_whose_capture_was_refused(build: Build) -> None:
    engine, _ = on_scripted_cuda(build, ScriptedCuda(fail_capture=(1,)))
    with pytest.raises(CaptureFailed, match=r"^shape 4x16, after 1 of 6 graphs: CUDA refused .*980 MiB are free"):
        engine.warm_up()


def test_an_engine_goes_on_with_the_others_where_that_was_allowed(build: Build) -> None:
    cuda = ScriptedCuda(fail_capture=(0, 3))
    engine, _ = on_scripted_cuda(build, cuda)
    engine.warm_up(allow_partial=True)
    runner = engine.worker.runner  # type: ignore[attr-defined]
    assert runner.counts.captures == 4
    assert len(runner.captured) == 4
    assert engine.cache.decode_buckets.shapes == tuple(sorted(runner.captured))  # type: ignore[union-attr]


# FAULT: only the capture is guarded. The warm-up runs of the same step allocate first and are what runs out of memory:
# a bare OutOfMemoryError, without shape or advice, that allow_partial does not take.
def test_a_warm_up_that_runs_out_of_memory_is_a_failed_capture() -> None:
    def body() -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 512.00 MiB")

    cuda = ScriptedCuda()
    with pytest.raises(CaptureFailed, match=r"out of memory.*lower num_blocks"):
        CudaGraphs(CPU, cuda=cuda).capture(body, {})
    assert cuda.current is cuda.main


def test_an_error_of_the_bodys_own_is_no_failed_capture() -> None:
    def body() -> Any:
        raise KeyError("no such layer")

    with pytest.raises(KeyError, match="no such layer"):
        CudaGraphs(CPU, cuda=ScriptedCuda()).capture(body, {})


def test_what_a_captured_graph_holds_cannot_be_verified() -> None:
    CudaGraphs(CPU, cuda=ScriptedCuda()).verify(None, lambda: torch.zeros(1), {})


def test_the_names_this_module_uses_are_torch_cudas_own() -> None:
    """The stand-in must not drift from the thing: signatures are those of this torch."""
    import inspect

    for name in ("Stream", "current_stream", "stream", "graph_pool_handle", "synchronize", "CUDAGraph", "graph"):
        assert hasattr(torch.cuda, name), name
    assert {"cuda_graph", "pool", "stream", "capture_error_mode"} <= set(
        inspect.signature(torch.cuda.graph.__init__).parameters
    )
    assert len(inspect.signature(torch.cuda.memory_snapshot).parameters) >= 1
    assert hasattr(torch.cuda, "mem_get_info")


# Device placement, by fake CUDA tensors: where an operator works on them, mixing with a CPU operand raises.


@pytest.fixture
def fake() -> Iterator[None]:
    with FakeTensorMode():
        yield


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    "mix",
    [
        lambda cpu, cuda: cpu + cuda,
        lambda cpu, cuda: cuda @ cpu,
        lambda cpu, cuda: torch.where(cuda > 0, cuda, cpu),
        lambda cpu, cuda: torch.cat([cuda, cpu]),
        lambda cpu, cuda: cuda.masked_fill(cpu > 0, 0.0),
    ],
)
def test_a_cpu_operand_beside_a_cuda_one_raises_without_a_gpu(mix: Callable[[Any, Any], Any]) -> None:
    with pytest.raises(RuntimeError, match="device"):
        mix(torch.zeros(4, 4), torch.zeros(4, 4, device="cuda"))


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_works_on_fake_cuda_tensors_stays_on_the_device(dtype: Any) -> None:
    """Pointwise, attention with a bias and a write at slots. Plain indexing needs a CUDA build, so no whole step."""
    query = torch.zeros(4, 2, 2, 8, dtype=dtype, device="cuda")
    keys = torch.zeros(4, 2, 16, 8, dtype=dtype, device="cuda")
    bias = torch.zeros(4, 1, 1, 16, dtype=dtype, device="cuda")
    slots = torch.zeros(4, dtype=torch.int64, device="cuda")
    pool = torch.zeros(65, 2, 8, dtype=dtype, device="cuda")
    attended = F.scaled_dot_product_attention(query, keys, keys, attn_mask=bias)
    assert (attended.device.type, tuple(attended.shape)) == ("cuda", (4, 2, 2, 8))
    assert pool.index_put_((slots,), keys.select(2, 0)).device.type == "cuda"
    with pytest.raises(RuntimeError, match="device"):
        F.scaled_dot_product_attention(query, keys, keys.cpu(), attn_mask=bias)


def test_norms_and_feed_forward_of_a_layer_stay_on_the_device(shared_decoder: Any) -> None:
    """The real modules called with fake CUDA weights: drawing new ones needs a CUDA build."""
    layer = shared_decoder.layers[0]
    with FakeTensorMode(), torch.no_grad():
        norm, mlp = (
            {name: torch.zeros(tuple(weight.shape), device="cuda") for name, weight in module.named_parameters()}
            for module in (layer.input_layernorm, layer.mlp)
        )

        def run(hidden: Any) -> Any:
            normed = torch.func.functional_call(layer.input_layernorm, norm, (hidden,))
            return torch.func.functional_call(layer.mlp, mlp, (normed,))

        assert run(torch.zeros(4, 32, device="cuda")).device.type == "cuda"
        with pytest.raises(RuntimeError, match="device"):
            run(torch.zeros(4, 32))
