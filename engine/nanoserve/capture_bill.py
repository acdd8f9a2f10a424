"""What a capture list costs before it is captured: the memory of every shape, found without allocating any of it.

The model of a graph pool: all graphs share one pool and are captured largest first, so the pool needs the largest live
set of any of them, not the sum. A shape's live set is the peak of what one step's operations hold at a time, traced on
fake tensors at the target dtype, for any size and on any machine. Kernels that allocate inside themselves are opaque to
a trace: they are named, and unpriced unless they declare their bytes. CUDA adds memory of its own for every graph
(node parameters, driver objects), which only a measurement tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from nanoserve.buckets import Shape
from nanoserve.decode.recorded import trace_values
from nanoserve.decode.trace import trace_step
from nanoserve.liveness import live_peak
from nanoserve.model.config import ModelConfig
from nanoserve.model.decoder import DecodeInputs, Decoder

OPAQUE = ("_scaled_dot_product",)
"""Operators, by the start of their names, whose kernels allocate workspaces that no trace sees."""


@dataclass(frozen=True)
class ShapePrice:
    """The memory that one shape's graph needs to run. `unpriced` are the operators whose workspace is not in it."""

    shape: Shape
    live_bytes: int
    unpriced: tuple[str, ...]


@dataclass(frozen=True)
class PersistentBytes:
    """Memory that exists once, whatever the list: int64 inputs and slot table, KV pool, static logits, weights."""

    inputs: int
    slot_table: int
    kv_pool: int
    logits: int
    weights: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.inputs + self.slot_table + self.kv_pool + self.logits + self.weights


def persistent_bytes(
    config: ModelConfig, dtype: torch.dtype, max_batch_size: int, max_model_len: int, num_slots: int
) -> PersistentBytes:
    """The arithmetic: a graph is per shape, a buffer per batch position, so one set of inputs serves every graph."""
    item = dtype.itemsize
    weights = sum(parameter.numel() for parameter in _meta_decoder(config).parameters()) * item
    return PersistentBytes(
        inputs=input_bytes([max_batch_size]),
        slot_table=max_batch_size * max_model_len * 8,
        kv_pool=config.num_layers * 2 * num_slots * config.num_kv_heads * config.head_dim * item,
        logits=max_batch_size * config.vocab_size * item,
        weights=weights,
    )


def input_bytes(rows: Iterable[int]) -> int:
    """Bytes of one set of the four int64 inputs for each of `rows` row counts."""
    return sum(4 * 8 * count for count in rows)


def price_shapes(
    config: ModelConfig,
    shapes: Iterable[Shape],
    dtype: torch.dtype,
    *,
    progress: Callable[[Shape], None] | None = None,
) -> tuple[ShapePrice, ...]:
    """The live-set peak of every shape. Layers are alike and only the hidden state outlives one: two stand for all."""
    shapes = tuple(shapes)
    rows, width = max(shape.rows for shape in shapes), max(shape.width for shape in shapes)
    mode = FakeTensorMode()
    with mode, torch.no_grad(), _default_dtype(dtype):
        decoder = Decoder(replace(config, num_layers=min(2, config.num_layers))).requires_grad_(False)
        decoder.prepare(width)
        kv_shape = (decoder.config.num_layers, 2, rows * width + 1, config.num_kv_heads, config.head_dim)
        pool = torch.zeros(kv_shape, dtype=dtype)
        inputs = torch.zeros((4, rows), dtype=torch.int64)
        table = torch.zeros((rows, width), dtype=torch.int64)
        logits = torch.zeros((rows, config.vocab_size), dtype=dtype)
    prices = []
    for shape in shapes:

        def body(shape: Shape = shape) -> torch.Tensor:
            ids, positions, write_slots, context_lens = inputs[:, : shape.rows].unbind(0)
            window = table[: shape.rows, : shape.width]
            step = DecodeInputs(ids, positions, write_slots, window, context_lens)
            return logits[: shape.rows].copy_(decoder.decode(step, pool))

        trace = trace_step(body, {}, mode)
        names = {op.func.overloadpacket.__name__ for op in trace.ops}
        opaque = tuple(sorted(name for name in names if name.startswith(OPAQUE)))
        prices.append(ShapePrice(shape, live_peak(trace_values(trace).lifetimes), opaque))
        if progress is not None:
            progress(shape)
    return tuple(prices)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """New parameters have `dtype`: a fake module cannot be converted afterwards."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _meta_decoder(config: ModelConfig) -> Decoder:
    with torch.device("meta"):
        return Decoder(config)
