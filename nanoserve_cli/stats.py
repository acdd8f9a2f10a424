"""Distributions, never of zero samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class Percentiles:
    """A distribution of `samples` values in one unit; never made of none."""

    samples: int
    mean: float
    p50: float
    p90: float
    p99: float


def percentiles(values: Sequence[float] | NDArray[np.float64]) -> Percentiles | None:
    """The distribution of `values`, or None where there are none: no figure is made of zero samples."""
    if not len(values):
        return None
    array = np.asarray(values, dtype=np.float64)
    p50, p90, p99 = (float(p) for p in np.percentile(array, PERCENTILES))
    return Percentiles(array.size, float(array.mean()), p50, p90, p99)


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of `samples` values."""

    samples: int
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Spread | None:
        """The spread of `values`, or None of none."""
        if not values.size:
            return None
        low, median, high = (float(q) for q in np.percentile(values, (25, 50, 75)))
        return cls(int(values.size), median, low, high)
