"""The twelve mistakes that no recorded graph survives, each as a person makes it, each with a message of its own.

And beside them: what is allowed, that tracing runs nothing and touches nothing, and what a re-trace notices.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pytest

from nanoserve import DecodeBuckets, Engine, Shape

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

from nanoserve import CaptureUnsound  # noqa: E402
from nanoserve.decode.recorded import RecordedGraphs  # noqa: E402
from nanoserve.decode.trace import Trace, check_same, trace_step  # noqa: E402

Build = Callable[..., Engine]
CPU = torch.device("cpu")
BUCKETS = DecodeBuckets(4, 32, width_multiple=16)


class Buffers(NamedTuple):
    """What a small decode body may use: all of it persistent."""

    hidden: Any
    ids: Any
    lens: Any
    live: Any
    out: Any


@pytest.fixture
def at() -> Buffers:
    return Buffers(
        hidden=torch.arange(16.0).reshape(4, 4),
        ids=torch.tensor([2, 0, 1, 3]),
        lens=torch.tensor([3, 1, 4, 0]),
        live=torch.tensor([True, True, True, False]),
        out=torch.zeros(4, 4),
    )


def traced(at: Buffers, body: Callable[[], Any]) -> Trace:
    return trace_step(body, at._asdict())


def refused(at: Buffers, body: Callable[[], Any], message: str) -> None:
    """It fails with that message, and the failure leaves every buffer as it was."""
    before = [tensor.clone() for tensor in at]
    with pytest.raises(CaptureUnsound, match=message):
        traced(at, body)
    assert all(torch.equal(a, b) for a, b in zip(before, at, strict=True))


def operators(trace: Trace) -> list[str]:
    return [op.func.name() for op in trace.ops]


# (1) to (3): a value on the host.


def test_mistake_1_item_is_named(at: Buffers) -> None:
    """The longest row's length, to cut the window with: `lens.max().item()`."""
    refused(at, lambda: at.out.copy_(at.hidden[:, : at.lens.max().item()].sum()), r"^\.item\(\) reads a tensor's value")


def test_mistake_2_tolist_is_named_although_no_dispatcher_sees_it(at: Buffers) -> None:
    """On a CPU `.tolist()` reads memory without any ATen operator."""
    refused(at, lambda: [at.hidden[i] for i in at.ids.tolist()], r"^\.tolist\(\) reads a tensor's value")


@pytest.mark.parametrize(
    "branch",
    [
        lambda at: at.hidden * 2 if at.lens[0] > 2 else at.hidden,
        lambda at: at.hidden if not at.live.all() else at.hidden * 2,
        lambda at: max(at.lens[0], at.lens[1]),
        lambda at: any(at.live),
    ],
    ids=["if", "if not", "max of two", "any"],
)
def test_mistake_3_a_branch_on_a_tensor_is_named(at: Buffers, branch: Callable[[Buffers], Any]) -> None:
    refused(at, lambda: branch(at), r"^bool\(tensor\), as in an `if`, reads a tensor's value")


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda at: at.hidden[0].numpy(), r"^\.numpy\(\) reads"),
        (lambda at: (at.hidden * 2).detach().numpy(), r"^\.numpy\(\) reads"),
        (lambda at: at.lens.cpu(), r"^\.cpu\(\) reads"),
        (lambda at: torch.zeros(int(at.lens[0])), r"^int\(tensor\) reads"),
        (lambda at: at.hidden * float(at.lens[0]), r"^float\(tensor\) reads"),
        (lambda at: [at.hidden[i] for i in range(at.lens[0])], r"^using a tensor as a Python index reads"),
        (lambda at: torch.arange(at.lens.max()), r"^aten\._local_scalar_dense.*needs the value of a tensor"),
        (lambda at: at.hidden[at.lens[0]], r"^aten\._local_scalar_dense.*needs the value of a tensor"),
        (lambda at: 3 in at.lens, r"^aten\._local_scalar_dense.*needs the value of a tensor"),
        (lambda at: torch.equal(at.hidden, at.out), r"^aten\.equal.*needs the value of a tensor"),
        (lambda at: at.lens[0].is_nonzero(), r"^aten\.\S+.*needs the value of a tensor"),
    ],
    ids=["numpy", "numpy of its own", "cpu", "int", "float", "range", "arange", "0-d", "in", "equal", "is"],
)
def test_every_other_way_to_read_a_value_is_named_too(
    at: Buffers, read: Callable[[Buffers], Any], message: str
) -> None:
    refused(at, lambda: read(at), message)


# FAULT: a print or an f-string of a tensor that the step made passes (FakeTensor prints without its value).
def test_printing_a_tensor_is_a_host_read(at: Buffers) -> None:
    refused(at, lambda: f"{at.lens.max()}", "needs the value of a tensor|reads a tensor's value")


# FAULT: FakeTensor has a tolist of its own, which calls item: what a person wrote is not what the message says.
@pytest.mark.parametrize("shape", [(4,), (2, 2)])
def test_mistake_2_tolist_of_a_tensor_made_in_the_step_is_named_too(at: Buffers, shape: tuple[int, ...]) -> None:
    refused(at, lambda: (at.lens[:4] + 1).view(shape).tolist(), r"^\.tolist\(\) reads a tensor's value")


# FAULT: np.asarray (Tensor.__array__) is not in _HOST_READS: the body gets memory of a FakeTensor and goes on.
@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_numpy_asarray_is_a_host_read_like_numpy(at: Buffers) -> None:
    refused(at, lambda: np.asarray(at.hidden), "reads a tensor's value on the host")


# FAULT: `.to("cpu")` is the other way to write `.cpu()`; on CUDA the capture fails, here nothing is said.
def test_to_cpu_is_refused_like_cpu(at: Buffers) -> None:
    refused(at, lambda: at.hidden.to("cpu"), "reads a tensor's value on the host")


# (4), (5), (11): a shape made of data.


@pytest.mark.parametrize("index", [lambda at: at.live, lambda at: (at.lens > 1, 0), lambda at: (..., at.live)])
def test_mistake_4_a_boolean_mask_as_an_index_is_named(at: Buffers, index: Callable[[Buffers], Any]) -> None:
    """Only the live rows, please: `hidden[mask]`."""
    refused(at, lambda: at.hidden[index(at)], r"a boolean mask as an index, x\[mask\]")


def test_a_boolean_mask_as_the_target_of_an_assignment_is_refused(at: Buffers) -> None:
    def body() -> None:
        at.hidden[at.live] = at.out[0]

    refused(at, body, r"a boolean mask as an index, x\[mask\]")


# FAULT: the same mask through index_put_ passes: on CUDA it is a nonzero, which the capture refuses.
@pytest.mark.parametrize("put", ["index_put_", "index_put"])
def test_a_boolean_mask_in_index_put_is_refused(at: Buffers, put: str) -> None:
    refused(at, lambda: getattr(at.hidden, put)((at.live,), at.out[0]), "mask|depends on data")


@pytest.mark.parametrize(
    ("operator", "body"),
    [
        ("aten.nonzero", lambda at: at.hidden.nonzero()),
        ("aten.nonzero", lambda at: torch.where(at.live)),
        ("aten._unique2", lambda at: torch.unique(at.ids)),
        ("aten.masked_select", lambda at: at.hidden.masked_select(at.live[:, None])),
        ("aten.bincount", lambda at: at.ids.bincount()),
        ("aten.repeat_interleave", lambda at: at.hidden.repeat_interleave(at.lens, 0)),
    ],
)
def test_mistake_5_an_operator_whose_shape_depends_on_data_is_named(
    at: Buffers, operator: str, body: Callable[[Buffers], Any]
) -> None:
    refused(at, lambda: body(at), rf"^{operator}\S* returns a shape that depends on data")


@pytest.mark.parametrize("cut", [lambda x, n: x[:n], lambda x, n: x[n:], lambda x, n: x[:, :n], lambda x, n: x[::n]])
def test_mistake_11_a_slice_by_a_tensor_bound_is_named(at: Buffers, cut: Callable[..., Any]) -> None:
    """Not the window's own width but this step's longest row: `slots[:, :lens.max()]`."""
    refused(at, lambda: cut(at.hidden, at.lens.max()), r"^a slice bounded by a tensor, x\[:t\]")


# (6): a constant of the host's.


@pytest.mark.parametrize("make", [torch.tensor, torch.as_tensor])
def test_mistake_6_a_tensor_of_a_python_list_is_named(at: Buffers, make: Callable[..., Any]) -> None:
    refused(at, lambda: at.hidden * make([1.0, 2.0, 3.0, 4.0]), rf"^torch\.{make.__name__} makes a tensor of a host")


@pytest.mark.parametrize("value", [5.0, 0, True, [1.0, 2.0, 3.0, 4.0]])
def test_mistake_6_an_assignment_of_a_python_value_is_named(at: Buffers, value: Any) -> None:
    """`hidden[0] = 5.0` looks like a fill and is a copy from a fresh host tensor."""

    def body() -> None:
        at.hidden[0] = value

    refused(at, body, r"^x\[\.\.\.\] = .* makes a tensor of a host constant: use fill_ or masked_fill")


@pytest.mark.parametrize(
    "body",
    [
        lambda at: at.hidden[[0, 2]],
        lambda at: at.hidden[:, np.array([0, 1])],
        lambda at: at.hidden * at.hidden.new_tensor([1.0, 2.0, 3.0, 4.0]),
        lambda at: at.hidden + torch.asarray([1.0, 2.0, 3.0, 4.0]),
        lambda at: at.hidden + torch.Tensor([1.0, 2.0, 3.0, 4.0]),
        lambda at: at.hidden + np.ones(4, dtype=np.float32),
    ],
    ids=["list as index", "array as index", "new_tensor", "asarray", "Tensor", "array as operand"],
)
def test_every_other_host_constant_is_named_by_its_operator(at: Buffers, body: Callable[[Buffers], Any]) -> None:
    refused(at, lambda: body(at), r"^(aten\.lift_fresh makes a tensor of a host constant|np\.asarray)")


def test_an_array_as_a_tensor_is_a_host_constant(at: Buffers) -> None:
    refused(at, lambda: torch.from_numpy(np.ones(4)), r"(aten\.lift_fresh|torch\.from_numpy) makes a tensor of a host")


# (7): an input that nobody registered.


def test_mistake_7_an_input_neither_persistent_nor_made_inside_is_named(at: Buffers) -> None:
    """A mask made outside, step for step: the graph would go on reading the first one's address."""
    mask = torch.zeros(4, 4)
    refused(
        at, lambda: at.hidden + mask, r"^aten\.add\.Tensor reads a float32 tensor of shape \(4, 4\) that is neither"
    )


def test_mistake_7_a_write_into_an_unregistered_buffer_is_named(at: Buffers) -> None:
    debug = torch.zeros(4, dtype=torch.int64)
    refused(at, lambda: debug.copy_(at.lens), r"^aten\.copy_\.default reads a int64 tensor of shape \(4,\) .*neither")


def test_mistake_7_a_copy_of_a_persistent_buffer_is_another_tensor(at: Buffers) -> None:
    copied = at.hidden.clone()
    refused(at, lambda: copied[:2] * 2, r"neither a persistent buffer nor made in the step")


def test_any_view_of_a_persistent_buffer_is_persistent(at: Buffers) -> None:
    views = at.hidden[:2], at.hidden.t(), at.hidden.view(-1)[3:7], at.hidden.as_strided((3, 4), (0, 1))
    assert len(traced(at, lambda: torch.cat([view.reshape(-1) for view in views])).ops) > 0


def test_a_tensor_cached_in_one_capture_is_named_in_the_next(at: Buffers) -> None:
    """aiter#5393: a table made on first use lies in the first graph's memory, which every replay overwrites."""

    @lru_cache
    def table() -> Any:
        return torch.arange(4.0)

    def body() -> Any:
        return at.hidden * table()

    traced(at, body)
    refused(at, body, r"^aten\.mul\.Tensor reads a float32 tensor of shape \(4,\) that was born inside another capture")


def test_a_tensor_cached_before_the_first_capture_must_be_registered(at: Buffers) -> None:
    table = torch.arange(4.0)
    refused(at, lambda: at.hidden * table, "neither a persistent buffer")
    assert operators(trace_step(lambda: at.hidden * table, {**at._asdict(), "the table": table})) == [
        "aten::mul.Tensor"
    ]


# (8), (10), (12) need a captured graph.


def captured_engine(build: Build, **options: Any) -> Engine:
    engine = build(4, 32, **{"policy": BUCKETS, "runner": "graphs", "audit": False, **options})
    engine.warm_up()
    engine.generate([[1, 2, 3], [4, 5]], max_tokens=3)
    return engine


def served(engine: Engine) -> Any:
    return engine.generate([[1, 2, 3]], max_tokens=4)


@pytest.mark.parametrize(
    ("name", "rebind"),
    [
        ("the KV pool", lambda engine: setattr(engine.cache, "pool", engine.cache.pool.clone())),
        ("the RoPE table", lambda engine: setattr(engine.worker.decoder, "rope", engine.worker.decoder.rope.clone())),
        (
            "the input buffer",
            lambda engine: setattr(engine.worker.inputs, "_buffer", engine.worker.inputs.buffer.clone()),
        ),
        (
            "the slot table",
            lambda engine: engine.cache.slot_table.attach(engine.cache.slot_table.view.clone(), None),
        ),
    ],
)
def test_mistake_8_a_persistent_buffer_rebound_after_capture_is_named(
    build: Build, name: str, rebind: Callable[[Engine], None]
) -> None:
    """`cache.pool = cache.pool.clone()`: the same values at another address, which the graph does not read."""
    engine = captured_engine(build)
    rebind(engine)
    with pytest.raises(CaptureUnsound, match=rf"^{name} moved since shape 1x16 was captured: .*never rebind it"):
        served(engine)


def test_a_weight_replaced_after_capture_is_found_by_the_audit(build: Build) -> None:
    engine = captured_engine(build, audit=True)
    mlp = engine.worker.decoder.layers[0].mlp  # type: ignore[attr-defined]
    mlp.up_proj.weight = torch.nn.Parameter(mlp.up_proj.weight * 2, requires_grad=False)
    with pytest.raises(CaptureUnsound, match=r"aten\.\S+ reads a float32 tensor of shape .*neither a persistent"):
        served(engine)


def test_a_weight_written_in_place_after_capture_reaches_the_replay(build: Build) -> None:
    engine, other = captured_engine(build), captured_engine(build, runner="eager")
    before = served(engine)[0].tokens
    for each in (engine, other):
        each.worker.decoder.layers[0].mlp.up_proj.weight.neg_()  # type: ignore[attr-defined]
    assert served(engine)[0].tokens == served(other)[0].tokens != before


def test_mistake_10_an_output_kept_across_the_next_replay_is_named(build: Build) -> None:
    """`logits = runner.run(a); runner.run(b); use(logits)`: they would be b's."""
    engine = captured_engine(build)
    kept: list[Any] = []
    run = engine.worker.runner.run  # type: ignore[attr-defined]
    engine.worker.runner.run = lambda inputs: kept.append(run(inputs)) or kept[-1]  # type: ignore[attr-defined]
    with pytest.raises(CaptureUnsound, match=r"^the logits of an earlier step are still held: .*1x16.*clone"):
        served(engine)
    assert len(kept) == 1


@pytest.mark.parametrize("look", [lambda x: x[0], lambda x: x.view(-1), lambda x: x[:1, 3], lambda x: x.detach()])
def test_a_view_of_the_output_is_the_output(build: Build, look: Callable[[Any], Any]) -> None:
    engine = captured_engine(build)
    kept: list[Any] = []
    run = engine.worker.runner.run  # type: ignore[attr-defined]
    engine.worker.runner.run = lambda inputs: kept.append(look(run(inputs))) or run(inputs)  # type: ignore[attr-defined]
    with pytest.raises(CaptureUnsound, match="still held"):
        served(engine)


def test_an_output_cloned_or_dropped_is_fine(build: Build) -> None:
    engine = captured_engine(build)
    kept: list[Any] = []
    run = engine.worker.runner.run  # type: ignore[attr-defined]

    def cloning(inputs: Any) -> Any:
        logits = run(inputs)
        kept.append(logits.clone())
        return logits

    engine.worker.runner.run = cloning  # type: ignore[attr-defined]
    served(engine)
    assert len(kept) == 3
    assert len({tuple(logits[0].tolist()) for logits in kept}) == 3


def test_mistake_12_a_shape_outside_the_set_after_warm_up_is_named(build: Build) -> None:
    engine = build(4, 32, policy=BUCKETS, runner="graphs", audit=False)
    engine.warm_up([Shape(1, 16), Shape(1, 32)])
    served(engine)
    with pytest.raises(CaptureUnsound, match=r"^a step of shape 2x16 has no graph and capture is over: 2 shapes have"):
        engine.generate([[1, 2], [3, 4]], max_tokens=3)


# (9): a Python value frozen into the recording.


class Counting:
    """A body with a Python counter in it, as a person writes a step number."""

    def __init__(self, at: Buffers) -> None:
        self.at, self.step = at, 1

    def __call__(self) -> Any:
        return self.at.out.copy_(self.at.hidden * self.step)


def test_mistake_9_a_python_integer_that_changed_since_capture_is_named(at: Buffers) -> None:
    body, backend = Counting(at), RecordedGraphs(CPU)
    graph = backend.capture(body, at._asdict())
    backend.verify(graph, body, at._asdict())
    body.step = 7
    with pytest.raises(CaptureUnsound, match=r"^a Python value changed .*aten\.mul\.Tensor \(operation 0\) .*1, .*7;"):
        backend.verify(graph, body, at._asdict())
    graph.replay()
    assert torch.equal(at.out, at.hidden), "and the replay does go on with what it was recorded with"


def test_mistake_9_is_found_in_an_audited_engine_at_the_step_that_makes_it(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A temperature that somebody anneals in Python, inside the step."""
    engine = build(4, 32, policy=BUCKETS, runner="graphs", audit=True)
    mlp = engine.worker.decoder.layers[1].mlp  # type: ignore[attr-defined]
    forward, scale = mlp.forward, [2]
    monkeypatch.setattr(mlp, "forward", lambda x: forward(x) * scale[0])
    engine.warm_up([Shape(1, 16)])
    engine.add_request([1, 2], max_tokens=8)
    for _ in range(3):
        engine.step()
    scale[0] = 3
    with pytest.raises(CaptureUnsound, match=r"aten\.mul\.Tensor .* was recorded with 2, it would now get 3"):
        engine.step()


def test_a_python_value_that_changes_the_operators_is_named(at: Buffers) -> None:
    body, more = Counting(at), [False]

    def branching() -> Any:
        return at.out.copy_(at.hidden.neg() if more[0] else at.hidden.abs())

    first, longer = traced(at, branching), traced(at, lambda: at.out.copy_(at.hidden.abs()).add_(1))
    more[0] = True
    with pytest.raises(CaptureUnsound, match=r"operation 0 was aten\.abs\.default at capture .* aten\.neg\.default"):
        check_same(first, traced(at, branching))
    with pytest.raises(CaptureUnsound, match="had 2 operations at capture and would now have 3"):
        check_same(first, longer)
    assert check_same(traced(at, body), traced(at, body)) == 2


@pytest.mark.parametrize("changed", ["size", "dtype", "slice", "dim"])
def test_a_python_value_in_any_argument_is_noticed(at: Buffers, changed: str) -> None:
    bodies: dict[str, Callable[[bool], Any]] = {
        "size": lambda new: torch.zeros(3 if new else 4),
        "dtype": lambda new: at.hidden.to(torch.float64 if new else torch.bfloat16),
        "slice": lambda new: at.hidden[: 2 if new else 3],
        "dim": lambda new: at.hidden.sum(1 if new else 0),
    }
    before, now = (traced(at, lambda new=new: bodies[changed](new)) for new in (False, True))
    with pytest.raises(CaptureUnsound, match="a Python value changed since capture"):
        check_same(before, now)


# FAULT: check_same compares constants and never which tensors an operation reads.
def test_a_python_integer_that_picks_one_of_two_persistent_buffers_is_noticed(at: Buffers) -> None:
    """Double buffering: `buffers[step % 2]`. The graph reads the first of them for ever."""
    step = [0]

    def body() -> Any:
        return at.out.copy_((at.hidden, at.out)[step[0] % 2] * 2)

    before = traced(at, body)
    step[0] += 1
    with pytest.raises(CaptureUnsound):
        check_same(before, traced(at, body))


# FAULT: as above, for tensors that the step makes: the wiring between operations is not compared.
def test_a_branch_that_swaps_two_operands_is_noticed(at: Buffers) -> None:
    def body(swapped: bool) -> Any:
        a, b = at.hidden * 2, at.hidden * 3
        return at.out.copy_(b - a if swapped else a - b)

    with pytest.raises(CaptureUnsound):
        check_same(traced(at, lambda: body(False)), traced(at, lambda: body(True)))


# FAULT: 2 == 2.0 == True, so a value whose type changes (and the result's dtype with it) compares equal.
def test_an_integer_that_became_a_float_is_noticed(at: Buffers) -> None:
    before, now = (traced(at, lambda by=by: at.lens * by) for by in (2, 2.0))
    assert before.output.dtype != now.output.dtype
    with pytest.raises(CaptureUnsound):
        check_same(before, now)


# FAULT: nan != nan, so an unchanged step that fills with NaN is reported as changed.
def test_a_constant_that_is_nan_is_no_change(at: Buffers) -> None:
    before, now = (traced(at, lambda: at.hidden.clone().fill_(float("nan"))) for _ in range(2))
    assert check_same(before, now) == 2


# The mistakes in a real decoder: the message still says what the person wrote.


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda x: x * x.abs().max().item(), r"^\.item\(\)"),
        (lambda x: x * x[0].tolist()[0], r"^\.(tolist|item)\(\)"),
        (lambda x: x if x.isfinite().all() else x * 0, r"^bool\(tensor\)"),
        (lambda x: x + x[x > 0].mean(), r"^a boolean mask as an index"),
        (lambda x: x + (x > 0).nonzero().shape[0], r"^aten\.nonzero"),
        (lambda x: x * torch.tensor([2.0]), r"^torch\.tensor"),
        (lambda x: x + torch.ones(1).masked_fill_(x[0, :1] > 0, 2.0) + OUTSIDE, r"^aten\.add\.Tensor.*neither"),
        (lambda x: x[: x.argmax()], r"^a slice bounded by a tensor"),
    ],
    ids=["item", "tolist", "bool", "mask", "nonzero", "constant", "input", "slice"],
)
def test_a_mistake_in_a_decoder_layer_fails_the_capture_of_an_engine_by_its_name(
    build: Build, monkeypatch: pytest.MonkeyPatch, mistake: Callable[[Any], Any], message: str
) -> None:
    engine = build(4, 32, policy=BUCKETS, runner="graphs")
    mlp = engine.worker.decoder.layers[1].mlp  # type: ignore[attr-defined]
    forward = mlp.forward
    monkeypatch.setattr(mlp, "forward", lambda x: mistake(forward(x)))
    pool = engine.cache.pool.clone()
    with pytest.raises(CaptureUnsound, match=message):
        engine.warm_up()
    assert torch.equal(engine.cache.pool, pool)
    assert engine.worker.runner.counts.captures == 0  # type: ignore[attr-defined]


OUTSIDE = torch.zeros(1)


# What is allowed.


@pytest.mark.parametrize(
    "body",
    [
        lambda at: torch.arange(4) < at.lens[:, None],
        lambda at: torch.where(at.live[:, None], at.hidden, 0.0),
        lambda at: at.hidden.masked_fill(~at.live[:, None], torch.finfo(torch.float32).min).softmax(-1),
        lambda at: at.hidden.argmax(-1),
        lambda at: at.hidden.topk(2),
        lambda at: at.hidden.sort(-1),
        lambda at: at.hidden[at.ids],
        lambda at: at.hidden.index_put_((at.ids,), at.out),
        lambda at: at.hidden.fill_(5.0),
        lambda at: at.hidden[0].fill_(5.0),
        lambda at: torch.zeros(4, 4).copy_(at.hidden),
        lambda at: F.scaled_dot_product_attention(at.hidden[None], at.hidden[None], at.hidden[None]),
        lambda at: at.ids.repeat_interleave(at.lens, output_size=8),
        lambda at: torch.multinomial(at.hidden.softmax(-1), 1),
        lambda at: at.hidden.scatter(1, at.ids[:, None], 0.0),
        lambda at: at.hidden[None, ..., 1:3, :2],
        lambda at: [row.sum() for row in at.hidden],
        lambda at: at.hidden.shape[0] * at.hidden.stride(0) * at.hidden.numel(),
        lambda at: torch.full((4,), 3.0) * at.hidden,
    ],
)
def test_what_a_graph_can_hold_is_recorded(at: Buffers, body: Callable[[Buffers], Any]) -> None:
    traced(at, lambda: body(at))


def test_a_mask_made_inside_a_step_is_its_own(at: Buffers) -> None:
    def body() -> Any:
        outside = torch.arange(4) >= at.lens[:, None]
        return at.out.copy_(at.hidden.masked_fill(outside, 0))

    assert operators(traced(at, body))[-2:] == ["aten::masked_fill.Scalar", "aten::copy_"]


def test_a_row_assigned_from_a_tensor_is_allowed(at: Buffers) -> None:
    def body() -> None:
        at.out[0] = at.hidden[1] * 2
        at.out[:, 1] += at.hidden[:, 0]
        at.out[at.ids] = at.hidden

    traced(at, body)


# Capture executes nothing.


def test_tracing_writes_no_byte_and_draws_no_random_number(at: Buffers) -> None:
    before, state = [tensor.clone() for tensor in at], torch.random.get_rng_state()

    def body() -> Any:
        at.hidden.zero_()
        at.ids[:].add_(1)
        at.out[1:].fill_(float("nan"))
        return at.out.copy_(torch.rand(4, 4))

    assert len(traced(at, body).ops) >= 5
    assert all(torch.equal(a, b) for a, b in zip(before, at, strict=True))
    assert torch.equal(torch.random.get_rng_state(), state)


# FAULT: an arithmetic operator whose tensors are all persistent is computed for real (FakeTensorMode propagates
# constants where no argument is fake): this capture moves every position on by one.
@pytest.mark.parametrize("name", ["add_", "sub_", "mul_", "div_"])
def test_arithmetic_in_place_on_a_persistent_buffer_itself_is_not_run(at: Buffers, name: str) -> None:
    """`positions.add_(1)` at the end of a step, so that the next needs no upload."""
    before = at.hidden.clone()
    assert operators(traced(at, lambda: getattr(at.hidden, name)(2.0))) == [f"aten::{name}.Tensor"]
    assert torch.equal(at.hidden, before)


# FAULT: as above; the product of one-element persistent tensors is a known constant and may be read on the host.
@pytest.mark.parametrize(
    "read",
    [lambda n, x: torch.arange(n * 2), lambda n, x: x[n + 1], lambda n, x: torch.zeros(4).narrow(0, 0, n + 1)],
    ids=["arange", "index", "narrow"],
)
def test_arithmetic_on_a_persistent_number_gives_no_value_to_read(at: Buffers, read: Callable[..., Any]) -> None:
    """The number of real rows in a one-element buffer, and a shape made of it."""
    rows = torch.tensor(1)
    with pytest.raises(CaptureUnsound, match="needs the value of a tensor"):
        trace_step(lambda: read(rows, at.hidden), {**at._asdict(), "the rows": rows})


def test_capturing_an_engines_step_changes_no_byte_and_its_first_replay_does(build: Build) -> None:
    engine = build(4, 32, policy=BUCKETS, runner="graphs")
    runner, worker = engine.worker.runner, engine.worker  # type: ignore[attr-defined]
    engine.cache.pool.normal_()
    worker.inputs.buffer.zero_()  # every row writes slot 0, none the sink
    before = engine.cache.pool.clone()
    window = engine.cache.slot_table.read(range(0), 16, pad_rows=2).slots
    inputs = worker.inputs._views(2, window)
    graph = runner.backend.capture(lambda: runner._body(inputs), runner._persistent())
    assert torch.equal(engine.cache.pool, before)
    assert worker.inputs.buffer.eq(0).all()
    assert runner._logits.eq(0).all()
    graph.replay()
    assert not torch.equal(engine.cache.pool, before)
    assert not runner._logits[:2].eq(0).any()


def test_tracing_leaves_no_trace_of_its_modes_behind_even_where_it_fails(at: Buffers) -> None:
    with pytest.raises(CaptureUnsound):
        traced(at, lambda: at.lens.max().item())
    with pytest.raises(ZeroDivisionError):
        traced(at, lambda: at.hidden / (1 // 0))
    assert at.lens.max().item() == 4
    assert torch.tensor([1, 2]).tolist() == [1, 2]
    assert type(at.hidden * 2) is torch.Tensor
    assert torch.is_grad_enabled()


def test_an_error_of_the_bodys_own_stays_what_it_is(at: Buffers) -> None:
    with pytest.raises(KeyError, match="no such layer"):
        traced(at, lambda: {}["no such layer"])


def test_a_trace_says_what_ran_with_which_constants(at: Buffers) -> None:
    trace = traced(at, lambda: at.out.copy_(at.hidden[:, :2].sum(1, keepdim=True)))
    assert operators(trace) == ["aten::slice.Tensor", "aten::sum.dim_IntList", "aten::copy_"]
    sliced, summed, copied = trace.ops
    assert (sliced.is_view, summed.is_view, copied.is_view) == (True, False, False)
    assert (sliced.writes, summed.writes, copied.writes) == (False, False, True)
    assert sliced.constants == ("1", "0", "2")
    assert summed.constants == ("1", "True")
    assert [tuple(tensor.shape) for tensor in copied.tensors] == [(4, 4), (4, 1)]
