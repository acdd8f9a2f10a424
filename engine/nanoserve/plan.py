"""What one decode step will do, decided on the host before anything runs: a frozen value, and the gates over it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoserve.buckets import GateError, Shape
from nanoserve.cache.kv import BatchedPagedKVCache
from nanoserve.cache.slots import SlotsUnsound, SlotTableFull

Ints = NDArray[np.int64]


class PlanUnsound(GateError):
    """A plan that would read or write the wrong place."""


@dataclass(frozen=True, eq=False, slots=True)
class DecodePlan:
    """One decode step.

    `batch_size` is the cache rows in the step, always `0..batch_size-1`; `graph_rows` by `graph_width` is what the
    forward runs. `width` is the longest context, this step's token included, and `live_cells` the sum of the contexts.
    `slots` is the `[graph_rows, graph_width]` read of the slot table. The two snapshots, int64 `[graph_rows]`, are the
    plan's own copies, padding included (length 0, the sink): they stay what they were when the cache moves on, which
    is what makes a stale plan visible.
    """

    batch_size: int
    width: int
    live_cells: int
    graph_rows: int
    graph_width: int
    is_bucketed: bool
    sink_slot: int
    slots: Any
    is_window: bool
    context_snapshot: Ints
    write_snapshot: Ints

    @property
    def pad_rows(self) -> int:
        """Rows the forward runs for nobody."""
        return self.graph_rows - self.batch_size

    @property
    def shape(self) -> Shape:
        """What the forward runs."""
        return Shape(self.graph_rows, self.graph_width)

    @property
    def open_shape(self) -> Shape:
        """What the step needed."""
        return Shape(self.batch_size, self.width)

    @property
    def graph_cells(self) -> int:
        """Cells the forward computes."""
        return self.graph_rows * self.graph_width

    @property
    def pad_cells(self) -> int:
        """Cells it computes beyond the open shape's."""
        return self.graph_cells - self.batch_size * self.width

    @property
    def pad_share(self) -> float:
        """`pad_cells / graph_cells`: this step's waste."""
        return self.pad_cells / self.graph_cells


def plan_decode(cache: BatchedPagedKVCache, rows: int) -> DecodePlan:
    """Plans one token for each of the cache's first `rows` rows, under the cache's policy or capture list.

    Every row must already have a slot for its token (`grow`). ValueError for a row count outside the cache's,
    SlotTableFull where a row is already `max_model_len` tokens long.
    """
    if not 1 <= rows <= cache.num_rows:
        raise ValueError(f"{rows} rows cannot decode: the cache holds {cache.num_rows}")
    lengths = cache.lengths[:rows]
    width = int(lengths.max()) + 1
    if width > cache.max_model_len:
        raise SlotTableFull(f"row {int(lengths.argmax())} already holds {cache.max_model_len} tokens, max_model_len")
    shape = cache.graph_shape(rows, width)
    graph_rows, graph_width = (rows, width) if shape is None else (shape.rows, shape.width)
    context = np.zeros(graph_rows, dtype=np.int64)
    np.add(lengths, 1, out=context[:rows])
    writes = np.full(graph_rows, cache.sink_slot, dtype=np.int64)
    writes[:rows] = cache.next_slots(rows)
    slots, is_window = cache.slot_table.read(range(rows), graph_width, pad_rows=graph_rows - rows)
    plan = DecodePlan(
        batch_size=rows,
        width=width,
        live_cells=int(context.sum()),
        graph_rows=graph_rows,
        graph_width=graph_width,
        is_bucketed=shape is not None,
        sink_slot=cache.sink_slot,
        slots=slots,
        is_window=is_window,
        context_snapshot=context,
        write_snapshot=writes,
    )
    cache.plan = plan
    return plan


def decode_shape(input_ids: Any, cache: BatchedPagedKVCache) -> Shape:
    """The dims that the forward of the cache's last plan runs; no tensor is read.

    PlanUnsound where nothing was planned, or `input_ids` has another number of rows than the plan.
    """
    plan: DecodePlan | None = cache.plan
    if plan is None:
        raise PlanUnsound("no step was planned yet: call plan_decode first")
    if input_ids.shape[0] != plan.graph_rows:
        raise PlanUnsound(f"input_ids has {input_ids.shape[0]} rows, the plan runs {plan.graph_rows}")
    return plan.shape


def check_plan_rows(plan: DecodePlan, cache: BatchedPagedKVCache) -> int:
    """That the rectangle fits the step and the policy, and its vectors fit the rectangle. Returns the graph rows."""
    if plan.batch_size < 1:
        raise PlanUnsound(f"the plan has {plan.batch_size} rows: a step decodes at least one")
    if not (plan.batch_size <= plan.graph_rows and plan.width <= plan.graph_width):
        raise PlanUnsound(f"the step is {plan.open_shape}, the forward would run {plan.shape}: it covers too little")
    if (cache.graph_shape(plan.batch_size, plan.width) or plan.open_shape) != plan.shape:
        raise PlanUnsound(f"the step {plan.open_shape} runs as {plan.shape}, which is not what the policy says")
    for name, vector in (("context_snapshot", plan.context_snapshot), ("write_snapshot", plan.write_snapshot)):
        if vector.shape != (plan.graph_rows,):
            raise PlanUnsound(f"{name} has shape {vector.shape}, the forward runs {plan.graph_rows} rows")
    if tuple(plan.slots.shape) != (plan.graph_rows, plan.graph_width):
        raise PlanUnsound(f"the slots are {tuple(plan.slots.shape)}, the forward runs {plan.shape}")
    return plan.graph_rows


def check_plan_addressing(plan: DecodePlan, cache: BatchedPagedKVCache) -> int:
    """That each row writes its last live entry, no slot twice, and lengths are at least 1 and counted right.

    Reads the slot table in host memory, never the device. Returns the rows checked.
    """
    if plan.batch_size < 1:
        raise PlanUnsound(f"the plan has {plan.batch_size} rows: a step decodes at least one")
    real = slice(0, plan.batch_size)
    lengths, writes = plan.context_snapshot[real], plan.write_snapshot[real]
    if int(lengths.min()) < 1:
        raise PlanUnsound(
            f"row {int(lengths.argmin())} has length {int(lengths.min())}: a decoding row holds its own token"
        )
    if (plan.width, plan.live_cells) != (int(lengths.max()), int(lengths.sum())):
        raise PlanUnsound(
            f"the plan says width {plan.width} and {plan.live_cells} live cells, its rows are up to {lengths.max()} "
            f"long and hold {int(lengths.sum())}: a newest token would lie outside"
        )
    last = cache.slot_table.host[np.arange(plan.batch_size), lengths - 1]
    wrong = np.flatnonzero(last != writes)
    if wrong.size:
        row = int(wrong[0])
        raise PlanUnsound(f"row {row} writes slot {int(writes[row])}, its last live entry is slot {int(last[row])}")
    if np.unique(writes).size != plan.batch_size:
        values, counts = np.unique(writes, return_counts=True)
        raise PlanUnsound(f"slot {int(values[counts.argmax()])} is written by {int(counts.max())} rows of one step")
    return plan.batch_size


def check_plan_current(plan: DecodePlan, cache: BatchedPagedKVCache) -> int:
    """That the cache has not moved on since the plan was made. Returns the rows compared."""
    lengths = cache.lengths[: plan.batch_size] + 1
    stale = np.flatnonzero(lengths != plan.context_snapshot[: plan.batch_size])
    if stale.size or plan.batch_size > cache.num_rows:
        row = int(stale[0]) if stale.size else cache.num_rows
        raise PlanUnsound(
            f"the plan is stale: row {row} was planned at length {int(plan.context_snapshot[row])}, now it would be "
            f"{int(cache.lengths[row]) + 1}: plan again after every step, admission and release"
        )
    return plan.batch_size


def check_plan_window(plan: DecodePlan, cache: BatchedPagedKVCache) -> int:
    """That `slots` is a window on the cache's own table, and the table still names the slots the plan writes.

    Storage and strides are compared, and the plan's own copy of the write slots with the table as it is now: the
    window itself shares the table's memory and could not disagree with it. Returns the cells of the window.
    """
    if not plan.is_window:
        raise SlotsUnsound(
            "the slots were gathered into a copy: a recorded graph would read a stale rectangle; decode a prefix"
        )
    if not _is_window_on(plan.slots, cache.slot_table.view):
        raise SlotsUnsound("the slots are no window on the cache's slot table: another table, offset or stride")
    now = cache.next_slots(plan.batch_size)
    wrong = np.flatnonzero(now != plan.write_snapshot[: plan.batch_size])
    if wrong.size:
        row = int(wrong[0])
        raise SlotsUnsound(
            f"row {row} was planned to write slot {int(plan.write_snapshot[row])}, the table now says {int(now[row])}"
        )
    return plan.graph_cells


def check_pad_inert(plan: DecodePlan) -> int:
    """That padded rows read nothing and write only the sink, and no real row writes the sink. Returns the padded rows.

    Holds on full batches too: every plan carries the sink.
    """
    if plan.sink_slot is None or plan.sink_slot < 1:
        raise PlanUnsound(f"sink_slot is {plan.sink_slot}: padding needs a slot past the blocks to write to")
    padding = slice(plan.batch_size, None)
    if plan.context_snapshot[padding].any():
        raise PlanUnsound(
            f"padded lengths are {plan.context_snapshot[padding].tolist()}: a padded row must read nothing, length 0"
        )
    if (plan.write_snapshot[padding] != plan.sink_slot).any():
        raise PlanUnsound(
            f"padded rows write slots {plan.write_snapshot[padding].tolist()}, they may write only the sink, "
            f"slot {plan.sink_slot}"
        )
    real_writes = plan.write_snapshot[: plan.batch_size]
    if (real_writes == plan.sink_slot).any():
        row = int(np.flatnonzero(real_writes == plan.sink_slot)[0])
        raise PlanUnsound(
            f"row {row} would write its token to the sink, slot {plan.sink_slot}: the row has no block for it"
        )
    return plan.pad_rows


def check_plan(plan: DecodePlan, cache: BatchedPagedKVCache) -> None:
    """Every gate over one plan."""
    check_plan_rows(plan, cache)
    check_plan_current(plan, cache)
    check_plan_window(plan, cache)
    check_plan_addressing(plan, cache)
    check_pad_inert(plan)


def _is_window_on(window: Any, table: Any) -> bool:
    """Same first element and same strides; NumPy arrays and tensors alike."""
    if isinstance(table, np.ndarray):
        return (
            isinstance(window, np.ndarray)
            and window.ctypes.data == table.ctypes.data
            and window.strides == table.strides
        )
    return bool(window.data_ptr() == table.data_ptr() and window.stride() == table.stride())
