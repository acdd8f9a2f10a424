"""What compaction is for: how many decode steps would have run on the ordered prefix of rows without it."""

from __future__ import annotations

import heapq

from nanoserve.engine import StepResult


class RowsWithoutCompaction:
    """Follows a run as if each request kept the row it was admitted to, the lowest free one then.

    `prefix_steps` counts the decode steps whose rows would still have been `0..n-1`.
    """

    def __init__(self, max_batch_size: int) -> None:
        self._free = list(range(max_batch_size))
        self._row_of: dict[str, int] = {}
        self._is_prefix = True
        self._changed = False
        self.prefix_steps = 0

    def step(self, result: StepResult) -> None:
        """Takes one step of the run in."""
        for request_id in result.preempted:
            self._leave(request_id)
        if self._changed:
            self._is_prefix = max(self._row_of.values(), default=-1) + 1 == len(self._row_of)
            self._changed = False
        if result.plan is not None:
            self.prefix_steps += self._is_prefix
        for request_id in result.admitted:
            self._row_of[request_id] = heapq.heappop(self._free)
            self._changed = True
        for output in result.outputs:
            if output.request_id in self._row_of:
                self._leave(output.request_id)

    def _leave(self, request_id: str) -> None:
        heapq.heappush(self._free, self._row_of.pop(request_id))
        self._changed = True
