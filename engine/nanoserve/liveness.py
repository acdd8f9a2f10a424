"""How much memory values need that live one after another: the peak of the live set, and offsets in one shared block.

A captured step owns its intermediates for as long as the graph lives, but not all at once: a value dies at its last
reader, and what comes after may lie where it lay. Integers only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 512
"""Bytes that CUDA's caching allocator rounds every request up to."""


@dataclass(frozen=True)
class Lifetime:
    """A value of `nbytes` bytes, written by operation `first` and last read by operation `last` (itself, if never)."""

    nbytes: int
    first: int
    last: int

    @property
    def padded(self) -> int:
        """Its bytes rounded up to ALIGNMENT."""
        return -(-self.nbytes // ALIGNMENT) * ALIGNMENT


def live_peak(values: Sequence[Lifetime]) -> int:
    """The most bytes that are alive at one time: no placement can need fewer."""
    changes: dict[int, int] = {}
    for value in values:
        changes[value.first] = changes.get(value.first, 0) + value.padded
        changes[value.last + 1] = changes.get(value.last + 1, 0) - value.padded
    peak = live = 0
    for at in sorted(changes):
        live += changes[at]
        peak = max(peak, live)
    return peak


def place(values: Sequence[Lifetime]) -> tuple[tuple[int, ...], int]:
    """An offset for each value such that no two alive at one time overlap, and the bytes needed in all.

    Largest first, each at the lowest offset free for its whole life ("greedy by size" of Pisarchyk and Lee, 2020).
    """
    offsets = [0] * len(values)
    placed: list[int] = []
    for index in sorted(range(len(values)), key=lambda i: (-values[i].padded, values[i].first)):
        value = values[index]
        offset = 0
        for other in sorted((p for p in placed if _overlap(values[p], value)), key=lambda p: offsets[p]):
            if offset + value.padded <= offsets[other]:
                break
            offset = max(offset, offsets[other] + values[other].padded)
        offsets[index] = offset
        placed.append(index)
    return tuple(offsets), max((o + v.padded for o, v in zip(offsets, values, strict=True)), default=0)


def _overlap(a: Lifetime, b: Lifetime) -> bool:
    return a.first <= b.last and b.first <= a.last
