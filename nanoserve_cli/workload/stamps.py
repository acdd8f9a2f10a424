"""How good a trace's time stamps are: their order, and whether they tell arrivals apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nanoserve_cli.units import NS_PER_S

TIED_SHARE = 0.05
"""From this share of requests that arrive on a stamp with others, the stamps are called a grid."""


@dataclass(frozen=True)
class Stamps:
    """How fine the times of `requests` requests are.

    `distinct` counts the different stamps and `tied` the requests that share theirs. `grid_ns` is the median
    gap between distinct stamps where they are so coarse that arrivals are tied, and None where they are not.
    """

    requests: int
    distinct: int
    tied: int
    grid_ns: int | None

    @classmethod
    def of(cls, stamps_ns: NDArray[np.int64]) -> Stamps:
        """Judge sorted stamps, at least one."""
        values, sizes = np.unique(stamps_ns, return_counts=True)
        tied = int(sizes[sizes > 1].sum())
        coarse = values.size > 1 and tied >= TIED_SHARE * stamps_ns.size
        grid_ns = int(np.median(np.diff(values))) if coarse else None
        return cls(requests=int(stamps_ns.size), distinct=int(values.size), tied=tied, grid_ns=grid_ns)

    @property
    def warning(self) -> str | None:
        """One line where stamps are coarse: bursts in a replay are then the clock's and not the users'."""
        if self.grid_ns is None:
            return None
        return (
            f"coarse stamps: {self.requests:,} requests on {self.distinct:,} distinct stamps, "
            f"a median {self.grid_ns / NS_PER_S:g} s apart; {self.tied:,} requests share theirs"
        )


def in_time_order(stamps_ns: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """The stable order that sorts `stamps_ns`, and how many of them stand after a later one."""
    late = int((stamps_ns < np.maximum.accumulate(stamps_ns)).sum())
    return np.argsort(stamps_ns, kind="stable"), late
