"""What planning a run costs on the host, with nothing behind it."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import numpy as np

from nanoserve.buckets import CaptureList, DecodePolicy
from nanoserve.cache.kv import BatchedPagedKVCache
from nanoserve.plan import plan_decode
from nanoserve_cli.stats import Spread

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
            cache = _cache_for(policy, block_size, bucketed=bucketed)
            _plan_through(cache, rows, prompt_len, steps)
            samples[bucketed].append((perf_counter() - start) * 1e3)
    opened, bucketed_ms = samples[False], samples[True]
    return PlanTimes(min(opened), float(np.median(opened)), min(bucketed_ms), float(np.median(bucketed_ms)))


def time_plans(
    rows: int, steps: int, policy: DecodePolicy | CaptureList, block_size: int, *, bucketed: bool
) -> float | None:
    """The median microseconds of planning one step of `rows` one-token prompts; None of no step."""
    cache = _cache_for(policy, block_size, bucketed=bucketed)
    spread = Spread.of(np.array(_plan_through(cache, rows, 1, steps)) * 1e6)
    return None if spread is None else spread.median


def _cache_for(policy: DecodePolicy | CaptureList, block_size: int, *, bucketed: bool) -> BatchedPagedKVCache:
    limits = policy.max_batch_size, policy.max_model_len
    return BatchedPagedKVCache(*limits, block_size=block_size, policy=policy if bucketed else None)


def _plan_through(cache: BatchedPagedKVCache, rows: int, prompt_len: int, steps: int) -> list[float]:
    """Admits `rows` equal prompts and plans `steps` steps; the seconds of each."""
    for _ in range(rows):
        cache.admit(prompt_len)
    took = []
    for _ in range(steps):
        start = perf_counter()
        if (growing := cache.rows_to_grow()).size:
            cache.grow(growing)
        plan_decode(cache, rows)
        took.append(perf_counter() - start)
        cache.advance(rows)
    return took
