"""Blocks of the KV pool: a free list, and which row holds which blocks. Integers in NumPy arrays; no tensors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nanoserve.buckets import GateError

Ints = NDArray[np.int64]


class KVCacheExhausted(RuntimeError):
    """The pool has fewer free blocks than were asked for. Nothing was allocated."""


class BlocksUnsound(GateError):
    """The ledger of blocks is wrong: a block freed twice, lost, or held by two rows."""


class BlockAllocator:
    """A pool of `num_blocks` blocks, numbered from 0, handed out last-freed first; `allocated` marks them."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1, got {num_blocks}")
        self.num_blocks = num_blocks
        self._free = np.arange(num_blocks - 1, -1, -1, dtype=np.int64)
        self._num_free = num_blocks
        self.allocated = np.zeros(num_blocks, dtype=bool)

    @property
    def num_free(self) -> int:
        """How many blocks nobody holds."""
        return self._num_free

    @property
    def free_blocks(self) -> Ints:
        """The blocks nobody holds (a copy)."""
        return self._free[: self._num_free].copy()

    def allocate(self, count: int) -> Ints:
        """`count` block numbers, int64 `[count]`. KVCacheExhausted if fewer are free, ValueError below 0."""
        if count < 0:
            raise ValueError(f"blocks are allocated 0 or more at a time, got {count}")
        if count > self._num_free:
            raise KVCacheExhausted(f"{count} blocks asked for, {self._num_free} of {self.num_blocks} are free")
        start = self._num_free - count
        blocks = self._free[start : self._num_free][::-1].copy()
        self._num_free = start
        self.allocated[blocks] = True
        return blocks

    def free(self, blocks: Ints) -> None:
        """Takes blocks back. Raises BlocksUnsound, and takes none, where one is not allocated or named twice."""
        known = (blocks >= 0) & (blocks < self.num_blocks)
        held = known & self.allocated[np.where(known, blocks, 0)]
        if not held.all() or np.unique(blocks).size != blocks.size:
            twice = {int(b) for b, count in zip(*np.unique(blocks, return_counts=True), strict=True) if count > 1}
            wrong = sorted(twice | set(blocks[~held].tolist()))
            raise BlocksUnsound(f"blocks {wrong} are freed twice or were never allocated")
        self.allocated[blocks] = False
        self._free[self._num_free : self._num_free + blocks.size] = blocks[::-1]
        self._num_free += int(blocks.size)


class BlockTable:
    """The blocks of each row in order: int64 `[max_batch_size, blocks_per_row]`, -1 where a row holds none."""

    def __init__(self, max_batch_size: int, blocks_per_row: int) -> None:
        self.blocks = np.full((max_batch_size, blocks_per_row), -1, dtype=np.int64)
        self.counts = np.zeros(max_batch_size, dtype=np.int64)

    def of(self, row: int) -> Ints:
        """The blocks of one row, in the order of its tokens (a view)."""
        return self.blocks[row, : self.counts[row]]

    def extend(self, row: int, blocks: Ints) -> None:
        """Appends blocks to one row."""
        count = int(self.counts[row])
        self.blocks[row, count : count + blocks.size] = blocks
        self.counts[row] = count + blocks.size

    def append_each(self, rows: Ints, blocks: Ints) -> None:
        """Appends one block to each of several rows."""
        self.blocks[rows, self.counts[rows]] = blocks
        self.counts[rows] += 1

    def clear(self, row: int) -> Ints:
        """Empties a row and returns what it held."""
        held = self.of(row).copy()
        self.blocks[row, : held.size] = -1
        self.counts[row] = 0
        return held

    def move(self, source: int, target: int) -> None:
        """Gives `source`'s blocks to the empty row `target`."""
        held = self.clear(source)
        self.extend(target, held)
