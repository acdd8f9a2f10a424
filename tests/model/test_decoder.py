"""The decode region: what lies outside a row's own context never reaches it, and every row is finite."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from pool_runner import PoolRunner
from torch import Tensor

from nanoserve.model.decoder import DecodeInputs
from nanoserve.model.errors import UnsupportedModel
from nanoserve.model.presets import preset_decoder
from nanoserve.reads.gather import gather_window

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [11]]
TOKENS = [20, 21, 22]
POISONS = [float("nan"), float("inf"), -float("inf")]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def runner(dtype: torch.dtype = torch.float32) -> PoolRunner:
    """Three rows of 3, 7 and 1 tokens and two padded ones, three columns wider than the longest."""
    made = PoolRunner(preset_decoder("tiny", dtype=dtype), rows=3, capacity=16, pad_rows=2, pad_width=3)
    made.prefill(PROMPTS)
    return made


def poison_sink(made: PoolRunner, poison: float) -> None:
    made.pool[:, :, made.sink] = poison


def poison_unwritten(made: PoolRunner, poison: float) -> None:
    for row, length in enumerate(made.lengths):
        made.pool[:, :, made.slot_table[row, length:]] = poison


@torch.inference_mode()
def step(made: PoolRunner, inputs: DecodeInputs) -> Tensor:
    return made.decoder.decode(inputs, made.pool)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("place", [poison_sink, poison_unwritten])
def test_memory_outside_a_context_changes_no_bit(
    place: Callable[[PoolRunner, float], None], poison: float, dtype: torch.dtype
) -> None:
    clean, poisoned = runner(dtype), runner(dtype)
    place(poisoned, poison)
    expected, logits = step(clean, clean.inputs(TOKENS)), step(poisoned, poisoned.inputs(TOKENS))
    assert torch.equal(logits, expected)
    assert logits.isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs_of_padded_rows_change_no_bit_of_real_ones(dtype: torch.dtype) -> None:
    clean, changed = runner(dtype), runner(dtype)
    inputs = changed.inputs(TOKENS)
    inputs.input_ids[3:], inputs.positions[3:] = 511, 15
    expected, logits = step(clean, clean.inputs(TOKENS)), step(changed, inputs)
    assert torch.equal(logits[:3], expected[:3])
    assert not torch.equal(logits[3:], expected[3:])
    assert logits.isfinite().all()


def test_the_mask_is_finite_where_every_column_is_masked() -> None:
    """Some attention kernels make NaN of a row of -inf; of a row of the least finite number none does."""
    window = gather_window(torch.zeros(2, 4, dtype=torch.int64), torch.tensor([0, 3]), torch.float16)
    assert window.bias.isfinite().all()
    assert window.bias[1, 0, 0].tolist() == [0, 0, 0, torch.finfo(torch.float16).min]


def test_padded_rows_write_the_sink_and_nothing_else() -> None:
    made = runner()
    before = made.pool.clone()
    step(made, made.inputs(TOKENS))
    written = {int(made.slot_table[row, length]) for row, length in enumerate([3, 7, 1])} | {made.sink}
    changed = (made.pool != before).flatten(3).any(-1).any(0).any(0).nonzero().flatten()
    assert set(changed.tolist()) == written


def test_a_step_of_nothing_but_padding_is_finite() -> None:
    made = runner()
    poison_sink(made, float("nan"))
    sink = torch.full((2, 8), made.sink)
    zeros = torch.zeros(2, dtype=torch.int64)
    logits = step(made, DecodeInputs(zeros, zeros, sink[:, 0], sink, zeros))
    assert logits.isfinite().all()


def test_prefill_padding_changes_no_prompt() -> None:
    """A short prompt gets the logits beside a long one that it gets alone; its padding writes the sink."""
    made = PoolRunner(preset_decoder("tiny"), rows=2, capacity=16)
    beside_long = made.prefill([[5, 6], [1] * 12])
    alone = PoolRunner(preset_decoder("tiny"), rows=1, capacity=16).prefill([[5, 6]])
    assert torch.allclose(beside_long[0], alone[0], atol=1e-5)
    assert made.pool[:, :, made.slot_table[0, 2:]].abs().sum() == 0


def test_decode_continues_what_prefill_began() -> None:
    """Prefill of n + 1 tokens and prefill of n then one decode step are the same computation."""
    whole = PoolRunner(preset_decoder("tiny"), rows=1, capacity=16).prefill([[3, 1, 4, 1, 5]])
    stepped = PoolRunner(preset_decoder("tiny"), rows=1, capacity=16)
    stepped.prefill([[3, 1, 4, 1]])
    assert torch.allclose(stepped.decode([5]), whole, atol=1e-5)


def test_prepare_refuses_positions_the_model_does_not_have() -> None:
    with pytest.raises(UnsupportedModel, match="max_model_len 16385 is past"):
        preset_decoder("tiny").prepare(16_385)
