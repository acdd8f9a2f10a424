"""The run that the picture of the idea is drawn from: a few requests, scheduled and planned, nothing computed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from nanoserve.buckets import DecodeBuckets, Shape
from nanoserve.engine import Engine
from nanoserve.plan import DecodePlan, check_pad_inert
from nanoserve.pricing import RunCost, price_run
from nanoserve.steps import StepsRecorder

REQUESTS = ((0, 9, 74), (0, 22, 40), (6, 14, 62), (13, 30, 44), (19, 6, 36))
"""Tick of arrival, prompt and output tokens of each."""
POLICY = DecodeBuckets(8, 96, width_multiple=32)
BLOCK_SIZE, NUM_BLOCKS = 16, 24
FREE = -1


@dataclass(frozen=True, eq=False)
class Example:
    """Every plan of the run, and one step of it: `shown`, its plan, and `owners`, the row of each KV block then."""

    plans: tuple[DecodePlan, ...]
    shown: DecodePlan
    owners: NDArray[np.int64]

    @cached_property
    def cost(self) -> RunCost:
        """What the run costs under `POLICY`."""
        recorder = StepsRecorder()
        for plan in self.plans:
            recorder.add(plan.batch_size, plan.width, plan.live_cells)
        return price_run(recorder.steps(), POLICY)

    @property
    def open_shapes(self) -> tuple[Shape, ...]:
        """The shape of each step as it came."""
        return tuple(plan.open_shape for plan in self.plans)

    @property
    def presented(self) -> tuple[Shape, ...]:
        """The distinct shapes that the steps ran as, ascending."""
        return tuple(sorted({plan.shape for plan in self.plans}))


def paddings(plan: DecodePlan) -> tuple[int, int, int]:
    """The ragged, width and row padding of one step, in cells."""
    return (
        plan.batch_size * plan.width - plan.live_cells,
        plan.batch_size * (plan.graph_width - plan.width),
        plan.pad_rows * plan.graph_width,
    )


def run() -> Example:
    """Serves `REQUESTS` on an engine without a model. The step shown has three rows and most of its rarest padding."""
    engine = Engine.build(
        None, POLICY.max_batch_size, POLICY.max_model_len, BLOCK_SIZE, NUM_BLOCKS, policy=POLICY, audit=True
    )
    plans: list[DecodePlan] = []
    shown: tuple[DecodePlan, NDArray[np.int64]] | None = None
    tick = 0
    while tick <= REQUESTS[-1][0] or engine.has_requests:
        for arrival, prompt, outputs in REQUESTS:
            if arrival == tick:
                engine.add_request((0,) * prompt, max_tokens=outputs)
        result = engine.step()
        tick += 1
        if result.plan is None:
            continue
        check_pad_inert(result.plan)
        plans.append(result.plan)
        least = 0 if shown is None else min(paddings(shown[0]))
        if result.plan.batch_size == 3 and min(paddings(result.plan)) > least and not result.outputs:
            shown = result.plan, _owners(engine)
    assert shown is not None, "three of the requests overlap"
    return Example(tuple(plans), *shown)


def _owners(engine: Engine) -> NDArray[np.int64]:
    """The row that holds each block; FREE where none does."""
    table = engine.cache.block_table
    owners = np.full(engine.cache.num_blocks, FREE)
    for row in range(engine.cache.num_rows):
        owners[table.blocks[row, : table.counts[row]]] = row
    return owners
