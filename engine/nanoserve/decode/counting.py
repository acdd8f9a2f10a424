"""How often dynamo compiles when a run's shapes are presented to it: really traced, no code made, nothing timed."""

from __future__ import annotations

from collections.abc import Iterable
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
