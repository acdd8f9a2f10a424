"""A decode plan says everything about a step, keeps its own copies, and every gate catches the fault it is for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from nanoserve import (
    BatchedPagedKVCache,
    DecodeBuckets,
    DecodePlan,
    GateError,
    PlanUnsound,
    Shape,
    SlotsUnsound,
    SlotTableFull,
    check_pad_inert,
    check_plan,
    check_plan_addressing,
    check_plan_current,
    check_plan_rows,
    check_plan_window,
    decode_shape,
    plan_decode,
)

LENGTHS = (5, 9, 2)


def cache_of(*lengths: int, bucketed: bool = True, max_batch_size: int = 8, max_model_len: int = 40) -> Any:
    """Blocks of 4 tokens; 8 rows and 40 columns, bucketed 1, 2, 4, 8 by 16, 32, 40; every row ready to decode."""
    policy = DecodeBuckets(max_batch_size, max_model_len, width_multiple=16) if bucketed else None
    cache = BatchedPagedKVCache(max_batch_size, max_model_len, block_size=4, policy=policy)
    for length in lengths or LENGTHS:
        cache.admit(length)
    cache.grow(cache.rows_to_grow())
    return cache


def replace(plan: DecodePlan, **changes: Any) -> DecodePlan:
    return dataclasses.replace(plan, **changes)


def edited(vector: np.ndarray, index: int, value: int) -> np.ndarray:
    copy = vector.copy()
    copy[index] = value
    return copy


# What a plan says.


def test_a_bucketed_plan_says_both_meanings_of_its_size() -> None:
    cache = cache_of()
    plan = plan_decode(cache, 3)
    assert (plan.batch_size, plan.width, plan.live_cells) == (3, 10, 6 + 10 + 3)
    assert (plan.graph_rows, plan.graph_width, plan.pad_rows) == (4, 16, 1)
    assert (plan.shape, plan.open_shape) == (Shape(4, 16), Shape(3, 10))
    assert (plan.graph_cells, plan.pad_cells, plan.pad_share) == (64, 34, 34 / 64)
    assert plan.is_bucketed
    assert plan.is_window
    assert plan.sink_slot == cache.sink_slot
    assert plan.context_snapshot.tolist() == [6, 10, 3, 0]
    assert plan.write_snapshot.tolist() == [5, 17, 22, cache.sink_slot]
    check_plan(plan, cache)


def test_an_open_plan_runs_what_the_step_needs() -> None:
    cache = cache_of(bucketed=False)
    plan = plan_decode(cache, 3)
    assert plan.shape == plan.open_shape == Shape(3, 10)
    assert (plan.pad_rows, plan.pad_cells, plan.pad_share) == (0, 0, 0.0)
    assert not plan.is_bucketed
    assert plan.sink_slot == cache.sink_slot, "every plan carries the sink"
    check_plan(plan, cache)


@pytest.mark.parametrize("bucketed", [False, True])
def test_a_plan_of_some_of_the_rows_is_of_the_first(bucketed: bool) -> None:
    cache = cache_of(bucketed=bucketed)
    plan = plan_decode(cache, 1)
    assert plan.open_shape == Shape(1, 6)
    check_plan(plan, cache)


@pytest.mark.parametrize("rows", [0, 4, -1, 99])
def test_only_rows_that_are_there_decode(rows: int) -> None:
    with pytest.raises(ValueError, match=rf"{rows} rows cannot decode: the cache holds 3"):
        plan_decode(cache_of(), rows)


def test_the_widest_step_is_max_model_len_and_the_next_is_an_error() -> None:
    cache = cache_of(39, 3)
    plan = plan_decode(cache, 2)
    assert plan.open_shape == Shape(2, 40)
    check_plan(plan, cache)
    cache.advance(2)
    cache.grow(np.array([1]))
    with pytest.raises(SlotTableFull, match="row 0 already holds 40 tokens"):
        plan_decode(cache, 2)


def test_one_row_of_one_token_in_the_smallest_cache() -> None:
    cache = BatchedPagedKVCache(1, 2, block_size=16, bucket_decode=True)
    cache.admit(1)
    plan = plan_decode(cache, 1)
    assert plan.shape == Shape(1, 2)
    check_plan(plan, cache)


def test_a_plan_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan_decode(cache_of(), 3).batch_size = 2  # type: ignore[misc]


@pytest.mark.parametrize("bucketed", [False, True])
def test_the_slots_are_a_window_on_the_persistent_table(bucketed: bool) -> None:
    cache = cache_of(bucketed=bucketed)
    plan = plan_decode(cache, 3)
    assert plan.slots.ctypes.data == cache.slot_table.host.ctypes.data
    assert plan.slots.strides == cache.slot_table.host.strides
    assert (plan.slots[3:] == cache.sink_slot).all()


def test_decode_shape_is_read_off_the_plan() -> None:
    cache = cache_of()
    with pytest.raises(PlanUnsound, match="no step was planned"):
        decode_shape(np.zeros(4), cache)
    plan_decode(cache, 3)
    assert decode_shape(np.zeros(4), cache) == Shape(4, 16)
    for wrong in (3, 5):
        with pytest.raises(PlanUnsound, match=f"{wrong} rows, the plan runs 4"):
            decode_shape(np.zeros(wrong), cache)


def test_gates_return_their_figures() -> None:
    cache = cache_of()
    plan = plan_decode(cache, 3)
    assert check_plan_rows(plan, cache) == 4
    assert check_plan_current(plan, cache) == 3
    assert check_plan_window(plan, cache) == 64
    assert check_plan_addressing(plan, cache) == 3
    assert check_pad_inert(plan) == 1


# check_plan_rows


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"graph_rows": 2}, "3x10.*2x16.*too little"),
        ({"graph_width": 9}, "3x10.*4x9.*too little"),
        ({"graph_rows": 8}, "runs as 8x16, which is not what the policy says"),
        ({"graph_width": 32}, "runs as 4x32"),
        ({"batch_size": 5}, "too little"),
        ({"width": 17}, "too little"),
        ({"context_snapshot": np.array([6, 10, 3])}, r"context_snapshot has shape \(3,\)"),
        ({"write_snapshot": np.zeros(5, np.int64)}, r"write_snapshot has shape \(5,\)"),
        ({"slots": np.zeros((4, 15), np.int64)}, r"slots are \(4, 15\)"),
        ({"slots": np.zeros((3, 16), np.int64)}, r"slots are \(3, 16\)"),
    ],
)
def test_check_plan_rows_catches(changes: dict[str, Any], says: str) -> None:
    cache = cache_of()
    with pytest.raises(PlanUnsound, match=says):
        check_plan_rows(replace(plan_decode(cache, 3), **changes), cache)


def test_check_plan_rows_catches_an_open_plan_that_covers_too_little() -> None:
    cache = cache_of(bucketed=False)
    with pytest.raises(PlanUnsound, match="too little"):
        check_plan_rows(replace(plan_decode(cache, 3), graph_width=9), cache)


@pytest.mark.parametrize("bucketed", [False, True])
def test_a_width_below_the_longest_row_is_caught(bucketed: bool) -> None:
    """The newest token of the longest row would lie outside the rectangle, and the row would go on without it."""
    # Pinned: width is never compared with the lengths; with width and rectangle narrowed together every gate passes.
    cache = cache_of(16, 3, bucketed=bucketed)
    plan = plan_decode(cache, 2)
    assert plan.width == 17
    width = 16
    narrow = replace(plan, width=width, graph_width=width, slots=plan.slots[:, :width])
    with pytest.raises(GateError, match="16"):
        check_plan(narrow, cache)


def test_an_empty_plan_is_a_failed_gate_and_not_a_numpy_error() -> None:
    # Pinned: a plan of no rows gives ValueError from policy.shape_for, or from min() of nothing.
    cache = cache_of()
    empty = replace(plan_decode(cache, 3), batch_size=0)
    with pytest.raises(PlanUnsound):
        check_plan_rows(empty, cache)
    with pytest.raises(PlanUnsound):
        check_plan_addressing(empty, cache)


# check_plan_addressing


def test_check_plan_addressing_catches_a_write_that_is_not_the_last_live_entry() -> None:
    cache = cache_of()
    plan = plan_decode(cache, 3)
    with pytest.raises(PlanUnsound, match="row 1 writes slot 16, its last live entry is slot 17"):
        check_plan_addressing(replace(plan, write_snapshot=edited(plan.write_snapshot, 1, 16)), cache)
    longer = replace(plan, context_snapshot=edited(plan.context_snapshot, 2, 4), live_cells=plan.live_cells + 1)
    with pytest.raises(PlanUnsound, match="row 2 writes slot 22"):
        check_plan_addressing(longer, cache)
    with pytest.raises(PlanUnsound, match=r"19 live cells.*hold 20"):
        check_plan_addressing(replace(longer, live_cells=plan.live_cells), cache)


@pytest.mark.parametrize("length", [0, -1])
def test_check_plan_addressing_catches_a_real_row_of_no_length(length: int) -> None:
    """A length of 0 would index column -1: the last column of the row, silently."""
    cache = cache_of()
    plan = plan_decode(cache, 3)
    with pytest.raises(PlanUnsound, match=f"row 1 has length {length}"):
        check_plan_addressing(replace(plan, context_snapshot=edited(plan.context_snapshot, 1, length)), cache)


def test_check_plan_addressing_catches_two_rows_writing_one_slot() -> None:
    cache = cache_of()
    cache.slot_table.host[2, 2] = cache.slot_table.host[1, 9]
    plan = plan_decode(cache, 3)
    with pytest.raises(PlanUnsound, match="slot 17 is written by 2 rows"):
        check_plan_addressing(plan, cache)


# check_pad_inert


@pytest.mark.parametrize("sink", [None, 0, -1])
def test_check_pad_inert_needs_a_sink(sink: int | None) -> None:
    with pytest.raises(PlanUnsound, match=f"sink_slot is {sink}"):
        check_pad_inert(replace(plan_decode(cache_of(), 3), sink_slot=sink))


def test_check_pad_inert_catches_a_padded_row_that_reads() -> None:
    plan = plan_decode(cache_of(), 3)
    with pytest.raises(PlanUnsound, match=r"padded lengths are \[1\]"):
        check_pad_inert(replace(plan, context_snapshot=edited(plan.context_snapshot, 3, 1)))


@pytest.mark.parametrize("slot", [0, -1, 321])
def test_check_pad_inert_catches_a_padded_row_that_writes_a_block(slot: int) -> None:
    """vllm#43810: -1 as a padding slot is Python's last slot, and padding overwrote a live token."""
    plan = plan_decode(cache_of(), 3)
    with pytest.raises(PlanUnsound, match=rf"padded rows write slots \[{slot}\].*slot 320"):
        check_pad_inert(replace(plan, write_snapshot=edited(plan.write_snapshot, 3, slot)))


@pytest.mark.parametrize("lengths", [(5, 9, 2), (5, 9, 2, 7)])
def test_check_pad_inert_catches_a_real_row_that_writes_the_sink_on_full_batches_too(lengths: tuple[int, ...]) -> None:
    plan = plan_decode(cache_of(*lengths), len(lengths))
    assert check_pad_inert(plan) == 4 - len(lengths)
    with pytest.raises(PlanUnsound, match="row 1 would write its token to the sink, slot 320"):
        check_pad_inert(replace(plan, write_snapshot=edited(plan.write_snapshot, 1, 320)))


def test_a_row_that_was_never_grown_is_caught() -> None:
    cache = cache_of(4, 3)
    cache.release(1)
    cache.compact()
    cache.admit(8)
    plan = plan_decode(cache, 2)
    with pytest.raises(PlanUnsound, match="row 1 would write its token to the sink"):
        check_plan(plan, cache)


# check_plan_window


@pytest.mark.parametrize("attached", [False, True])
@pytest.mark.parametrize(
    "planted",
    [
        lambda view: view[:4, :16].copy() if isinstance(view, np.ndarray) else view[:4, :16].clone(),
        lambda view: view[1:5, :16],
        lambda view: view[:4, 1:17],
        lambda view: view[:8:2, :16],
        lambda view: view[:4, :32:2],
    ],
    ids=["copy", "from row 1", "from column 1", "every other row", "every other column"],
)
def test_check_plan_window_catches_what_is_no_window(attached: bool, planted: Callable[[Any], Any]) -> None:
    cache = cache_of()
    if attached:
        torch = pytest.importorskip("torch")
        cache.slot_table.attach(torch.from_numpy(cache.slot_table.host), None)
    plan = replace(plan_decode(cache, 3), slots=planted(cache.slot_table.view))
    assert tuple(plan.slots.shape) == (4, 16)
    with pytest.raises(SlotsUnsound, match="no window on the cache's slot table"):
        check_plan_window(plan, cache)


def test_check_plan_window_catches_a_gathered_copy() -> None:
    cache = cache_of()
    gathered, is_window = cache.slot_table.read([1, 0], 16, pad_rows=2)
    with pytest.raises(SlotsUnsound, match="gathered into a copy"):
        check_plan_window(replace(plan_decode(cache, 3), slots=gathered, is_window=is_window), cache)


def test_check_plan_window_catches_the_table_of_another_cache() -> None:
    cache, other = cache_of(), cache_of()
    with pytest.raises(SlotsUnsound, match="no window"):
        check_plan_window(plan_decode(cache, 3), other)


def test_check_plan_window_catches_slots_that_moved() -> None:
    cache = cache_of()
    plan = plan_decode(cache, 3)
    cache.slot_table.host[1, 9] = 99
    with pytest.raises(SlotsUnsound, match="row 1 was planned to write slot 17, the table now says 99"):
        check_plan_window(plan, cache)


# A witness that shares storage stops being a witness: hold a plan, move on, plan again, and each check still fails.


def advanced(cache: BatchedPagedKVCache) -> None:
    cache.advance(3)


def one_row_released(cache: BatchedPagedKVCache) -> None:
    cache.release(2)
    cache.compact()


def compacted(cache: BatchedPagedKVCache) -> None:
    cache.release(0)
    cache.compact()
    cache.admit(5)


@pytest.mark.parametrize("move_on", [advanced, one_row_released, compacted])
def test_a_held_plan_is_seen_to_be_stale_after_planning_again(move_on: Callable[[BatchedPagedKVCache], None]) -> None:
    cache = cache_of()
    held = plan_decode(cache, 3)
    move_on(cache)
    cache.grow(cache.rows_to_grow())
    again = plan_decode(cache, cache.num_rows)
    check_plan(again, cache)
    with pytest.raises(PlanUnsound, match="the plan is stale: row"):
        check_plan_current(held, cache)


def test_a_held_plan_still_says_what_it_said() -> None:
    cache = cache_of()
    held = plan_decode(cache, 3)
    context, writes = held.context_snapshot.tolist(), held.write_snapshot.tolist()
    for _ in range(3):
        cache.advance(3)
        cache.grow(cache.rows_to_grow())
        plan_decode(cache, 3)
    assert held.context_snapshot.tolist() == context
    assert held.write_snapshot.tolist() == writes


def test_a_held_plan_of_the_same_length_in_other_blocks_fails_the_window_check() -> None:
    """The lengths agree, and the slots it holds are a window on the table as it is now: only the copy can tell."""
    cache = cache_of()
    held = plan_decode(cache, 3)
    for row in (1, 2):
        cache.release(row)
    cache.compact()
    cache.admit(2)  # takes a block that was row 1's
    cache.release(1)
    cache.compact()
    cache.allocator.allocate(1)
    cache.admit(9)
    cache.admit(2)
    cache.grow(cache.rows_to_grow())
    check_plan(plan_decode(cache, 3), cache)
    assert check_plan_current(held, cache) == 3
    with pytest.raises(SlotsUnsound, match="was planned to write slot"):
        check_plan_window(held, cache)


def test_the_snapshots_share_no_storage_with_the_cache() -> None:
    cache = cache_of()
    plan = plan_decode(cache, 3)
    for mine in (plan.context_snapshot, plan.write_snapshot):
        for theirs in (cache.lengths, cache.slot_table.host, cache.block_table.blocks):
            assert not np.shares_memory(mine, theirs)


# What planning costs.


def seconds_per_plan(rows: int) -> float:
    cache = cache_of(*([1000] * rows), max_batch_size=256, max_model_len=2048)
    best = float("inf")
    for _ in range(12):
        start = perf_counter()
        for _ in range(100):
            plan_decode(cache, rows)
        best = min(best, perf_counter() - start)
    return best / 100


def test_a_plan_of_256_rows_costs_about_what_one_of_8_does() -> None:
    """A Python loop over the rows would make it about 30 times as much; best of twelve, and generous."""
    small, large = seconds_per_plan(8), seconds_per_plan(256)
    assert large < 4 * small, f"{large * 1e6:.1f} us for 256 rows, {small * 1e6:.1f} us for 8"


def test_planning_makes_no_tensor_storage() -> None:
    torch = pytest.importorskip("torch")
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.storages: list[int] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            self.storages.append(out.untyped_storage().data_ptr())
            return out

    cache = cache_of()
    cache.slot_table.attach(torch.from_numpy(cache.slot_table.host), None)
    with Watch() as watch:
        for _ in range(10):
            plan_decode(cache, 3)
            cache.advance(3)
            cache.grow(cache.rows_to_grow())
    assert watch.storages, "the window is read from the tensor"
    assert set(watch.storages) == {cache.slot_table.view.untyped_storage().data_ptr()}
