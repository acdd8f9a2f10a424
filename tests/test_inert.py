"""`check_step_inert` on live steps: it passes on a sound engine, and finds each way in which padding can leak."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nanoserve import DecodeBuckets, Engine, PlanUnsound, StaircaseBuckets, audit_blocks

torch = pytest.importorskip("torch")

import nanoserve.model.decoder as decoder_module  # noqa: E402
from nanoserve import StepNotInert, check_step_inert  # noqa: E402
from nanoserve.reads.gather import GatherWindow  # noqa: E402

Build = Callable[..., Engine]
BUCKETS = DecodeBuckets(4, 48, width_multiple=16)


def live(build: Build, rows: int = 3, steps: int = 2, **options: Any) -> Engine:
    """An engine in the middle of its work: `rows` unequal requests, some steps in."""
    engine = build(4, 48, **{"policy": BUCKETS, **options})
    for i in range(rows):
        engine.add_request([(7 * i + j) % 97 for j in range(3 + 5 * i)], max_tokens=20, request_id=str(i))
    for _ in range(steps):
        engine.step()
    return engine


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"policy": None},
        {"runner": "compiled"},
        {"policy": StaircaseBuckets(4, 48, {4: [48]})},
        {"block_size": 4, "num_blocks": 14},
    ],
    ids=["bucketed", "open", "compiled", "one shape", "small blocks"],
)
def test_a_sound_engine_is_inert(build: Build, rows: int, options: dict[str, Any]) -> None:
    assert check_step_inert(live(build, rows, **options)) == rows


def test_every_step_of_a_run_is_inert_and_looking_changes_no_token(build: Build) -> None:
    watched, plain = live(build, steps=0), live(build, steps=0)
    while watched.has_requests:
        check_step_inert(watched)
        pool, table = watched.cache.pool.clone(), watched.cache.slot_table.host.copy()
        check_step_inert(watched)
        assert torch.equal(watched.cache.pool, pool)
        assert (watched.cache.slot_table.host == table).all()
        step, other = watched.step(), plain.step()
        assert step.tokens == other.tokens
        assert step.outputs == other.outputs
    assert audit_blocks(watched.cache) == 0


def test_nothing_decodes_nothing_to_check(build: Build) -> None:
    engine = build(4, 48, policy=BUCKETS)
    assert check_step_inert(engine) == 0
    engine.add_request([1, 2], max_tokens=3)
    assert check_step_inert(engine) == 0, "what waits is no decode row yet"


def test_an_engine_without_weights_has_no_memory_to_poison() -> None:
    with pytest.raises(ValueError, match="without weights"):
        check_step_inert(Engine.build(None, 2, 16))


# Planted faults.


def read_with(monkeypatch: pytest.MonkeyPatch, change: Callable[[GatherWindow], GatherWindow]) -> None:
    real = decoder_module.gather_window

    def planted(slots: Any, context_lens: Any, dtype: Any) -> GatherWindow:
        return change(real(slots, context_lens, dtype))

    monkeypatch.setattr(decoder_module, "gather_window", planted)


def test_a_gather_that_masks_without_zeroing_is_caught(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """A masked column has weight 0, and 0 * NaN is NaN."""
    engine = live(build)
    read_with(monkeypatch, lambda window: window._replace(outside=torch.zeros_like(window.outside)))
    with pytest.raises(StepNotInert, match="with nan in memory that no row owns"):
        check_step_inert(engine)


def test_a_read_one_column_too_far_is_caught(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = live(build)
    real = decoder_module.gather_window
    monkeypatch.setattr(decoder_module, "gather_window", lambda slots, lens, dtype: real(slots, lens + 1, dtype))
    with pytest.raises(StepNotInert, match="memory that no row owns"):
        check_step_inert(engine)


def test_a_padded_row_that_writes_a_live_slot_is_caught(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = live(build)
    slot = int(engine.cache.slot_table.host[1, 0])
    inputs = engine.worker.inputs  # type: ignore[attr-defined]
    monkeypatch.setattr(inputs, "_pad_column", inputs._pad_column.copy())
    inputs._pad_column[2, 0] = slot
    with pytest.raises(StepNotInert):
        check_step_inert(engine)


def test_a_padded_row_that_writes_a_free_block_is_caught(build: Build) -> None:
    engine = live(build)
    inputs = engine.worker.inputs  # type: ignore[attr-defined]
    inputs._pad_column[2, 0] = int(engine.cache.allocator.free_blocks[0]) * engine.cache.block_size
    with pytest.raises(StepNotInert, match="outside the slots it writes"):
        check_step_inert(engine)


def test_a_step_that_writes_one_slot_too_many_is_caught(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = live(build)
    run = engine.worker.runner.run  # type: ignore[attr-defined]

    def planted(inputs: Any) -> Any:
        logits = run(inputs)
        engine.cache.pool[1, 1, int(engine.cache.slot_table.host[0, 0])] += 1
        return logits

    monkeypatch.setattr(engine.worker.runner, "run", planted)  # type: ignore[attr-defined]
    with pytest.raises(StepNotInert, match="outside the slots it writes"):
        check_step_inert(engine)


def test_rows_that_reach_into_each_other_are_caught(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """A per-tensor scale is such a channel: one junk padded row changes every real one."""
    engine = live(build)
    run = engine.worker.runner.run  # type: ignore[attr-defined]

    def planted(inputs: Any) -> Any:
        logits = run(inputs)
        return logits / logits.abs().max()

    monkeypatch.setattr(engine.worker.runner, "run", planted)  # type: ignore[attr-defined]
    with pytest.raises(StepNotInert):
        check_step_inert(engine)


def test_a_plan_that_fails_its_gates_is_not_even_tried(build: Build) -> None:
    engine = live(build)
    engine.cache.slot_table.host[1, engine.cache.lengths[1]] = engine.cache.sink_slot
    with pytest.raises(PlanUnsound, match="row 1 would write its token to the sink"):
        check_step_inert(engine)


def test_a_failed_check_puts_the_memory_back(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, plain = live(build), live(build)
    with monkeypatch.context() as patch:
        read_with(patch, lambda window: window._replace(outside=torch.zeros_like(window.outside)))
        with pytest.raises(StepNotInert):
            check_step_inert(engine)
    assert torch.equal(engine.cache.pool, plain.cache.pool)
    assert engine.step().tokens == plain.step().tokens


def test_an_error_names_how_much_changed(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = live(build)
    read_with(monkeypatch, lambda window: window._replace(outside=torch.zeros_like(window.outside)))
    with pytest.raises(StepNotInert, match=rf"\d+ of {3 * 97} values changed"):
        check_step_inert(engine)
