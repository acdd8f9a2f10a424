"""The persistent inputs of a decode step: allocated once at the largest batch's size, written in place every step."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nanoserve.buckets import Shape
from nanoserve.model.decoder import DecodeInputs
from nanoserve.plan import DecodePlan

Ints = NDArray[np.int64]


class StepInputs:
    """`input_ids`, `positions`, `write_slots` and `context_lens`: four rows of one int64 buffer `[4, max_batch_size]`.

    On a CPU the host writes into the buffer itself; elsewhere it writes into pinned memory and one non-blocking copy
    takes it over. `padding` registers each with the value that its padding takes, which every row past the step's own
    holds: a larger earlier batch leaves nothing behind.
    """

    def __init__(self, max_batch_size: int, sink_slot: int, device: torch.device) -> None:
        self.padding = {"input_ids": 0, "positions": 0, "write_slots": sink_slot, "context_lens": 0}
        shape = (len(self.padding), max_batch_size)
        self._staging = torch.zeros(shape, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._host: Ints = self._staging.numpy()
        self._buffer = self._staging if device.type == "cpu" else torch.zeros_like(self._staging, device=device)
        self._pad_column = np.array(list(self.padding.values()), dtype=np.int64)[:, None]
        self._write_padding(0)

    @property
    def buffer(self) -> Tensor:
        """The storage that every step reads; its address never changes."""
        return self._buffer

    def write(self, plan: DecodePlan, tokens: Ints) -> DecodeInputs:
        """The inputs of a planned step whose rows feed in `tokens` int64 `[batch_size]`. Views, not copies.

        ValueError for another number of tokens than the plan has rows.
        """
        rows = plan.batch_size
        if tokens.shape != (rows,):
            raise ValueError(f"the plan has {rows} rows, tokens of shape {tokens.shape} do not broadcast to them")
        context = plan.context_snapshot[:rows]
        self._host[0, :rows] = tokens
        np.subtract(context, 1, out=self._host[1, :rows])
        self._host[2, :rows] = plan.write_snapshot[:rows]
        self._host[3, :rows] = context
        self._write_padding(rows)
        return self._views(plan.graph_rows, plan.slots)

    def all_padding(self, shape: Shape, slots: Tensor) -> DecodeInputs:
        """The inputs of a step of nobody: how a shape is warmed up. `slots` is the window of that shape."""
        self._write_padding(0)
        return self._views(shape.rows, slots)

    def _write_padding(self, rows: int) -> None:
        self._host[:, rows:] = self._pad_column

    def _views(self, graph_rows: int, slots: Tensor) -> DecodeInputs:
        if self._buffer is not self._staging:
            self._buffer.copy_(self._staging, non_blocking=True)
        input_ids, positions, write_slots, context_lens = self._buffer[:, :graph_rows].unbind(0)
        return DecodeInputs(input_ids, positions, write_slots, slots, context_lens)
