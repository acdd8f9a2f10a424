"""The slot table: one persistent array, read through windows, mirrored where the device has memory of its own."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from nanoserve import BatchedPagedKVCache, SlotTable, SlotTableFull

SINK = 999


def table(rows: int = 4, width: int = 10, block_size: int = 4) -> SlotTable:
    """A table in which every cell differs, so that a wrong window cannot look right."""
    made = SlotTable(rows, width, block_size, SINK)
    made.host[:] = np.arange(rows * width).reshape(rows, width)
    return made


def address(window: Any) -> tuple[int, tuple[int, ...]]:
    if isinstance(window, np.ndarray):
        return window.ctypes.data, window.strides
    return window.data_ptr(), window.stride()


def attach_torch(made: SlotTable) -> None:
    torch = pytest.importorskip("torch")
    made.attach(torch.from_numpy(made.host), None)


# Windows.


@pytest.mark.parametrize("attached", [False, True])
def test_over_a_prefix_a_read_is_one_slice_of_the_table_padding_included(attached: bool) -> None:
    made = table()
    if attached:
        attach_torch(made)
    for rows, pad, width in product(range(5), range(5), range(1, 11)):
        if not 0 < rows + pad <= 4:
            continue
        window, is_window = made.read(range(rows), width, pad_rows=pad)
        assert is_window
        assert address(window) == address(made.view)
        assert tuple(window.shape) == (rows + pad, width)
        assert np.array_equal(np.asarray(window), made.host[: rows + pad, :width])


@pytest.mark.parametrize("rows", [[0, 1], (0, 1), range(2), range(0, 2, 1)])
def test_a_prefix_is_a_prefix_however_it_is_spelled(rows: Any) -> None:
    made = table()
    assert made.read(rows, 3).is_window
    assert address(made.read(rows, 3).slots) == address(made.host)


def test_a_window_shows_what_is_written_later() -> None:
    """That is what makes it replayable, and why it can be no witness of its own state."""
    made = table()
    attach_torch(made)
    window = made.read(range(2), 3).slots
    made.host[1, 2] = 77
    assert int(window[1, 2]) == 77


@pytest.mark.parametrize("rows", [[1, 0], [0, 2], [1, 2], [0, 0], [3], range(1, 3), range(2, -1, -1)])
def test_any_other_read_is_a_gather_and_says_so(rows: Any) -> None:
    made = table()
    gathered, is_window = made.read(rows, 3, pad_rows=1)
    assert not is_window
    assert not np.shares_memory(gathered, made.host)
    assert gathered.tolist() == [*(made.host[row, :3].tolist() for row in rows), [SINK] * 3]


@pytest.mark.parametrize(
    ("rows", "width", "pad", "named"),
    [(5, 3, 0, "5x3"), (3, 3, 2, "5x3"), (2, 11, 0, "2x11"), (2, 0, 0, "2x0"), (0, 3, 5, "5x3")],
)
def test_a_window_larger_than_the_table_is_refused(rows: int, width: int, pad: int, named: str) -> None:
    with pytest.raises(ValueError, match=f"{named} window.*4x10"):
        table().read(range(rows), width, pad_rows=pad)


def test_negative_padding_is_refused() -> None:
    # Pinned: pad_rows=-1 quietly drops the last real row from the window.
    with pytest.raises(ValueError, match="-1"):
        table().read(range(3), 4, pad_rows=-1)


@pytest.mark.parametrize("row", [-1, 4])
def test_a_row_that_is_not_there_is_refused(row: int) -> None:
    # Pinned: row -1 gathers the last row (Python's negative index); row 4 is a bare IndexError.
    with pytest.raises(ValueError, match=str(row)):
        table().read([row], 4)


# Writing.


def test_an_empty_table_points_at_the_sink() -> None:
    assert (SlotTable(3, 5, 2, SINK).host == SINK).all()


def test_a_block_is_written_as_consecutive_slots() -> None:
    made = SlotTable(3, 8, 4, SINK)
    made.assign(np.array([0, 2]), np.array([0, 4]), np.array([5, 1]))
    assert made.host.tolist() == [
        [20, 21, 22, 23, SINK, SINK, SINK, SINK],
        [SINK] * 8,
        [SINK, SINK, SINK, SINK, 4, 5, 6, 7],
    ]


@pytest.mark.parametrize(("width", "block_size"), [(6, 4), (5, 4), (7, 4), (3, 16), (1, 16)])
def test_a_block_that_reaches_past_the_table_is_cut_at_its_width(width: int, block_size: int) -> None:
    """max_model_len need be no multiple of block_size, and a block may be larger than the whole table."""
    made = SlotTable(2, width, block_size, SINK)
    first = np.arange(0, width, block_size)
    made.assign(np.zeros_like(first), first, np.arange(first.size) + 3)
    assert made.host[0].tolist() == [(3 + c // block_size) * block_size + c % block_size for c in range(width)]
    assert (made.host[1] == SINK).all()


def test_a_block_that_starts_past_the_table_is_an_error() -> None:
    with pytest.raises(SlotTableFull, match="row 1 already holds 8 tokens"):
        SlotTable(2, 8, 4, SINK).assign(np.array([0, 1]), np.array([4, 8]), np.array([0, 1]))


def test_clear_and_move_leave_the_sink_behind() -> None:
    made = SlotTable(2, 8, 4, SINK)
    made.assign(np.array([1]), np.array([0]), np.array([2]))
    made.move(1, 0, 4)
    assert made.host.tolist() == [[8, 9, 10, 11, SINK, SINK, SINK, SINK], [SINK] * 8]
    made.clear(0, 4)
    assert (made.host == SINK).all()


# A mirror on a device.


class Mirror:
    """Stands for a device: a copy of the table that only `upload` brings up to date."""

    def __init__(self, made: SlotTable) -> None:
        self.host = made.host
        self.view = np.full_like(made.host, -1)
        self.uploads: list[tuple[int, int, int]] = []
        made.attach(self.view, self.upload)

    def upload(self, row: int, start: int, stop: int) -> None:
        self.uploads.append((row, start, stop))
        self.view[row, start:stop] = self.host[row, start:stop]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("max_model_len", "block_size"), [(22, 4), (16, 16), (5, 8), (24, 1)])
def test_the_mirror_equals_the_host_after_any_operations_and_a_flush(
    seed: int, max_model_len: int, block_size: int
) -> None:
    rng = np.random.default_rng(seed)
    cache = BatchedPagedKVCache(5, max_model_len, block_size=block_size)
    mirror = Mirror(cache.slot_table)
    for _ in range(150):
        match int(rng.integers(5)):
            case 0 if cache.can_admit(length := int(rng.integers(1, max_model_len + 1))):
                cache.compact()
                cache.admit(length)
            case 1 if (active := np.flatnonzero(cache._active)).size:
                cache.release(int(rng.choice(active)))
            case 2:
                cache.compact()
            case 3 if cache.num_rows and cache._active[: cache.num_rows].all():
                short = int(cache.lengths[: cache.num_rows].max()) < max_model_len
                if short and cache.rows_to_grow().size <= cache.allocator.num_free:
                    cache.grow(cache.rows_to_grow())
                    cache.advance(cache.num_rows)
            case _ if rng.random() < 0.3:
                cache.slot_table.flush()
                assert np.array_equal(mirror.view, cache.slot_table.host)
    cache.slot_table.flush()
    assert np.array_equal(mirror.view, cache.slot_table.host)


def test_a_flush_uploads_only_what_changed_and_only_once() -> None:
    cache = BatchedPagedKVCache(4, 32, block_size=4)
    mirror = Mirror(cache.slot_table)
    cache.slot_table.flush()
    mirror.uploads.clear()
    cache.admit(6)
    cache.admit(3)
    cache.slot_table.flush()
    assert mirror.uploads == [(0, 0, 8), (1, 0, 4)]
    cache.slot_table.flush()
    assert len(mirror.uploads) == 2


def test_a_read_is_of_the_mirror_and_not_of_the_host() -> None:
    cache = BatchedPagedKVCache(4, 32, block_size=4)
    mirror = Mirror(cache.slot_table)
    cache.admit(3)
    window, is_window = cache.slot_table.read(range(1), 4)
    assert is_window
    assert address(window) == address(mirror.view)
    assert window.tolist() == [[-1, -1, -1, -1]], "before a flush the device holds what it held"
    cache.slot_table.flush()
    assert window.tolist() == [[0, 1, 2, 3]]
