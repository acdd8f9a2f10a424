"""How often dynamo compiles when a run's shapes are presented to it: really traced, no code made, nothing timed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from nanoserve.buckets import CaptureList, DecodePolicy, Shape
from nanoserve.decode.compiled import CompiledDecode, quiet_dynamo, reset_dynamo
from nanoserve.model_worker import ModelWorker


@dataclass(frozen=True)
class CompileCount:
    """`presented` distinct shapes gave `compiles` graphs; `abandoned` frames were given up at dynamo's limit of 8."""

    presented: int
    compiles: int
    recompiles: int
    abandoned: int


@torch.no_grad()
def count_compiles_each(
    worker: ModelWorker, captures: CaptureList, *, progress: Callable[[Shape], None] | None = None
) -> dict[Shape, tuple[int, int]]:
    """What each shape of a list costs dynamo: its compiles when it is first presented, and its recompiles later.

    One compiled step serves the whole list, so that each shape is compiled once however many policies share it. The
    second presentation is after the set is closed and must compile nothing. `progress` is told of each first one.
    """
    reset_dynamo()
    runner = CompiledDecode(worker.decoder, worker.cache.pool, captures, backend="count")
    with quiet_dynamo():
        first = {}
        for shape in captures.shapes:
            first[shape] = _compiles_of(shape, worker, runner)
            if progress is not None:
                progress(shape)
        runner.region.close()
        return {shape: (count, _compiles_of(shape, worker, runner)) for shape, count in first.items()}


def _compiles_of(shape: Shape, worker: ModelWorker, runner: CompiledDecode) -> int:
    before = runner.region.compiles
    worker.prepare_shape(shape, runner)
    return runner.region.compiles - before


@torch.no_grad()
def count_compiles(
    worker: ModelWorker, shapes: Iterable[Shape], policy: DecodePolicy | CaptureList | None, *, dynamic: str = "off"
) -> CompileCount:
    """Presents each distinct shape, in order of first use, to a compiled decode step with nobody in it.

    Under a policy the set is then closed and everything presented once more, which must compile nothing. Openly, what
    comes after dynamo has given the frame up is not run: it would never be compiled.
    """
    ordered = list(dict.fromkeys(shapes))
    reset_dynamo()
    runner = CompiledDecode(worker.decoder, worker.cache.pool, policy, backend="count", dynamic=dynamic)
    region = runner.region
    with quiet_dynamo():
        for shape in ordered:
            worker.prepare_shape(shape, runner)
            if region.abandoned:
                break
        if policy is not None:
            region.close()
            for shape in ordered:
                worker.prepare_shape(shape, runner)
    return CompileCount(len(ordered), region.compiles, region.recompiles, region.abandoned)
