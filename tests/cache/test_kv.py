"""Rows, blocks, slots and lengths kept in step; the audit on planted faults; the scrub; compaction."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from nanoserve import (
    BatchedPagedKVCache,
    BlocksUnsound,
    DecodeBuckets,
    KVCacheExhausted,
    SlotsUnsound,
    SlotTableFull,
    StaircaseBuckets,
    audit_blocks,
)


def cache_of(*lengths: int, max_batch_size: int = 6, max_model_len: int = 20, **options: int) -> BatchedPagedKVCache:
    """A cache of blocks of 4 tokens with one row a length."""
    cache = BatchedPagedKVCache(max_batch_size, max_model_len, **{"block_size": 4, **options})  # type: ignore[arg-type]
    for length in lengths:
        cache.admit(length)
    return cache


def rows(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


# Sizes.


@pytest.mark.parametrize(
    ("max_model_len", "block_size", "each"),
    [(16, 16, 1), (17, 16, 2), (15, 16, 1), (1, 16, 1), (20, 4, 5), (20, 1, 20)],
)
def test_the_default_pool_gives_every_row_its_full_length(max_model_len: int, block_size: int, each: int) -> None:
    cache = BatchedPagedKVCache(3, max_model_len, block_size=block_size)
    assert cache.num_blocks == 3 * each
    for _ in range(3):
        cache.admit(max_model_len)
    assert audit_blocks(cache) == 3 * each
    assert cache.allocator.num_free == 0


def test_the_sink_is_one_past_the_blocks_and_no_row_can_name_it() -> None:
    cache = cache_of(20, 20, num_blocks=10)
    assert cache.sink_slot == 40
    assert cache.num_slots == 41
    assert cache.slot_table.host[:2].max() == 39
    assert (cache.slot_table.host[2:] == 40).all()


def test_a_pool_too_small_for_one_request_is_an_error_with_both_numbers() -> None:
    assert BatchedPagedKVCache(8, 100, num_blocks=7).num_blocks == 7
    with pytest.raises(ValueError, match=r"num_blocks 6 is too small.*100 needs 7 blocks"):
        BatchedPagedKVCache(8, 100, num_blocks=6)


@pytest.mark.parametrize(
    ("limits", "named"), [((0, 8, 4), "max_batch"), ((2, 0, 4), "max_model"), ((2, 8, 0), "block")]
)
def test_limits_below_one_are_refused(limits: tuple[int, int, int], named: str) -> None:
    with pytest.raises(ValueError, match=f"{named}.*0"):
        BatchedPagedKVCache(limits[0], limits[1], block_size=limits[2])


def test_the_policy_is_built_from_the_caches_own_limits() -> None:
    assert BatchedPagedKVCache(6, 300).decode_buckets is None
    assert BatchedPagedKVCache(6, 300, bucket_decode=False).bucket_decode is False
    assert BatchedPagedKVCache(6, 300, bucket_decode=True).decode_buckets == DecodeBuckets(6, 300)
    given = StaircaseBuckets(6, 300, {6: [300]})
    assert BatchedPagedKVCache(6, 300, policy=given).decode_buckets is given
    assert BatchedPagedKVCache(6, 300, policy=given, bucket_decode=True).decode_buckets is given


@pytest.mark.parametrize("policy", [DecodeBuckets(8, 300), DecodeBuckets(6, 301), DecodeBuckets(4, 128)])
def test_a_policy_with_other_limits_is_refused_with_both(policy: DecodeBuckets) -> None:
    named = rf"{policy.max_batch_size} rows and {policy.max_model_len} columns.*6 and 300"
    with pytest.raises(ValueError, match=named):
        BatchedPagedKVCache(6, 300, policy=policy)


def test_no_bucketing_beside_a_policy_is_a_contradiction() -> None:
    with pytest.raises(ValueError, match="bucket_decode=False beside a policy"):
        BatchedPagedKVCache(6, 300, bucket_decode=False, policy=DecodeBuckets(6, 300))


# Rows.


def test_admitted_rows_are_a_prefix_with_slots_for_their_prompts() -> None:
    cache = cache_of(5, 4, 1)
    assert cache.num_rows == 3
    assert cache.lengths.tolist() == [5, 4, 1, 0, 0, 0]
    assert cache.block_table.counts.tolist() == [2, 1, 1, 0, 0, 0]
    assert cache.slot_table.host[0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, *[120] * 12]
    assert audit_blocks(cache) == 4


def test_exhausted_rows_and_blocks_admit_nothing_and_change_nothing() -> None:
    cache = cache_of(20, num_blocks=6)
    with pytest.raises(KVCacheExhausted, match="2 blocks asked for, 1 of 6"):
        cache.admit(5)
    assert audit_blocks(cache) == 5
    assert (cache.num_rows, cache.allocator.num_free) == (1, 1)
    full = cache_of(1, 1, max_batch_size=2)
    with pytest.raises(KVCacheExhausted, match="all 2 rows are taken"):
        full.admit(1)
    assert audit_blocks(full) == 2


@pytest.mark.parametrize("length", [0, -1, 21])
def test_a_length_no_row_can_have_is_refused(length: int) -> None:
    cache = cache_of(3)
    with pytest.raises(ValueError, match=rf"1 to 20 tokens, not {length}"):
        cache.admit(length)
    assert audit_blocks(cache) == 1


@pytest.mark.parametrize(("length", "free", "fits"), [(3, 1, True), (4, 1, False), (4, 2, True), (20, 5, True)])
def test_admission_counts_the_first_decoded_token(length: int, free: int, fits: bool) -> None:
    """A prompt of exactly one block needs a second at once; one of max_model_len never needs another."""
    cache = BatchedPagedKVCache(3, 20, block_size=4, num_blocks=10)
    cache.allocator.allocate(10 - free)
    assert cache.can_admit(length) is fits


def test_there_is_no_room_without_a_row() -> None:
    assert not cache_of(1, 1, max_batch_size=2).can_admit(1)


@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
def test_a_row_grows_at_exact_multiples_of_the_block_and_nowhere_else(block_size: int) -> None:
    """`length % block_size == 1` was missed once at 257; a zero remainder was read as an empty block once."""
    cache = BatchedPagedKVCache(1, 40, block_size=block_size)
    cache.admit(1)
    grew_at = []
    while cache.lengths[0] < 40:
        if cache.rows_to_grow().size:
            grew_at.append(int(cache.lengths[0]))
            cache.grow(cache.rows_to_grow())
        assert cache.next_slots(1)[0] != cache.sink_slot
        cache.advance(1)
        audit_blocks(cache)
    assert grew_at == [n for n in range(1, 40) if n % block_size == 0]


@pytest.mark.parametrize("max_model_len", [1, 5, 18, 19, 21])
def test_max_model_len_need_be_no_multiple_of_the_block(max_model_len: int) -> None:
    cache = BatchedPagedKVCache(2, max_model_len, block_size=8)
    cache.admit(max_model_len)
    cache.admit(1)
    assert audit_blocks(cache) == -(-max_model_len // 8) + 1
    assert (cache.slot_table.host[0] < cache.sink_slot).all()


def test_growth_that_the_pool_cannot_serve_changes_nothing() -> None:
    cache = cache_of(4, 4, 12, num_blocks=6)
    assert cache.rows_to_grow().tolist() == [0, 1, 2]
    with pytest.raises(KVCacheExhausted, match="3 blocks asked for, 1 of 6"):
        cache.grow(cache.rows_to_grow())
    assert audit_blocks(cache) == 5
    cache.grow(rows(1))
    assert audit_blocks(cache) == 6


def test_a_full_row_that_is_grown_anyway_strands_no_block() -> None:
    # Pinned: grow() takes the block before SlotTableFull is raised, and nobody holds it afterwards.
    cache = cache_of(20, num_blocks=6)
    with pytest.raises(SlotTableFull, match="row 0"):
        cache.grow(rows(0))
    assert audit_blocks(cache) == 5


def test_the_next_slot_follows_the_last_token() -> None:
    cache = cache_of(5, 4, 20)
    assert cache.next_slots(3).tolist() == [5, cache.sink_slot, cache.sink_slot]
    cache.grow(rows(1))
    assert cache.next_slots(2).tolist() == [5, int(cache.block_table.of(1)[1]) * 4]


def test_release_returns_every_block_and_leaves_the_sink() -> None:
    cache = cache_of(5, 9)
    cache.release(0)
    assert audit_blocks(cache) == 3
    assert (cache.slot_table.host[0] == cache.sink_slot).all()
    assert cache.lengths.tolist() == [0, 9, 0, 0, 0, 0]


def test_a_row_is_released_once() -> None:
    cache = cache_of(5, 9)
    cache.release(0)
    for row in (0, 2):
        with pytest.raises(BlocksUnsound, match=f"row {row} is released twice or was never"):
            cache.release(row)
    assert audit_blocks(cache) == 3


# Compaction.


def contents(cache: BatchedPagedKVCache, row: int) -> tuple[int, list[int], list[int]]:
    return int(cache.lengths[row]), cache.block_table.of(row).tolist(), cache.slot_table.host[row].tolist()


@pytest.mark.parametrize(
    ("released", "moves"),
    [
        ((), []),
        ((5,), []),
        ((0,), [(5, 0)]),
        ((2, 4), [(5, 2)]),
        ((0, 1, 2), [(5, 0), (4, 1), (3, 2)]),
        ((0, 5), [(4, 0)]),
        ((0, 1, 2, 3, 4), [(5, 0)]),
        ((0, 1, 2, 3, 4, 5), []),
    ],
)
def test_compaction_fills_holes_from_the_end(released: tuple[int, ...], moves: list[tuple[int, int]]) -> None:
    cache = cache_of(3, 7, 11, 15, 19, 20)
    before = {row: contents(cache, row) for row in range(6)}
    for row in released:
        cache.release(row)
    assert cache.compact() == moves
    assert len(moves) <= len(released)
    assert cache.num_rows == 6 - len(released)
    audit_blocks(cache)
    where = {row: row for row in range(6) if row not in released} | dict(moves)
    assert sorted(where.values()) == list(range(cache.num_rows))
    for was, now in where.items():
        assert contents(cache, now) == before[was], "length, blocks and slots move together"
    assert cache.compact() == []


def test_a_released_row_is_taken_again_only_after_compaction() -> None:
    cache = cache_of(1, 1, max_batch_size=2)
    cache.release(0)
    with pytest.raises(KVCacheExhausted, match="rows are taken"):
        cache.admit(1)
    assert cache.compact() == [(1, 0)]
    assert cache.admit(1) == 1
    audit_blocks(cache)


# The audit, on planted faults.


def strand(cache: BatchedPagedKVCache) -> None:
    cache.block_table.blocks[1, 1] = -1
    cache.block_table.counts[1] = 1


def lose_a_free_block(cache: BatchedPagedKVCache) -> None:
    cache.allocator.allocate(1)


def two_owners(cache: BatchedPagedKVCache) -> None:
    cache.block_table.blocks[1, 0] = cache.block_table.blocks[0, 0]


def owned_and_free(cache: BatchedPagedKVCache) -> None:
    cache.allocator.allocated[0] = False
    cache.allocator._free[cache.allocator._num_free] = 0
    cache.allocator._num_free += 1


def past_the_count(cache: BatchedPagedKVCache) -> None:
    cache.block_table.blocks[0, 4] = 9


def the_sink_as_a_block(cache: BatchedPagedKVCache) -> None:
    cache.block_table.blocks[1, 1] = cache.num_blocks


def longer_than_its_blocks(cache: BatchedPagedKVCache) -> None:
    cache.lengths[0] = 9


def a_length_without_a_row(cache: BatchedPagedKVCache) -> None:
    cache.lengths[4] = 1


def a_row_nobody_has(cache: BatchedPagedKVCache) -> None:
    cache.block_table.append_each(rows(3), cache.allocator.allocate(1))


def an_active_row_without_blocks(cache: BatchedPagedKVCache) -> None:
    cache._active[2] = True


def a_row_past_the_prefix(cache: BatchedPagedKVCache) -> None:
    cache.num_rows = 1


def a_wrong_slot(cache: BatchedPagedKVCache) -> None:
    cache.slot_table.host[1, 2] += 1


def a_stale_slot(cache: BatchedPagedKVCache) -> None:
    cache.slot_table.host[3, 0] = 0


def a_slot_at_the_sink(cache: BatchedPagedKVCache) -> None:
    cache.slot_table.host[0, 0] = cache.sink_slot


@pytest.mark.parametrize(
    ("plant", "error", "says"),
    [
        (strand, BlocksUnsound, r"stranded \[3\]"),
        (lose_a_free_block, BlocksUnsound, r"stranded \[4\]"),
        (two_owners, BlocksUnsound, r"in two places \[0\]"),
        (owned_and_free, BlocksUnsound, r"in two places \[0\]"),
        (past_the_count, BlocksUnsound, "past a row's count"),
        (the_sink_as_a_block, BlocksUnsound, "do not add up"),
        (longer_than_its_blocks, BlocksUnsound, "longer than its blocks"),
        (a_length_without_a_row, BlocksUnsound, "longer than its blocks"),
        (a_row_nobody_has, BlocksUnsound, "without a request"),
        (an_active_row_without_blocks, BlocksUnsound, "active row holds none"),
        (a_row_past_the_prefix, BlocksUnsound, "without a request"),
        (a_wrong_slot, SlotsUnsound, r"row 1 column 2 says 11, its blocks say 10"),
        (a_stale_slot, SlotsUnsound, r"row 3 column 0 says 0, its blocks say 120"),
        (a_slot_at_the_sink, SlotsUnsound, r"row 0 column 0 says 120, its blocks say 0"),
    ],
)
def test_the_audit_finds(plant: Callable[[BatchedPagedKVCache], None], error: type[AssertionError], says: str) -> None:
    cache = cache_of(5, 7)
    assert audit_blocks(cache) == 4
    plant(cache)
    with pytest.raises(error, match=says):
        audit_blocks(cache)


# The scrub.


def test_a_block_is_scrubbed_when_it_is_handed_out_and_only_then() -> None:
    """NaN behind a mask still poisons a row (0 * NaN): what the last owner left must not reach the next."""
    torch = pytest.importorskip("torch")
    cache = cache_of()
    cache.pool = torch.full((2, 2, cache.num_slots, 1, 2), float("nan"))
    cache.admit(6)
    cache.admit(4)
    cache.grow(rows(1))
    clean = ~cache.pool.isnan().any(dim=(0, 1, 3, 4))
    held = sorted(slot for row in range(2) for b in cache.block_table.of(row) for slot in range(b * 4, b * 4 + 4))
    assert torch.nonzero(clean).flatten().tolist() == held
    assert bool((cache.pool[:, :, held] == 0).all())

    cache.pool[:, :, held] = 5.0
    cache.release(0)
    assert bool((cache.pool[:, :, held] == 5.0).all()), "released memory keeps its bytes: the scrub is at hand-out"
    cache.compact()
    cache.admit(3)
    assert bool((cache.pool[:, :, cache.slot_table.host[1, :4]] == 0).all())


def test_scattered_blocks_are_scrubbed_one_by_one() -> None:
    torch = pytest.importorskip("torch")
    cache = cache_of(4, 4, 4, 4, 4, num_blocks=5)
    for row in (0, 3, 1):
        cache.release(row)
    cache.compact()
    cache.pool = torch.full((1, 2, cache.num_slots, 1, 1), float("inf"))
    row = cache.admit(12)
    assert sorted(cache.block_table.of(row).tolist()) == [0, 1, 3]
    assert torch.isfinite(cache.pool[0, 0, :, 0, 0]).nonzero().flatten().tolist() == [*range(8), *range(12, 16)]
