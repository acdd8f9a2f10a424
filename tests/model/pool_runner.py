"""Runs a decoder over a hand-made pool: scattered slots, rows of unequal length, padded rows at the sink."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from nanoserve.model.decoder import DecodeInputs, Decoder, PrefillInputs


@dataclass
class PoolRunner:
    """One batch of sequences and its pool. `slot_table[i, p]` is where position `p` of row `i` lies."""

    decoder: Decoder
    rows: int
    capacity: int
    pad_rows: int = 0
    pad_width: int = 0
    lengths: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        config, cells = self.decoder.config, self.rows * self.capacity
        order = torch.randperm(cells, generator=torch.Generator().manual_seed(7))
        self.slot_table = order.view(self.rows, self.capacity)
        self.sink = cells
        self.pool = torch.zeros(
            (config.num_layers, 2, cells + 1, config.num_kv_heads, config.head_dim), dtype=self.decoder.dtype
        )
        self.decoder.prepare(self.capacity)

    @torch.inference_mode()
    def prefill(self, prompts: list[list[int]]) -> Tensor:
        """Logits `[rows, vocab]` after each prompt. Padding is on the right and writes the sink."""
        self.lengths = [len(prompt) for prompt in prompts]
        longest = max(self.lengths)
        input_ids = torch.zeros(self.rows, longest, dtype=torch.int64)
        write_slots = torch.full((self.rows, longest), self.sink)
        for row, prompt in enumerate(prompts):
            input_ids[row, : len(prompt)] = torch.tensor(prompt)
            write_slots[row, : len(prompt)] = self.slot_table[row, : len(prompt)]
        return self.decoder.prefill(PrefillInputs(input_ids, write_slots, torch.tensor(self.lengths)), self.pool)

    def inputs(self, tokens: list[int]) -> DecodeInputs:
        """The next step's inputs, padded rows and columns included."""
        lengths = torch.tensor([length + 1 for length in self.lengths] + [0] * self.pad_rows)
        width = int(lengths.max()) + self.pad_width
        slots = torch.full((self.rows + self.pad_rows, width), self.sink)
        in_capacity = min(width, self.capacity)
        slots[: self.rows, :in_capacity] = self.slot_table[:, :in_capacity]
        last = (lengths - 1).clamp(min=0)
        write_slots = slots.gather(1, last[:, None]).squeeze(1)
        return DecodeInputs(torch.tensor(tokens + [0] * self.pad_rows), last, write_slots, slots, lengths)

    @torch.inference_mode()
    def decode(self, tokens: list[int]) -> Tensor:
        """Logits `[rows, vocab]` of one step on `tokens`; every row grows by one."""
        logits = self.decoder.decode(self.inputs(tokens), self.pool)[: self.rows]
        self.lengths = [length + 1 for length in self.lengths]
        return logits

    def greedy(self, prompts: list[list[int]], steps: int) -> tuple[list[list[int]], Tensor]:
        """The greedy tokens `[rows][steps]` and their logits `[rows, steps, vocab]`."""
        logits = [self.prefill(prompts)]
        while len(logits) < steps:
            logits.append(self.decode(logits[-1].argmax(-1).tolist()))
        stacked = torch.stack(logits, dim=1)
        return stacked.argmax(-1).tolist(), stacked
