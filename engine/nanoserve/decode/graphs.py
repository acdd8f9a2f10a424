"""Decode steps as recorded graphs: one a shape, captured largest first, replayed ever after."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import torch
from torch import Tensor

from nanoserve.buckets import CaptureList, DecodePolicy, Shape
from nanoserve.decode import DecodeRunner
from nanoserve.decode.trace import CaptureUnsound
from nanoserve.model.decoder import DecodeInputs

Buffers = Mapping[str, Callable[[], Tensor]]
"""The persistent buffers by name, each as a way to get at it now: a buffer may be rebound, and that must show."""


class Graph(Protocol):
    """A captured step. `warm_up_seconds` is what ran before the capture proper."""

    warm_up_seconds: float

    def replay(self) -> None:
        """Runs it again on the addresses it was captured with."""
        ...


class GraphBackend(Protocol):
    """What captures steps: `cuda` for real, `recorded` anywhere."""

    @property
    def pool_bytes(self) -> int:
        """Bytes that the graphs hold together."""
        ...

    def capture(self, body: Callable[[], Tensor], persistent: Mapping[str, Tensor]) -> Any:
        """Records `body`, whose tensors outlive it in `persistent` only."""
        ...

    def verify(self, graph: Any, body: Callable[[], Tensor], persistent: Mapping[str, Tensor]) -> None:
        """That `body` would be recorded as it was, where the back end can tell."""
        ...


@dataclass(frozen=True)
class GraphCounts:
    """What a runner did since it was made. What a run did is the difference of two readings."""

    captures: int
    replays: int
    eager_steps: int

    def __sub__(self, before: GraphCounts) -> GraphCounts:
        return GraphCounts(
            self.captures - before.captures, self.replays - before.replays, self.eager_steps - before.eager_steps
        )

    @property
    def replay_share(self) -> float | None:
        """Replays over decode steps; None of no step."""
        steps = self.replays + self.eager_steps
        return self.replays / steps if steps else None


@dataclass(frozen=True)
class _Captured:
    graph: Graph
    addresses: dict[str, int]


class GraphDecode:
    """Replays a graph for every shape of `shapes`, and runs what has none as `inner` does, counted.

    `shapes` is a policy, whose every step has a graph; a capture list, whose steps off the list run eager; or None for
    an open run, which captures every new shape it meets. `buffers` and the inputs' addresses are checked at every
    replay; `weights` are only known to be persistent. Logits are a window of one static buffer, overwritten by the next
    replay: clone what you keep. `audit` traces every step again and compares.
    """

    def __init__(
        self,
        inner: DecodeRunner,
        shapes: DecodePolicy | CaptureList | None,
        backend: GraphBackend,
        buffers: Buffers,
        weights: Mapping[str, Tensor],
        logits: Tensor,
        *,
        audit: bool = False,
    ) -> None:
        self.backend = backend
        self.capture_seconds: dict[Shape, float] = {}
        self.warm_up_seconds: dict[Shape, float] = {}
        self._inner = inner
        self._listed = None if shapes is None else frozenset(shapes.shapes)
        self._buffers: Buffers = {**buffers, "the logits": lambda: logits}
        self._weights = weights
        self._logits: Tensor = logits
        self._audit = audit
        self._graphs: dict[Shape, _Captured] = {}
        self._closed = False
        self._holders = _holders(logits)
        self._captures = self._replays = self._eager_steps = 0

    @property
    def counts(self) -> GraphCounts:
        """What it did so far."""
        return GraphCounts(self._captures, self._replays, self._eager_steps)

    def graph(self, shape: Shape) -> Graph:
        """The graph of a captured shape. KeyError where it has none."""
        return self._graphs[shape].graph

    @property
    def captured(self) -> frozenset[Shape]:
        """The shapes that have a graph."""
        return frozenset(self._graphs)

    def close(self) -> None:
        """Says that every shape has been captured: one that needs a capture from here on is an error."""
        self._closed = True
        self._inner.close()

    def restrict(self, captures: CaptureList) -> None:
        """Says that there are graphs of `captures` only: every other step runs eager."""
        self._listed = frozenset(captures.shapes)
        self._inner.restrict(captures)

    def run(self, inputs: DecodeInputs) -> Tensor:
        """Logits `[graph_rows, vocab_size]` until the next step. CaptureUnsound where a replay would lie."""
        shape = Shape(*inputs.slots.shape)
        if self._listed is not None and shape not in self._listed:
            self._eager_steps += 1
            return self._inner.run(inputs)
        captured = self._captured(shape, inputs)
        self._check_addresses(shape, captured, inputs)
        if self._audit:
            self.backend.verify(captured.graph, lambda: self._body(inputs), self._persistent())
        captured.graph.replay()
        self._replays += 1
        return self._logits[: shape.rows]

    def prepare(self, inputs: DecodeInputs) -> None:
        """Captures the step, which runs nothing; off a capture list there is nothing to do."""
        shape = Shape(*inputs.slots.shape)
        if self._listed is None or shape in self._listed:
            self._captured(shape, inputs)

    def _captured(self, shape: Shape, inputs: DecodeInputs) -> _Captured:
        if shape not in self._graphs:
            self._graphs[shape] = self._capture(shape, inputs)
        return self._graphs[shape]

    def _capture(self, shape: Shape, inputs: DecodeInputs) -> _Captured:
        if self._closed and self._listed is not None:
            raise CaptureUnsound(
                f"a step of shape {shape} has no graph and capture is over: {len(self._graphs)} shapes have one from "
                "warm-up; warm up the shapes that the traffic needs"
            )
        self._check_released(shape)
        start = perf_counter()
        graph = self.backend.capture(lambda: self._body(inputs), self._persistent())
        self.warm_up_seconds[shape] = graph.warm_up_seconds
        self.capture_seconds[shape] = perf_counter() - start - graph.warm_up_seconds
        self._captures += 1
        self._holders = _holders(self._logits)
        return _Captured(graph, self._addresses(inputs))

    def _body(self, inputs: DecodeInputs) -> Tensor:
        """What a graph holds: the step, and its logits copied to where they are read."""
        window = self._logits[: inputs.input_ids.shape[0]]
        return window.copy_(self._inner.run(inputs))

    def _persistent(self) -> dict[str, Tensor]:
        return {**self._weights, **{name: get() for name, get in self._buffers.items()}}

    def _addresses(self, inputs: DecodeInputs) -> dict[str, int]:
        now = {name: get().data_ptr() for name, get in self._buffers.items()}
        return now | {name: tensor.data_ptr() for name, tensor in inputs._asdict().items()}

    def _check_addresses(self, shape: Shape, captured: _Captured, inputs: DecodeInputs) -> None:
        now = self._addresses(inputs)
        if now != captured.addresses:
            name = next(name for name, address in now.items() if captured.addresses[name] != address)
            raise CaptureUnsound(
                f"{name} moved since shape {shape} was captured: the graph reads address "
                f"{captured.addresses[name]:#x}, it is now at {now[name]:#x}; write into the buffer, never rebind it"
            )
        self._check_released(shape)

    def _check_released(self, shape: Shape) -> None:
        if _holders(self._logits) != self._holders:
            raise CaptureUnsound(
                f"the logits of an earlier step are still held: this replay of shape {shape} would change them; clone "
                "what outlives a step"
            )


def _holders(tensor: Tensor) -> int:
    """How many tensors share this one's storage, itself included."""
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))
