"""What is asked of the engine: a column of arrival times, one of prompt lengths, one of output lengths.

Columns and not objects, so that a million requests are 24 MB and the simulator can work on arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Workload:
    """Requests in the order of their arrival.

    `arrival_ns`, `prompt_len` and `output_len` are int64 arrays of one length: nanoseconds after the
    first arrival (so the first is 0), tokens, tokens. Raises ValueError where the three differ in
    length, an arrival is earlier than the one before it, or a length is below 1.
    """

    arrival_ns: NDArray[np.int64]
    prompt_len: NDArray[np.int64]
    output_len: NDArray[np.int64]

    def __post_init__(self) -> None:
        columns = {"arrival_ns": self.arrival_ns, "prompt_len": self.prompt_len, "output_len": self.output_len}
        for name, column in columns.items():
            if column.dtype != np.int64 or column.ndim != 1:
                raise ValueError(f"{name} must be a 1-D int64 array, got {column.dtype} with {column.ndim} dimensions")
        if len({column.size for column in columns.values()}) != 1:
            raise ValueError("the three columns differ in length: " + str({n: c.size for n, c in columns.items()}))
        if self.arrival_ns.size == 0:
            return
        if self.arrival_ns[0] != 0 or bool((np.diff(self.arrival_ns) < 0).any()):
            raise ValueError("arrivals must start at 0 and never go back; sort the requests first")
        for name in ("prompt_len", "output_len"):
            if int(columns[name].min()) < 1:
                raise ValueError(f"{name} must be at least 1, got {int(columns[name].min())}")

    def __len__(self) -> int:
        return int(self.arrival_ns.size)

    def head(self, limit: int) -> Workload:
        """The first `limit` requests."""
        return Workload(self.arrival_ns[:limit], self.prompt_len[:limit], self.output_len[:limit])

    @classmethod
    def lockstep(cls, rows: int, prompt_len: int, steps: int) -> Workload:
        """`rows` equal requests at time 0 that decode `steps` times each, so make `steps + 1` tokens."""
        return cls(np.zeros(rows, np.int64), np.full(rows, prompt_len, np.int64), np.full(rows, steps + 1, np.int64))
