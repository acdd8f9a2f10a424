"""Which prompts are prefilled together: right-padded batches in order of arrival, bounded by the cells computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PrefillBatch:
    """Prompts `first..first+prompts-1` of a list, padded to `length` tokens; `tokens` of the cells are real."""

    first: int
    prompts: int
    length: int
    tokens: int

    @property
    def cells(self) -> int:
        """Tokens the forward runs, padding included."""
        return self.prompts * self.length


def plan_prefill(prompt_lens: Sequence[int], max_cells: int) -> tuple[PrefillBatch, ...]:
    """Cuts prompts, in order, into batches of at most `max_cells` padded tokens; a longer prompt runs alone."""
    batches: list[PrefillBatch] = []
    first = longest = 0
    for index, length in enumerate(prompt_lens):
        if index > first and (index - first + 1) * max(longest, length) > max_cells:
            batches.append(PrefillBatch(first, index - first, longest, sum(prompt_lens[first:index])))
            first, longest = index, 0
        longest = max(longest, length)
    if longest:
        batches.append(PrefillBatch(first, len(prompt_lens) - first, longest, sum(prompt_lens[first:])))
    return tuple(batches)


def prefill_padding_waste(batches: Sequence[PrefillBatch]) -> float:
    """`1 - real / padded` tokens over prefill batches; 0.0 for none."""
    cells = sum(batch.cells for batch in batches)
    return 1.0 - sum(batch.tokens for batch in batches) / cells if cells else 0.0
