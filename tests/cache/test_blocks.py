"""The allocator and the block table: nothing handed out twice, nothing lost, errors that change nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoserve import BlockAllocator, BlocksUnsound, BlockTable, KVCacheExhausted


def blocks(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def test_a_new_pool_hands_out_its_blocks_from_zero() -> None:
    allocator = BlockAllocator(4)
    assert allocator.num_free == 4
    assert allocator.allocate(3).tolist() == [0, 1, 2]
    assert allocator.num_free == 1
    assert allocator.free_blocks.tolist() == [3]


def test_the_last_freed_block_is_the_first_out() -> None:
    """Its memory is warm, and reuse shows a stale reader at once instead of after a lap of the pool."""
    allocator = BlockAllocator(6)
    allocator.allocate(6)
    allocator.free(blocks(4))
    allocator.free(blocks(1, 5))
    assert allocator.allocate(2).tolist() == [1, 5]
    assert allocator.allocate(1).tolist() == [4]


@pytest.mark.parametrize("count", [3, 100])
def test_exhaustion_allocates_nothing(count: int) -> None:
    allocator = BlockAllocator(4)
    allocator.allocate(2)
    with pytest.raises(KVCacheExhausted, match=f"{count} blocks asked for, 2 of 4"):
        allocator.allocate(count)
    assert allocator.num_free == 2
    assert allocator.allocate(2).tolist() == [2, 3]


def test_no_blocks_are_a_legal_request() -> None:
    allocator = BlockAllocator(1)
    assert allocator.allocate(0).size == 0
    allocator.free(blocks())
    assert allocator.num_free == 1


def test_a_negative_count_is_a_bad_argument() -> None:
    # Pinned: allocate(-1) returns nothing and counts one block more than the pool has (num_free == 5 of 4).
    allocator = BlockAllocator(4)
    with pytest.raises(ValueError, match="-1"):
        allocator.allocate(-1)
    assert allocator.num_free == 4


@pytest.mark.parametrize(
    ("freed", "named"), [((2, 2), r"\[2\]"), ((1, 2, 1), r"\[1\]"), ((0, 3), r"\[3\]"), ((3,), r"\[3\]")]
)
def test_a_double_free_in_one_call_frees_nothing(freed: tuple[int, ...], named: str) -> None:
    """vLLM once put a block named twice on its free list twice: two requests then shared it."""
    allocator = BlockAllocator(4)
    allocator.allocate(3)
    with pytest.raises(BlocksUnsound, match=named):
        allocator.free(blocks(*freed))
    assert allocator.num_free == 1
    allocator.free(blocks(0, 1, 2))
    assert sorted(allocator.free_blocks.tolist()) == [0, 1, 2, 3]


def test_a_double_free_in_two_calls_is_caught() -> None:
    allocator = BlockAllocator(4)
    allocator.allocate(4)
    allocator.free(blocks(1, 2))
    with pytest.raises(BlocksUnsound, match=r"\[2\]"):
        allocator.free(blocks(2, 3))
    assert sorted(allocator.free_blocks.tolist()) == [1, 2]


@pytest.mark.parametrize("number", [-1, -4, 4, 99])
def test_a_number_that_is_no_block_is_never_freed(number: int) -> None:
    """-1 is how a block table says "none": as a Python index it is the last block (vllm#43810)."""
    # Pinned: -1 is taken as the last block and put on the free list as -1; 4 is an IndexError, not BlocksUnsound.
    allocator = BlockAllocator(4)
    allocator.allocate(4)
    with pytest.raises(BlocksUnsound, match=str(number)):
        allocator.free(blocks(number))
    assert allocator.num_free == 0


@pytest.mark.parametrize("count", [0, -1])
def test_a_pool_has_a_block(count: int) -> None:
    with pytest.raises(ValueError, match=str(count)):
        BlockAllocator(count)


def test_what_is_reported_free_is_a_copy() -> None:
    allocator = BlockAllocator(3)
    allocator.free_blocks[:] = 7
    assert allocator.allocate(3).tolist() == [0, 1, 2]


def test_what_was_handed_out_is_a_copy() -> None:
    """A later free writes into the free list: a caller who holds a view would see its blocks change."""
    allocator = BlockAllocator(3)
    held = allocator.allocate(2)
    allocator.allocate(1)
    allocator.free(blocks(2))
    assert held.tolist() == [0, 1]


@given(st.data())
def test_free_and_held_always_add_up(data: st.DataObject) -> None:
    allocator, held = BlockAllocator(9), []
    for _ in range(data.draw(st.integers(1, 20))):
        if held and data.draw(st.booleans()):
            allocator.free(held.pop(data.draw(st.integers(0, len(held) - 1))))
        else:
            count = data.draw(st.integers(0, 4))
            if count <= allocator.num_free:
                held.append(allocator.allocate(count))
        everything = np.concatenate([allocator.free_blocks, *held])
        assert sorted(everything.tolist()) == list(range(9))
        assert allocator.num_free == allocator.free_blocks.size


# The block table.


def test_a_row_lists_its_blocks_in_the_order_of_its_tokens() -> None:
    table = BlockTable(3, 4)
    table.extend(1, blocks(7, 3))
    table.append_each(blocks(1, 2), blocks(9, 8))
    assert table.of(1).tolist() == [7, 3, 9]
    assert table.of(2).tolist() == [8]
    assert table.of(0).size == 0
    assert table.blocks.tolist() == [[-1, -1, -1, -1], [7, 3, 9, -1], [8, -1, -1, -1]]


def test_clearing_a_row_returns_what_it_held_and_leaves_none() -> None:
    table = BlockTable(2, 3)
    table.extend(0, blocks(5, 6))
    assert table.clear(0).tolist() == [5, 6]
    assert table.clear(0).size == 0
    assert (table.blocks == -1).all()
    assert not table.counts.any()


def test_a_move_takes_the_blocks_along_and_empties_the_source() -> None:
    table = BlockTable(3, 3)
    table.extend(2, blocks(5, 6))
    table.move(2, 0)
    assert table.of(0).tolist() == [5, 6]
    assert table.of(2).size == 0
    assert table.blocks[2].tolist() == [-1, -1, -1]
