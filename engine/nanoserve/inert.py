"""That nothing outside a row's own context reaches its logits, tried on live memory: poison it and compare bits."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from nanoserve.engine import Engine
from nanoserve.model_worker import ModelWorker
from nanoserve.plan import DecodePlan, PlanUnsound, check_plan, plan_decode


class StepNotInert(PlanUnsound):
    """A step whose result depends on memory that belongs to nobody, or that wrote where it should not."""


def check_step_inert(engine: Engine) -> int:
    """Runs the engine's next decode step on clean and on poisoned memory and compares the real rows bit for bit.

    Poisoned, with NaN and then with inf: the sink, every free block, every unwritten tail, the very slots the step
    writes before it reads them; and the token and position of every padded row. Afterwards the pool may differ in
    the written slots and the sink only. Puts everything back and returns the rows compared, 0 where none decodes.
    Costs three forwards and two copies of the pool.

    Raises StepNotInert where a bit differs, PlanUnsound or SlotsUnsound where a gate of the plan fails, ValueError for
    an engine that only plans.
    """
    worker = engine.worker
    if not isinstance(worker, ModelWorker):
        raise ValueError("an engine without weights has no memory to poison: build it with a model")
    rows = engine.scheduler.prepare()
    if not rows:
        return 0
    plan, feed = plan_decode(engine.cache, rows), engine.feed(rows)
    check_plan(plan, engine.cache)
    pool: Tensor = engine.cache.pool
    before = pool.clone()
    try:
        clean = worker.forward(plan, feed)[:rows].clone()
        written = torch.from_numpy(plan.write_snapshot).to(pool.device)
        for value in (float("nan"), float("inf")):
            pool.copy_(before)
            pool[:, :, _unowned_slots(engine, plan).to(pool.device)] = value
            poisoned_before = pool.clone()
            poisoned = _forward_with_junk_in_padding(worker, plan, feed)[:rows].clone()
            _compare(clean, poisoned, f"with {value} in memory that no row owns")
            pool[:, :, written] = poisoned_before[:, :, written]
            _compare(poisoned_before, pool, f"outside the slots it writes, with {value} in free memory")
    finally:
        pool.copy_(before)
    return rows


def _unowned_slots(engine: Engine, plan: DecodePlan) -> Tensor:
    """Bool `[num_slots]`: every slot that holds no token yet; this step's own are among them."""
    unowned = np.ones(engine.cache.num_slots, dtype=bool)
    columns = np.arange(engine.cache.max_model_len)
    held = columns < engine.cache.lengths[: plan.batch_size, None]
    unowned[engine.cache.slot_table.host[: plan.batch_size][held]] = False
    return torch.from_numpy(unowned)


@torch.no_grad()
def _forward_with_junk_in_padding(worker: ModelWorker, plan: DecodePlan, feed: np.ndarray) -> Tensor:
    inputs = worker.inputs.write(plan, feed)
    inputs.input_ids[plan.batch_size :] = worker.vocab_size - 1
    inputs.positions[plan.batch_size :] = worker.cache.max_model_len - 1
    return worker.runner.run(inputs)


def _compare(expected: Tensor, got: Tensor, where: str) -> None:
    same = (expected == got) | (expected.isnan() & got.isnan())
    if not bool(same.all()):
        raise StepNotInert(f"{int((~same).sum())} of {same.numel()} values changed {where}: padding is not inert")
