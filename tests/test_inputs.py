"""The persistent inputs: one buffer, written in place, nothing stale behind a smaller step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nanoserve import BatchedPagedKVCache, DecodeBuckets, Shape, plan_decode

torch = pytest.importorskip("torch")

from nanoserve.inputs import StepInputs  # noqa: E402

CPU = torch.device("cpu")


def cache_of(*lengths: int) -> BatchedPagedKVCache:
    policy = DecodeBuckets(8, 40, width_multiple=16)
    cache = BatchedPagedKVCache(8, 40, block_size=4, policy=policy)
    cache.slot_table.attach(torch.from_numpy(cache.slot_table.host), None)
    for length in lengths:
        cache.admit(length)
    cache.grow(cache.rows_to_grow())
    return cache


def written(inputs: StepInputs, cache: BatchedPagedKVCache, tokens: list[int]) -> Any:
    return inputs.write(plan_decode(cache, len(tokens)), np.array(tokens, dtype=np.int64))


def test_a_step_is_written_with_the_padding_values_behind_it() -> None:
    cache = cache_of(5, 9, 2)
    step = written(StepInputs(8, cache.sink_slot, CPU), cache, [11, 12, 13])
    assert step.input_ids.tolist() == [11, 12, 13, 0]
    assert step.positions.tolist() == [5, 9, 2, 0]
    assert step.write_slots.tolist() == [5, 17, 22, cache.sink_slot]
    assert step.context_lens.tolist() == [6, 10, 3, 0]
    assert tuple(step.slots.shape) == (4, 16)
    assert all(tensor.dtype == torch.int64 for tensor in step)


def test_a_new_buffer_is_all_padding() -> None:
    inputs = StepInputs(8, 320, CPU)
    assert inputs.buffer.tolist() == [[0] * 8, [0] * 8, [320] * 8, [0] * 8]


@pytest.mark.parametrize("poison", [99, -1])
def test_a_larger_earlier_batch_leaves_nothing_behind(poison: int) -> None:
    """Not in the rows of this step's bucket and not past them, where a later, larger graph would read it."""
    big, small = cache_of(30, 31, 30, 31, 30, 31, 30, 31), cache_of(5)
    inputs = StepInputs(8, small.sink_slot, CPU)
    written(inputs, big, [7] * 8)
    inputs.buffer[:, 1:] = poison
    written(inputs, small, [3])
    assert inputs.buffer[:, 0].tolist() == [3, 5, 5, 6]
    assert (inputs.buffer[:, 1:] == torch.tensor([[0], [0], [small.sink_slot], [0]])).all()


def test_a_step_of_nobody_is_padding_in_every_row() -> None:
    cache = cache_of(5, 9, 2)
    inputs = StepInputs(8, cache.sink_slot, CPU)
    written(inputs, cache, [1, 2, 3])
    window = cache.slot_table.read(range(0), 16, pad_rows=4).slots
    step = inputs.all_padding(Shape(4, 16), window)
    assert step.input_ids.tolist() == step.positions.tolist() == step.context_lens.tolist() == [0] * 4
    assert step.write_slots.tolist() == [cache.sink_slot] * 4
    assert step.slots is window


def test_addresses_never_change_whatever_is_written() -> None:
    cache = cache_of(5, 9, 2, 7, 1)
    inputs = StepInputs(8, cache.sink_slot, CPU)

    def addresses(step: Any) -> list[int]:
        return [tensor.data_ptr() for tensor in step]

    first = addresses(written(inputs, cache, [1, 2, 3, 4, 5]))
    for rows in (1, 5, 2, 3):
        assert addresses(written(inputs, cache, [9] * rows)) == first
    window = cache.slot_table.read(range(0), 40, pad_rows=8).slots
    assert addresses(inputs.all_padding(Shape(8, 40), window)) == first
    assert first[0] == inputs.buffer.data_ptr()


def test_a_step_is_written_through_views_and_not_copies() -> None:
    cache = cache_of(5, 9)
    inputs = StepInputs(8, cache.sink_slot, CPU)
    step = written(inputs, cache, [1, 2])
    cache.advance(2)
    written(inputs, cache, [3, 4])
    assert step.input_ids.tolist() == [3, 4]
    assert step.positions.tolist() == [6, 10]


def test_writing_a_step_makes_no_tensor_storage() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.storages: set[int] = set()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            self.storages |= {t.untyped_storage().data_ptr() for t in (out if isinstance(out, list | tuple) else [out])}
            return out

    cache = cache_of(5, 9)
    inputs = StepInputs(8, cache.sink_slot, CPU)
    plan, tokens = plan_decode(cache, 2), np.array([1, 2])
    with Watch() as watch:
        inputs.write(plan, tokens)
        inputs.all_padding(Shape(2, 16), plan.slots)
    assert watch.storages == {inputs.buffer.untyped_storage().data_ptr()}


def test_as_many_tokens_as_rows() -> None:
    cache = cache_of(5, 9, 2)
    inputs = StepInputs(8, cache.sink_slot, CPU)
    plan = plan_decode(cache, 3)
    for wrong in (2, 4):
        with pytest.raises(ValueError, match="broadcast"):
            inputs.write(plan, np.zeros(wrong, np.int64))


def test_one_token_is_not_fed_to_three_rows() -> None:
    # Pinned: an array of one token broadcasts over every row of the step.
    cache = cache_of(5, 9, 2)
    inputs = StepInputs(8, cache.sink_slot, CPU)
    with pytest.raises(ValueError, match="1"):
        inputs.write(plan_decode(cache, 3), np.array([7], np.int64))
