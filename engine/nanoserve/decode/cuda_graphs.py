"""Graphs on CUDA: warm-up on a side stream, capture into one shared pool, replay.

Everything that only CUDA has is in this module, behind the interface of `decode.graphs`. `cuda` is `torch.cuda`, or a
stand-in that checks the order of calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from nanoserve.decode import CaptureFailed

WARM_UP_RUNS = 3
"""Runs before a capture: lazy initialisation, workspaces and compilation must be over, capture allows none of them."""


@dataclass(frozen=True)
class CudaGraph:
    """A captured CUDA graph."""

    graph: Any
    warm_up_seconds: float

    def replay(self) -> None:
        """Launches it on the current stream."""
        self.graph.replay()


class CudaGraphs:
    """The back end `cuda`. Captured largest shape first, the pool holds the largest graph's memory and not the sum."""

    def __init__(self, device: torch.device, *, cuda: Any = torch.cuda) -> None:
        self._device = device
        self._cuda = cuda
        self._stream = cuda.Stream(device=device)
        self._pool = cuda.graph_pool_handle()
        self._free_before = self._free()
        self.process_bytes = 0

    @property
    def pool_bytes(self) -> int:
        """Bytes that the allocator holds in the graphs' pool."""
        snapshot = self._cuda.memory_snapshot(self._pool)
        return sum(int(segment["total_size"]) for segment in snapshot)

    def capture(self, body: Callable[[], Tensor], persistent: Mapping[str, Tensor]) -> CudaGraph:
        """Warms `body` up on the capture stream and captures it there. Raises CaptureFailed.

        `thread_local`: a copy or a query by another thread of the process does not fail the capture.
        """
        cuda = self._cuda
        start = perf_counter()
        try:
            self._stream.wait_stream(cuda.current_stream(self._device))
            with cuda.stream(self._stream):
                for _ in range(WARM_UP_RUNS):
                    body()
            cuda.current_stream(self._device).wait_stream(self._stream)
            cuda.synchronize(self._device)
            warm_up_seconds = perf_counter() - start
            graph = cuda.CUDAGraph()
            with cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                body()
        except RuntimeError as error:
            raise CaptureFailed(
                f"CUDA refused the capture: {error}. {self._free() / 2**20:,.0f} MiB are free and "
                f"{self.pool_bytes / 2**20:,.0f} MiB are in the graphs' pool. In this order: lower num_blocks, drop "
                "large width buckets, lower max_batch_size"
            ) from error
        cuda.synchronize(self._device)
        self.process_bytes = self._free_before - self._free()
        return CudaGraph(graph, warm_up_seconds)

    def verify(self, graph: Any, body: Callable[[], Tensor], persistent: Mapping[str, Tensor]) -> None:
        """Nothing: a captured graph does not say what is in it. The back end `recorded` finds these faults."""

    def _free(self) -> int:
        return int(self._cuda.mem_get_info(self._device)[0])
