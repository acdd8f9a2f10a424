"""Graphs on any machine: a traced step is replayed into storages that are fixed at capture, from one shared pool.

The semantics are a CUDA graph's. Capture executes nothing. A replay runs the same operators on the same addresses and
no Python of the step. Intermediates lie in one arena that all graphs share, where a dead value's place is taken by the
next, so a reader of a stale one finds something else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map_only

from nanoserve.decode.trace import Trace, check_same, trace_step
from nanoserve.liveness import Lifetime, live_peak, place


class Arena:
    """The memory that all recorded graphs of one runner share: as large as the largest of them."""

    def __init__(self, device: torch.device, *, poison: bool = False) -> None:
        self._device = device
        self._segments: list[Tensor] = []
        self.poison = poison

    @property
    def nbytes(self) -> int:
        """Bytes held. Captured largest first, it is the largest graph's alone."""
        return sum(segment.numel() for segment in self._segments)

    def reserve(self, nbytes: int) -> Tensor:
        """At least `nbytes` bytes, uint8: the first segment that has them, else a new one, as allocators do."""
        for segment in self._segments:
            if segment.numel() >= nbytes:
                return segment
        self._segments.append(torch.empty(nbytes, dtype=torch.uint8, device=self._device))
        return self._segments[-1]

    def spoil(self) -> None:
        """Overwrites all of it with NaN, where poisoning is on: what a graph may count on is made by its own replay."""
        if self.poison:
            for segment in self._segments:
                segment.fill_(0xFF)


class RecordedGraph:
    """One captured step. `replay` runs it; `live_bytes` is the peak of what is alive at one time."""

    warm_up_seconds = 0.0

    def __init__(self, trace: Trace, arena: Arena) -> None:
        self.trace = trace
        self._arena = arena
        values = trace_values(trace)
        self.live_bytes = live_peak(values.lifetimes)
        offsets, nbytes = place(values.lifetimes)
        memory = arena.reserve(nbytes)
        self._calls: list[_Call] = []
        real: dict[int, Any] = dict(trace.persistent)
        for op in trace.ops:
            args, kwargs = tree_map_only(Tensor, lambda tensor: real.get(id(tensor), tensor), (op.args, op.kwargs))
            if op.is_view:
                real.update(zip(map(id, op.outputs), _listed(op.func(*args, **kwargs)), strict=True))
                continue
            places: list[Tensor | None] = []
            for out, target in zip(op.outputs, op.written(), strict=True):
                fresh = None if target is not None else _laid_out(out, memory, offsets[values.owner[id(out)]])
                real[id(out)] = real.get(id(target), target) if fresh is None else fresh
                places.append(fresh)
            self._calls.append(_Call(op.func, args, kwargs, tuple(places)))

    def replay(self) -> None:
        """Runs the operators on the captured addresses."""
        self._arena.spoil()
        for func, args, kwargs, places in self._calls:
            result = func(*args, **kwargs)
            for place_, value in zip(places, _listed(result), strict=True):
                if place_ is not None:
                    place_.copy_(value)


class RecordedGraphs:
    """The back end `recorded`: captures steps of `device` into one arena. `poison` spoils it before every replay."""

    def __init__(self, device: torch.device, *, poison: bool = False) -> None:
        self.arena = Arena(device, poison=poison)

    @property
    def pool_bytes(self) -> int:
        """Bytes that the graphs hold together."""
        return self.arena.nbytes

    def capture(self, body: Callable[[], Tensor], persistent: Mapping[str, Tensor]) -> RecordedGraph:
        """Records `body`. Raises CaptureUnsound for what no graph survives."""
        return RecordedGraph(trace_step(body, persistent), self.arena)

    def verify(self, graph: RecordedGraph, body: Callable[[], Tensor], persistent: Mapping[str, Tensor]) -> None:
        """That `body` would be recorded as it was. Raises CaptureUnsound where a frozen Python value has changed."""
        check_same(graph.trace, trace_step(body, persistent))


class _Call(NamedTuple):
    func: Any
    args: Any
    kwargs: Any
    places: tuple[Tensor | None, ...]


class Values(NamedTuple):
    """The values that a traced step makes: their lifetimes, and which of them each fresh output is (by id)."""

    lifetimes: list[Lifetime]
    owner: dict[int, int]


def trace_values(trace: Trace) -> Values:
    """The values of a trace: what an operation returns afresh, alive until its last reader, views included."""
    nbytes: list[int] = []
    first: list[int] = []
    last: list[int] = []
    root: dict[int, int] = {}
    owner: dict[int, int] = {}
    for at, op in enumerate(trace.ops):
        roots = [root[id(tensor)] for tensor in op.tensors if id(tensor) in root]
        for value in roots:
            last[value] = at
        if op.is_view:
            viewed = root.get(id(op.args[0]))
            root.update((id(out), viewed) for out in op.outputs if viewed is not None)
            continue
        for out, target in zip(op.outputs, op.written(), strict=True):
            if target is not None:
                if id(target) in root:
                    root[id(out)] = root[id(target)]
                continue
            root[id(out)] = owner[id(out)] = len(nbytes)
            nbytes.append(out.untyped_storage().nbytes())
            first.append(at)
            last.append(at)
    if (kept := root.get(id(trace.output))) is not None:
        last[kept] = len(trace.ops)
    return Values([Lifetime(*value) for value in zip(nbytes, first, last, strict=True)], owner)


def _laid_out(fake: Tensor, memory: Tensor, offset: int) -> Tensor:
    """A real tensor of the fake one's dtype, shape and strides at `offset` of `memory`."""
    piece = memory[offset : offset + fake.untyped_storage().nbytes()]
    return piece.view(fake.dtype).as_strided(fake.shape, fake.stride())


def _listed(result: Any) -> Sequence[Tensor]:
    return [leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, Tensor)]
