"""What planning a run costs on the host, with nothing behind it."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import numpy as np

from nanoserve.buckets import CaptureList, DecodePolicy
from nanoserve.cache.kv import BatchedPagedKVCache
from nanoserve.plan import plan_decode

PLAN_REPEATS = 3


@dataclass(frozen=True)
class PlanTimes:
    """Milliseconds to construct a cache and plan a whole lockstep run, best and median of the repeats."""

    open_best: float
    open_median: float
    bucketed_best: float
    bucketed_median: float


def time_planning(
    rows: int, prompt_len: int, steps: int, policy: DecodePolicy | CaptureList, block_size: int
) -> PlanTimes:
    """Plans a lockstep run with nothing behind it, the two modes in turn."""
    samples: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(PLAN_REPEATS):
        for bucketed in (False, True):
            start = perf_counter()
            cache = BatchedPagedKVCache(
                policy.max_batch_size, policy.max_model_len, block_size=block_size, policy=policy if bucketed else None
            )
            for _ in range(rows):
                cache.admit(prompt_len)
            for _ in range(steps):
                if (growing := cache.rows_to_grow()).size:
                    cache.grow(growing)
                plan_decode(cache, rows)
                cache.advance(rows)
            samples[bucketed].append((perf_counter() - start) * 1e3)
    opened, bucketed_ms = samples[False], samples[True]
    return PlanTimes(min(opened), float(np.median(opened)), min(bucketed_ms), float(np.median(bucketed_ms)))
