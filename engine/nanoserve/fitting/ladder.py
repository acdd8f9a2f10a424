"""The best ladder on one axis, exactly: the shortest path from nothing held to everything held.

With candidate tops `t(0) < t(1) < ... < t(n-1)`, let `cost(j, i)` be what all steps above `t(i-1)` up to `t(j)` cost in
one bucket with top `t(j)`. The least cost to hold the first `j + 1` candidates with exactly `k` buckets is

    best(k, j + 1) = min over i <= j of best(k - 1, i) + cost(j, i),        best(0, 0) = 0,

and the ladder follows by asking, from the top down, which `i` gave the minimum: the smallest where several did.
`k n^2 / 2` additions, `8 n^2` bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from nanoserve.fitting.prices import LARGEST_TOTAL, Amounts, Cost

Ladder = tuple[int, ...]

_BLOCK = 64  # tops a block: the part of the cost matrix at hand stays in the cache


class Path(NamedTuple):
    """The indices of a ladder's tops, ascending, and its cost."""

    tops: Ladder
    cost: Cost


def unreachable(dtype: np.dtype[np.generic]) -> Cost:
    """The cost of what is not allowed: above every real cost, and a sum of two with real costs on top fits the type."""
    return 2 * LARGEST_TOTAL if dtype == np.int64 else np.inf


def best_paths(cost: Amounts, most: int) -> list[Path | None]:
    """The cheapest ladder of at most 1, 2, ..., `most` buckets; None where the constraints allow none.

    `cost[j, i]` as above, `[n, n]`, `unreachable` where a bucket is not allowed and for `i > j`. Of ladders that cost
    the same, the one with fewest buckets; of those, from the top down, the one with the lowest tops.
    """
    best = _layers(cost, min(most, len(cost)))
    paths: list[Path | None] = []
    shortest: Path | None = None
    lowest = unreachable(cost.dtype)
    for k in range(1, most + 1):
        if k < len(best) and best[k, -1] < lowest:
            lowest = best[k, -1].item()
            shortest = Path(_trace(cost, best, k), lowest)
        paths.append(shortest)
    return paths


def _layers(cost: Amounts, most: int) -> Amounts:
    """`best[k, m]` of the module, `[most + 1, n + 1]`."""
    n = len(cost)
    best = np.full((most + 1, n + 1), unreachable(cost.dtype), cost.dtype)
    best[0, 0] = 0
    for k in range(1, most + 1):
        for start in range(0, n, _BLOCK):
            end = min(start + _BLOCK, n)
            best[k, start + 1 : end + 1] = (cost[start:end, :end] + best[k - 1, :end]).min(axis=1)
    return best


def _trace(cost: Amounts, best: Amounts, buckets: int) -> Ladder:
    """The tops of the best ladder of exactly `buckets`."""
    tops = []
    held = len(cost)
    for k in range(buckets - 1, -1, -1):
        tops.append(held - 1)
        held = int(np.argmin(cost[held - 1, :held] + best[k, :held]))
    return tuple(reversed(tops))
