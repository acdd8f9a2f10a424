"""The decoder against Hugging Face transformers on the same weights: logits, greedy tokens, every family."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from pool_runner import PoolRunner
from torch import Tensor

from nanoserve.model.checkpoint import load_directory

TOLERANCE = 1e-4
STEPS = 64
PROMPT_LENGTHS = (3, 17, 1, 9)
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 199,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

Build = Callable[[], transformers.PretrainedConfig]
FAMILIES: dict[str, Build] = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "llama-tied": lambda: transformers.LlamaConfig(**SIZES, tie_word_embeddings=True),
    "llama-bias": lambda: transformers.LlamaConfig(**SIZES, attention_bias=True),
    "llama-llama3-rope": lambda: transformers.LlamaConfig(**SIZES, rope_parameters=LLAMA3_ROPE),
    "mistral-wide-heads": lambda: transformers.MistralConfig(**SIZES, head_dim=24, sliding_window=None),
    "mistral-window": lambda: transformers.MistralConfig(**SIZES, sliding_window=128),
    "qwen2": lambda: transformers.Qwen2Config(**SIZES),
    "qwen2-tied": lambda: transformers.Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3-wide-heads": lambda: transformers.Qwen3Config(**SIZES, head_dim=32),
    "qwen3-bias": lambda: transformers.Qwen3Config(**SIZES, head_dim=16, attention_bias=True),
}


def randomized(config: transformers.PretrainedConfig) -> transformers.PreTrainedModel:
    """The oracle with nothing left at its initial zero or one: an unread bias or norm must show."""
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def prompts(vocab_size: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(11)
    return [torch.randint(vocab_size, (length,), generator=generator).tolist() for length in PROMPT_LENGTHS]


@torch.inference_mode()
def oracle_logits(model: transformers.PreTrainedModel, prompt: list[int], answer: list[int]) -> Tensor:
    """`[len(answer), vocab]`: the logits that chose, or would choose, each token of `answer`, in one pass."""
    sequence = torch.tensor([prompt + answer])
    return model(sequence, use_cache=False).logits[0, len(prompt) - 1 : -1]


def assert_same_choices(expected: Tensor, tokens: list[int]) -> None:
    """Equal choices at every step of a common history are equal greedy runs; only a tie may be broken otherwise."""
    chosen = expected.gather(1, torch.tensor(tokens)[:, None]).squeeze(1)
    assert (expected.amax(1) - chosen).max() < TOLERANCE


@pytest.fixture(params=FAMILIES)
def oracle(request: pytest.FixtureRequest) -> transformers.PreTrainedModel:
    return randomized(FAMILIES[request.param]())


def test_logits_and_greedy_tokens_agree(oracle: transformers.PreTrainedModel, tmp_path: Path) -> None:
    """Prefill and 63 decode steps of four unequal rows beside two padded ones, on one greedy history."""
    oracle.save_pretrained(tmp_path)
    runner = PoolRunner(load_directory(tmp_path), rows=4, capacity=100, pad_rows=2, pad_width=5)
    batch = prompts(oracle.config.vocab_size)
    tokens, logits = runner.greedy(batch, STEPS)
    for row, prompt in enumerate(batch):
        expected = oracle_logits(oracle, prompt, tokens[row])
        assert (logits[row] - expected).abs().max() < TOLERANCE
        assert_same_choices(expected, tokens[row])


@pytest.mark.parametrize("family", ["llama", "qwen3-wide-heads"])
def test_alone_and_in_a_batch_a_row_makes_the_same_tokens(family: str, tmp_path: Path) -> None:
    oracle = randomized(FAMILIES[family]())
    oracle.save_pretrained(tmp_path)
    decoder, batch = load_directory(tmp_path), prompts(oracle.config.vocab_size)
    together, _ = PoolRunner(decoder, rows=4, capacity=100).greedy(batch, 24)
    for row, prompt in enumerate(batch):
        alone, _ = PoolRunner(decoder, rows=1, capacity=100).greedy([prompt], 24)
        assert alone[0] == together[row]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["llama", "mistral-wide-heads", "qwen2", "qwen3-wide-heads"])
def test_half_precision_stays_near_float32(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    oracle = randomized(FAMILIES[family]())
    oracle.save_pretrained(tmp_path)
    runner = PoolRunner(load_directory(tmp_path, dtype=dtype), rows=4, capacity=100, pad_rows=1)
    batch = prompts(oracle.config.vocab_size)
    tokens, logits = runner.greedy(batch, 4)
    assert logits.dtype == dtype
    for row, prompt in enumerate(batch):
        expected = oracle_logits(oracle, prompt, tokens[row])
        error = (logits[row].float() - expected).norm() / expected.norm()
        assert error < (0.1 if dtype == torch.bfloat16 else 0.02)
