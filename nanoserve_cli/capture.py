"""What `nanoserve capture` computes: the bill of a capture list, predicted for every shape, measured where it fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from nanoserve.buckets import CaptureList, Shape
from nanoserve.capture_bill import PersistentBytes, ShapePrice, input_bytes, persistent_bytes, price_shapes
from nanoserve.decode.graphs import GraphDecode
from nanoserve.decode.recorded import RecordedGraph
from nanoserve.engine import Engine
from nanoserve.memory import available_host_bytes
from nanoserve.model.decoder import Decoder
from nanoserve.model_worker import ModelWorker
from nanoserve_cli.compare import RunUnsound
from nanoserve_cli.policy_file import Policy
from nanoserve_cli.replay import Replay

MIB = 2**20
Progress = Callable[[str, int], None]


@dataclass(frozen=True)
class Measured:
    """What one shape's capture took. `live_bytes` is None where the back end cannot tell (CUDA)."""

    capture_seconds: float
    warm_up_seconds: float
    live_bytes: int | None


@dataclass(frozen=True)
class Bill:
    """The capture bill of one policy; `bound` says up to which width, and what decided it.

    `prices` are ascending by shape. `too_large` are predicted not to fit the memory and are not captured; `measured` is
    empty where nothing was captured. `seconds` is the predicted range, extrapolated from the captures of two small
    shapes. `held_bytes` is what the graphs' pool holds, `process_bytes` what the device says the process took (CUDA).
    `not_captured` and `pool_cut` say why nothing was captured, or beside a smaller KV pool.
    """

    policy: Policy
    bound: str
    persistent: PersistentBytes
    num_blocks: int
    prices: tuple[ShapePrice, ...]
    seconds: tuple[float, float]
    measured: dict[Shape, Measured] = field(default_factory=dict)
    too_large: tuple[Shape, ...] = ()
    held_bytes: int | None = None
    process_bytes: int | None = None
    not_captured: str | None = None
    pool_cut: str | None = None

    @property
    def predicted_bytes(self) -> int:
        """The shared pool's prediction: the largest live set, since graphs are captured largest first into one pool."""
        return max(price.live_bytes for price in self.prices)

    @property
    def sum_bytes(self) -> int:
        """What a pool for each graph would need."""
        return sum(price.live_bytes for price in self.prices)

    @property
    def mean_seconds(self) -> float | None:
        """Seconds of a capture and its warm-up, over those made; None where none was."""
        took = [measured.capture_seconds + measured.warm_up_seconds for measured in self.measured.values()]
        return sum(took) / len(took) if took else None

    @property
    def inputs_per_shape(self) -> int:
        """Bytes of the inputs if each shape had a set of its own."""
        return input_bytes(shape.rows for shape in self.policy.shapes)


def widest_set(
    policy: Policy, prices: Sequence[ShapePrice], *, graph_limit: int | None = None, byte_limit: float | None = None
) -> tuple[Policy, str]:
    """The policy's shapes up to the widest width within the limits, and what decided that width.

    Width by width, all row buckets of one at a time: the widest contexts are dropped, and their steps run eager.
    Raises ValueError where not even the narrowest width keeps within a limit.
    """
    live = {price.shape: price.live_bytes for price in prices}
    kept: list[Shape] = []
    for width in sorted({shape.width for shape in live}):
        column = [shape for shape in live if shape.width == width]
        if graph_limit is not None and len(kept) + len(column) > graph_limit:
            bound = f"--graph-limit {graph_limit}"
        elif byte_limit is not None and max(live[shape] for shape in column) > byte_limit:
            bound = f"--mib-limit {byte_limit / MIB:g}"
        else:
            kept += column
            continue
        if not kept:
            raise ValueError(f"{bound} is too little for the {len(column)} shapes of the narrowest width, {width}")
        limits = {"max_batch_size": policy.max_batch_size, "max_model_len": policy.max_model_len}
        return CaptureList(kept, **limits), f"width {kept[-1].width:,}: {bound} decided"
    return policy, f"width {policy.max_model_len:,}: the model length decided"


def bill_for(
    decoder: Decoder,
    policy: Policy,
    *,
    block_size: int,
    num_blocks: int | None,
    graph_backend: str,
    graph_limit: int | None,
    pool_limit: float | None,
    byte_limit: float | None,
    second_limit: float | None,
    progress: Progress | None = None,
) -> Bill:
    """Prices every shape of `policy`, keeps the widest set within the first two limits, and captures it if affordable.

    `graph_limit` is in graphs, `pool_limit` in bytes of the shared pool. Nothing is captured above `byte_limit` or
    `second_limit` (None: no limit); the bill then says why.
    """
    prices = price(decoder, policy, progress)
    policy, bound = widest_set(policy, prices, graph_limit=graph_limit, byte_limit=pool_limit)
    prices = tuple(price for price in prices if price.shape in set(policy.shapes))
    blocks_per_row = -(-policy.max_model_len // block_size)
    blocks = policy.max_batch_size * blocks_per_row if num_blocks is None else num_blocks
    rate = CaptureRate.sample(decoder, policy.max_batch_size, policy.max_model_len, graph_backend=graph_backend)
    bill = Bill(
        policy=policy,
        bound=bound,
        persistent=persistent_bytes(
            decoder.config, decoder.dtype, policy.max_batch_size, policy.max_model_len, blocks * block_size + 1
        ),
        num_blocks=blocks,
        prices=prices,
        seconds=rate.seconds(policy.shapes),
    )
    if byte_limit is not None and bill.predicted_bytes > byte_limit:
        reason = f"{bill.predicted_bytes / MIB:,.0f} MiB are above --max-mib {byte_limit / MIB:,.0f}"
        return replace(bill, not_captured=f"not captured: {reason}; --yes captures all the same")
    if second_limit is not None and bill.seconds[1] > second_limit:
        reason = f"up to {bill.seconds[1]:,.0f} s are above --max-seconds {second_limit:,.0f}"
        return replace(bill, not_captured=f"not captured: {reason}; --yes captures all the same")
    return capture(decoder, bill, block_size=block_size, graph_backend=graph_backend)


def price(decoder: Decoder, policy: Policy, progress: Progress | None = None) -> tuple[ShapePrice, ...]:
    """The live-set peak of every shape of a policy at the decoder's dtype."""
    done = 0

    def report(_: Shape) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress("pricing", done)

    return price_shapes(decoder.config, policy.shapes, decoder.dtype, progress=report)


@dataclass(frozen=True)
class CaptureRate:
    """How long captures take here, from two small ones: seconds of each, and the cells of the larger."""

    quicker: float
    slower: float
    slope: float
    cells: int

    @classmethod
    def sample(cls, decoder: Decoder, max_batch_size: int, max_model_len: int, *, graph_backend: str) -> CaptureRate:
        """Captures two small shapes within the limits."""
        first = Shape(1, min(128, max_model_len))
        last = Shape(min(16, max_batch_size), min(2048, max_model_len))
        engine = Engine.build(
            decoder,
            last.rows,
            last.width,
            policy=CaptureList([first, last]),
            runner="graphs",
            graph_backend=graph_backend,
        )
        engine.warm_up()
        runner = _graphs_of(engine)
        took = {shape: runner.capture_seconds[shape] + runner.warm_up_seconds[shape] for shape in (first, last)}
        slope = max(0.0, took[last] - took[first]) / max(1, last.cells - first.cells)
        return cls(min(took.values()), max(took.values()), slope, last.cells)

    def seconds(self, shapes: Sequence[Shape]) -> tuple[float, float]:
        """Seconds that capturing `shapes` may take, low and high.

        Low is the count times the quicker of the two, high a line through both over every shape's cells.
        """
        line = sum(self.slower + self.slope * max(0, shape.cells - self.cells) for shape in shapes)
        return self.quicker * len(shapes), line


def capture(decoder: Decoder, bill: Bill, *, block_size: int, graph_backend: str) -> Bill:
    """Captures every shape of the bill that fits, largest first, and fills in what it took.

    Where the whole KV pool does not fit beside the graphs it is cut to one row's: capturing needs no more. Raises
    RunUnsound where a recorded graph's live set is not what was priced.
    """
    blocks, room = _pool_and_room(decoder, bill, block_size)
    fitting = [price.shape for price in bill.prices if price.live_bytes <= room]
    too_large = tuple(price.shape for price in bill.prices if price.live_bytes > room)
    if not fitting:
        return replace(bill, too_large=too_large)
    limits = bill.policy.max_batch_size, bill.policy.max_model_len
    engine = Engine.build(
        decoder,
        *limits,
        block_size=block_size,
        num_blocks=blocks,
        policy=CaptureList(fitting, max_batch_size=limits[0], max_model_len=limits[1]),
        runner="graphs",
        graph_backend=graph_backend,
    )
    engine.warm_up()
    runner = _graphs_of(engine)
    measured = {}
    priced = {price.shape: price.live_bytes for price in bill.prices}
    for shape in sorted(fitting):
        graph = runner.graph(shape)
        live = graph.live_bytes if isinstance(graph, RecordedGraph) else None
        if live is not None and live != priced[shape]:
            raise RunUnsound(f"shape {shape} was priced at {priced[shape]:,} bytes and needs {live:,}", figure=live)
        measured[shape] = Measured(runner.capture_seconds[shape], runner.warm_up_seconds[shape], live)
    return replace(
        bill,
        pool_cut=_pool_cut(bill, blocks),
        too_large=too_large,
        measured=measured,
        held_bytes=runner.backend.pool_bytes,
        process_bytes=getattr(runner.backend, "process_bytes", None),
    )


@dataclass(frozen=True)
class LazyBill:
    """Captures made when a step first needs them: how many, and how many requests of a run wait for how many."""

    captures: int
    requests: int
    waiting_requests: int
    most_waits: int


def price_lazily(replay: Replay, policy: Policy) -> LazyBill:
    """What requests of a run would wait for: a request waits for every capture made in a step it decodes in."""
    first_use: dict[Shape, int] = {}
    for segment in replay.steps:
        width, last = segment.width, segment.width + segment.steps - 1
        for shape in policy.shapes_for_rows(segment.rows):
            if width <= min(last, shape.width):
                first_use.setdefault(shape, segment.start_step + width - segment.width)
            width = max(width, shape.width + 1)
    waits = [
        sum(record.admitted_step < at <= record.finished_step for at in first_use.values())
        for record in replay.requests
        if record.admitted_step is not None and record.finished_step is not None
    ]
    return LazyBill(len(first_use), len(waits), sum(count > 0 for count in waits), max(waits, default=0))


def _pool_cut(bill: Bill, blocks: int) -> str | None:
    if blocks == bill.num_blocks:
        return None
    asked = bill.persistent.kv_pool / 2**30
    return f"a KV pool of {bill.num_blocks:,} blocks is {asked:,.1f} GiB and does not fit: captured beside {blocks:,}"


def _graphs_of(engine: Engine) -> GraphDecode:
    worker = engine.worker
    assert isinstance(worker, ModelWorker)
    assert isinstance(worker.runner, GraphDecode)
    return worker.runner


def _available(decoder: Decoder) -> int:
    if decoder.device.type == "cuda":
        return int(torch.cuda.mem_get_info(decoder.device)[0])
    # A tenth is left for everybody else; a system that does not say is taken to have enough.
    return int(0.9 * (available_host_bytes() or 2**62))


def _pool_bytes(decoder: Decoder, blocks: int, block_size: int) -> int:
    config = decoder.config
    slot = config.num_layers * 2 * config.num_kv_heads * config.head_dim * decoder.dtype.itemsize
    return (blocks * block_size + 1) * slot


def _pool_and_room(decoder: Decoder, bill: Bill, block_size: int) -> tuple[int, int]:
    """The KV pool's blocks, all or one row's, and the bytes that one graph's live set may then have.

    A recorded replay holds each value twice, as the operator returned it and where the graph keeps it.
    """
    available = _available(decoder) - bill.persistent.slot_table - bill.persistent.logits
    copies = 1 if decoder.device.type == "cuda" else 2
    whole = available - _pool_bytes(decoder, bill.num_blocks, block_size)
    if whole >= copies * bill.predicted_bytes:
        return bill.num_blocks, whole // copies
    least = -(-bill.policy.max_model_len // block_size)
    return least, max(0, available - _pool_bytes(decoder, least, block_size)) // copies
