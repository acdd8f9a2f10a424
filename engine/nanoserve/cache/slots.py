"""The slot table: for each row and column, where in the pool that token's K/V lies. Read through a window.

One persistent int64 array `[max_batch_size, max_model_len]`. Everything without a token points at the sink, so any
rectangle of it is safe to gather. On a CPU the tensor a step reads shares this memory; on a device it is a mirror that
`flush` brings up to date.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoserve.buckets import GateError

Ints = NDArray[np.int64]


class SlotTableFull(RuntimeError):
    """A row was asked to hold more tokens than the table is wide."""


class SlotsUnsound(GateError):
    """A slot window that is no window, or a table that does not say what the block table says."""


class SlotRead(NamedTuple):
    """What a step reads: `slots` `[rows, width]`, and whether it is a window on the table or a gathered copy.

    `slots` is a view of the table's own storage when `is_window`; a recorded graph may read nothing else.
    """

    slots: Any
    is_window: bool


class SlotTable:
    """Slots of `max_batch_size` rows by `max_model_len` columns; `sink_slot` wherever there is no token.

    `host` is the table in host memory. `attach` names the tensor that steps read instead of it.
    """

    def __init__(self, max_batch_size: int, max_model_len: int, block_size: int, sink_slot: int) -> None:
        self.host = np.full((max_batch_size, max_model_len), sink_slot, dtype=np.int64)
        self.block_size = block_size
        self.sink_slot = sink_slot
        self._view: Any = self.host
        self._upload: Callable[[int, int, int], None] | None = None
        self._dirty: dict[int, tuple[int, int]] = {}
        self._within_block = np.arange(block_size, dtype=np.int64)

    def attach(self, view: Any, upload: Callable[[int, int, int], None] | None) -> None:
        """Steps read `view` from now on.

        `upload(row, start, stop)` copies a piece of `host` into it; None where the two share memory.
        """
        self._view, self._upload = view, upload
        if upload is not None:
            self._dirty = {row: (0, self.host.shape[1]) for row in range(self.host.shape[0])}

    @property
    def view(self) -> Any:
        """The whole persistent table that steps read windows of."""
        return self._view

    def flush(self) -> None:
        """Brings an attached mirror up to date; nothing to do where the memory is shared."""
        if self._upload is not None:
            for row, (start, stop) in self._dirty.items():
                self._upload(row, start, stop)
        self._dirty.clear()

    def read(self, rows: Sequence[int], width: int, *, pad_rows: int = 0) -> SlotRead:
        """The slots of `rows`, and of `pad_rows` rows of padding after them, for the first `width` columns.

        Over the ordered prefix `0..n-1` this is one basic slice of the table, padding included: the rows after the
        prefix hold only the sink. Any other rows are gathered into a copy, and the result says so.
        ValueError where the rectangle is larger than the table or a row is not in it.
        """
        height, full_width = self.host.shape
        total = len(rows) + pad_rows
        if pad_rows < 0 or total > height or not 1 <= width <= full_width:
            raise ValueError(
                f"a {total}x{width} window, padding {pad_rows}, does not fit the {height}x{full_width} slot table"
            )
        prefix = range(len(rows))
        if rows == prefix or (not isinstance(rows, range) and list(rows) == list(prefix)):
            return SlotRead(self._view[:total, :width], True)
        for row in rows:
            if not 0 <= row < height:
                raise ValueError(f"row {row} is not in a slot table of {height} rows")
        gathered = np.full((total, width), self.sink_slot, dtype=np.int64)
        gathered[: len(rows)] = self.host[list(rows), :width]
        return SlotRead(gathered, False)

    def assign(self, rows: Ints, first_columns: Ints, blocks: Ints) -> None:
        """Writes the slots of one block each: `blocks[i]` into row `rows[i]` from column `first_columns[i]` on.

        What lies past the table's width is never read and not written. SlotTableFull where a block starts there.
        """
        self.check_room(rows, first_columns)
        width = self.host.shape[1]
        # A row's last block may reach past the table: those columns fold onto the last one, with that one's own slot.
        columns = np.minimum(first_columns[:, None] + self._within_block, width - 1)
        slots = blocks[:, None] * self.block_size + np.minimum(
            self._within_block, columns[:, -1:] - first_columns[:, None]
        )
        self.host[rows[:, None], columns] = slots
        if self._upload is not None:
            for row, start in zip(rows.tolist(), first_columns.tolist(), strict=True):
                self._touch(row, start, min(start + self.block_size, width))

    def check_room(self, rows: Ints, first_columns: Ints) -> None:
        """SlotTableFull where one of `rows` would go on past the table's width."""
        width = self.host.shape[1]
        if first_columns.size and int(first_columns.max()) >= width:
            row = int(rows[first_columns.argmax()])
            raise SlotTableFull(f"row {row} already holds {width} tokens, the width of the slot table")

    def clear(self, row: int, columns: int) -> None:
        """Points the first `columns` columns of a row back at the sink."""
        self.host[row, :columns] = self.sink_slot
        self._touch(row, 0, min(columns, self.host.shape[1]))

    def move(self, source: int, target: int, columns: int) -> None:
        """Moves the first `columns` columns of one row to an empty one."""
        self.host[target, :columns] = self.host[source, :columns]
        self._touch(target, 0, min(columns, self.host.shape[1]))
        self.clear(source, columns)

    def _touch(self, row: int, start: int, stop: int) -> None:
        if self._upload is not None:
            before = self._dirty.get(row, (start, stop))
            self._dirty[row] = (min(start, before[0]), max(stop, before[1]))
