"""One thread for every test, reproducible properties, and a decoder small enough to run anywhere."""

from __future__ import annotations

import os

# Before anything imports torch: with two OpenMP threads on a busy two-core machine a step takes 50 times as long.
os.environ["OMP_NUM_THREADS"] = "1"

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from nanoserve.engine import Engine
    from nanoserve.model.decoder import Decoder

try:
    from hypothesis import settings
except ModuleNotFoundError:  # a GPU machine that runs tests/gpu alone
    pass
else:
    settings.register_profile("suite", deadline=None, derandomize=True, database=None, print_blob=True)
    settings.load_profile("suite")


@pytest.fixture(scope="session")
def shared_decoder() -> Decoder:
    """Two small layers with grouped heads; weights from a seed. Take `decoder`, unless you only read."""
    import torch

    from nanoserve.model.config import ModelConfig
    from nanoserve.model.decoder import Decoder

    torch.set_num_threads(1)
    config = ModelConfig(
        family="llama",
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        max_position_embeddings=4096,
    )
    made = Decoder(config).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(11)
    for name, parameter in made.named_parameters():
        if parameter.dim() > 1:
            std = 1.0 if name == "embed_tokens.weight" else 1.25 / parameter.shape[1] ** 0.5
            parameter.copy_((torch.rand(parameter.shape, generator=generator) - 0.5) * 12**0.5 * std)
    return made


@pytest.fixture
def decoder(shared_decoder: Decoder) -> Decoder:
    """A copy of the shared decoder: `Engine.build` makes its RoPE table in place."""
    return copy.deepcopy(shared_decoder)


@pytest.fixture
def build(shared_decoder: Decoder) -> Callable[..., Engine]:
    """`build(max_batch_size, max_model_len, **options)`: an audited engine over a decoder of its own, on the CPU."""
    from nanoserve.engine import Engine

    def make(max_batch_size: int, max_model_len: int, **options: Any) -> Engine:
        options = {"audit": True, "device": "cpu", **options}
        model = options.pop("model", None) or copy.deepcopy(shared_decoder)
        return Engine.build(model, max_batch_size, max_model_len, **options)

    return make
