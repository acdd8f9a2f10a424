"""The batched paged KV cache: rows, their blocks, their slots and their lengths, kept in step.

Active rows are the ordered prefix `0..num_rows-1` whenever a step is planned: `release` leaves a hole, `compact`
closes all holes. The pool tensor, where there is one, is one row taller than the blocks: that row is the sink.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoserve.buckets import CaptureList, DecodeBuckets, DecodePolicy, Shape
from nanoserve.cache.blocks import BlockAllocator, BlocksUnsound, BlockTable, KVCacheExhausted
from nanoserve.cache.slots import SlotsUnsound, SlotTable

Ints = NDArray[np.int64]


class BatchedPagedKVCache:
    """Blocks of `block_size` tokens for up to `max_batch_size` rows of up to `max_model_len` tokens.

    `num_blocks=None` gives every row its full length. `bucket_decode=True` builds the default `DecodeBuckets`
    from the two limits; a `policy` implies it and must have the same limits; a capture list must lie within them. The
    attribute `pool` is the K/V tensor `[layers, 2, num_slots, kv_heads, head_dim]`, with
    `num_slots = num_blocks * block_size + 1`, or None where steps are only planned. ValueError for limits below 1, a
    pool too small for one row of `max_model_len` tokens, a policy with other limits, or `bucket_decode=False` beside
    one.
    """

    def __init__(
        self,
        max_batch_size: int,
        max_model_len: int,
        *,
        block_size: int = 16,
        num_blocks: int | None = None,
        bucket_decode: bool | None = None,
        policy: DecodePolicy | CaptureList | None = None,
    ) -> None:
        for name, value in (
            ("max_batch_size", max_batch_size),
            ("max_model_len", max_model_len),
            ("block_size", block_size),
        ):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.max_batch_size = max_batch_size
        self.max_model_len = max_model_len
        self.block_size = block_size
        self.blocks_per_row = -(-max_model_len // block_size)
        self.num_blocks = max_batch_size * self.blocks_per_row if num_blocks is None else num_blocks
        if self.num_blocks < self.blocks_per_row:
            raise ValueError(
                f"num_blocks {self.num_blocks} is too small: one request of max_model_len {max_model_len} needs "
                f"{self.blocks_per_row} blocks of {block_size} tokens"
            )
        self.decode_buckets = _resolve_policy(max_batch_size, max_model_len, bucket_decode, policy)
        self.sink_slot = self.num_blocks * block_size
        self.allocator = BlockAllocator(self.num_blocks)
        self.block_table = BlockTable(max_batch_size, self.blocks_per_row)
        self.slot_table = SlotTable(max_batch_size, max_model_len, block_size, self.sink_slot)
        self.lengths = np.zeros(max_batch_size, dtype=np.int64)
        self.num_rows = 0
        self.pool: Any = None
        self.plan: Any = None
        self._active = np.zeros(max_batch_size, dtype=bool)
        self._has_holes = False
        self._row_order = np.arange(max_batch_size, dtype=np.int64)

    @property
    def bucket_decode(self) -> bool:
        """Whether decode steps run as shapes of a closed set."""
        return self.decode_buckets is not None

    def graph_shape(self, rows: int, width: int) -> Shape | None:
        """What a step of `rows` by `width` runs as; None for as it is, with no policy or off a capture list."""
        policy = self.decode_buckets
        if policy is None:
            return None
        return policy.find(rows, width) if isinstance(policy, CaptureList) else policy.shape_for(rows, width)

    @property
    def num_slots(self) -> int:
        """Rows of the pool tensor: one a token, and the sink past the last."""
        return self.sink_slot + 1

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold `tokens` tokens of one row."""
        return -(-tokens // self.block_size)

    def can_admit(self, length: int) -> bool:
        """Whether a row is free, and blocks for `length` tokens and the first one decoded."""
        needed = self.blocks_for(min(length + 1, self.max_model_len))
        return self.num_rows < self.max_batch_size and needed <= self.allocator.num_free

    def admit(self, length: int) -> int:
        """A new row after the others, with slots for `length` tokens. Raises KVCacheExhausted and changes nothing."""
        if self.num_rows == self.max_batch_size:
            raise KVCacheExhausted(f"all {self.max_batch_size} rows are taken")
        if not 1 <= length <= self.max_model_len:
            raise ValueError(f"a row holds 1 to {self.max_model_len} tokens, not {length}")
        blocks = self._hand_out(self.blocks_for(length))
        row = self.num_rows
        self.num_rows += 1
        self._active[row] = True
        self.block_table.extend(row, blocks)
        first_columns = np.arange(blocks.size, dtype=np.int64) * self.block_size
        self.slot_table.assign(np.full(blocks.size, row, dtype=np.int64), first_columns, blocks)
        self.lengths[row] = length
        return row

    def rows_to_grow(self) -> Ints:
        """Active rows whose next token has no slot yet."""
        rows = slice(0, self.num_rows)
        full = self.lengths[rows] == self.block_table.counts[rows] * self.block_size
        return np.flatnonzero(full & self._active[rows])

    def grow(self, rows: Ints) -> None:
        """One more block for each of `rows`. Raises KVCacheExhausted or SlotTableFull, and then changes nothing."""
        first_columns = self.block_table.counts[rows] * self.block_size
        self.slot_table.check_room(rows, first_columns)
        blocks = self._hand_out(rows.size)
        self.slot_table.assign(rows, first_columns, blocks)
        self.block_table.append_each(rows, blocks)

    def advance(self, rows: int) -> None:
        """Counts the token that a decode step wrote in each of the first `rows` rows. The one place a length grows."""
        self.lengths[:rows] += 1

    def release(self, row: int) -> None:
        """Gives a row's blocks back and leaves a hole. BlocksUnsound where the row is not active."""
        if not self._active[row]:
            raise BlocksUnsound(f"row {row} is released twice or was never admitted")
        self.slot_table.clear(row, self._columns(row))
        self.allocator.free(self.block_table.clear(row))
        self.lengths[row] = 0
        self._active[row] = False
        self._has_holes = True

    def compact(self) -> list[tuple[int, int]]:
        """Closes every hole with the last row, so that the active rows are `0..num_rows-1`.

        Returns the moves `(source, target)`, never more than the releases since the last call. Whoever keeps
        anything per row must move it the same way.
        """
        if not self._has_holes:
            return []
        active = np.flatnonzero(self._active)
        holes = np.flatnonzero(~self._active[: active.size])
        sources = active[active.size - holes.size :][::-1]
        moves = list(zip(sources.tolist(), holes.tolist(), strict=True))
        for source, target in moves:
            self.slot_table.move(source, target, self._columns(source))
            self.block_table.move(source, target)
            self.lengths[target], self.lengths[source] = self.lengths[source], 0
            self._active[target], self._active[source] = True, False
        self.num_rows = int(active.size)
        self._has_holes = False
        return moves

    def next_slots(self, rows: int) -> Ints:
        """Where each of the first `rows` rows writes its next token, int64 `[rows]`; the sink where it has no slot."""
        lengths = self.lengths[:rows]
        slots: Ints = self.slot_table.host[self._row_order[:rows], np.minimum(lengths, self.max_model_len - 1)]
        return np.where(lengths < self.max_model_len, slots, self.sink_slot)

    def _columns(self, row: int) -> int:
        return int(self.block_table.counts[row]) * self.block_size

    def _hand_out(self, count: int) -> Ints:
        """Allocates blocks and scrubs them: what the last owner left there must not reach the next."""
        blocks = self.allocator.allocate(count)
        if self.pool is not None:
            for start, stop in _runs(np.sort(blocks)):
                self.pool[:, :, start * self.block_size : stop * self.block_size].zero_()
        return blocks


def _runs(numbers: Ints) -> list[tuple[int, int]]:
    """Ascending numbers as half-open ranges of consecutive ones."""
    if not numbers.size:
        return []
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    return [(int(run[0]), int(run[-1]) + 1) for run in np.split(numbers, breaks)]


def _resolve_policy(
    max_batch_size: int, max_model_len: int, bucket_decode: bool | None, policy: DecodePolicy | CaptureList | None
) -> DecodePolicy | CaptureList | None:
    if policy is None:
        return DecodeBuckets(max_batch_size, max_model_len) if bucket_decode else None
    if bucket_decode is False:
        raise ValueError("bucket_decode=False beside a policy: drop one of the two")
    if isinstance(policy, CaptureList):
        beyond = [shape for shape in policy.shapes if shape.rows > max_batch_size or shape.width > max_model_len]
        if beyond:
            raise ValueError(f"shape {beyond[0]} of the list is beyond the cache's {max_batch_size}x{max_model_len}")
        return policy
    limits = (policy.max_batch_size, policy.max_model_len)
    if limits != (max_batch_size, max_model_len):
        raise ValueError(
            f"the policy's limits are {limits[0]} rows and {limits[1]} columns, the cache's are {max_batch_size} and "
            f"{max_model_len}: build the policy from the cache's"
        )
    return policy


def audit_blocks(cache: BatchedPagedKVCache) -> int:
    """That every block is free or held by exactly one active row, and the slot table says what the block table says.

    Returns the number of blocks held. Raises BlocksUnsound or SlotsUnsound; run it after every step, abort and error
    of a test.
    """
    table, counts = cache.block_table.blocks, cache.block_table.counts
    listed = np.arange(table.shape[1]) < counts[:, None]
    held = np.sort(table[listed])
    everything = np.sort(np.concatenate((held, cache.allocator.free_blocks)))
    if not np.array_equal(everything, np.arange(cache.num_blocks)):
        lost = sorted(set(range(cache.num_blocks)) - set(everything.tolist()))
        twice = sorted(set(everything[1:][np.diff(everything) == 0].tolist()))
        raise BlocksUnsound(f"{cache.num_blocks} blocks do not add up: stranded {lost[:8]}, in two places {twice[:8]}")
    if not np.array_equal(held, np.flatnonzero(cache.allocator.allocated)):
        raise BlocksUnsound("the allocator's marks differ from what the rows hold: a double free would go unseen")
    if (table[~listed] != -1).any():
        raise BlocksUnsound("the block table names blocks past a row's count")
    capacity = counts * cache.block_size
    if (cache.lengths > capacity).any() or (cache.lengths > cache.max_model_len).any():
        raise BlocksUnsound(f"a row is longer than its blocks: lengths {cache.lengths}, room {capacity}")
    if ((counts > 0) != cache._active).any() or cache._active[cache.num_rows :].any():
        raise BlocksUnsound("a row without a request holds blocks, or an active row holds none")
    columns = np.arange(cache.max_model_len)
    owner = np.where(listed, table, 0)[:, columns // cache.block_size]
    expected = np.where(
        columns < capacity[:, None], owner * cache.block_size + columns % cache.block_size, cache.sink_slot
    )
    wrong = np.argwhere(cache.slot_table.host != expected)
    if wrong.size:
        row, column = wrong[0].tolist()
        raise SlotsUnsound(
            f"slot table row {row} column {column} says {int(cache.slot_table.host[row, column])}, "
            f"its blocks say {int(expected[row, column])}"
        )
    return int(held.size)
