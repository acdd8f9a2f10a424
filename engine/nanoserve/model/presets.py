"""Models made of a seed: no file, no network, the same weights on every machine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Final

import torch
from torch import Tensor

from nanoserve.model.config import ModelConfig
from nanoserve.model.decoder import Decoder
from nanoserve.model.weights import build_decoder, meta_decoder

PRESETS: Final[Mapping[str, ModelConfig]] = {
    "tiny": ModelConfig(
        family="llama",
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        max_position_embeddings=16_384,
    ),
    "small": ModelConfig(
        family="llama",
        vocab_size=8192,
        hidden_size=512,
        intermediate_size=1536,
        num_layers=8,
        num_heads=8,
        num_kv_heads=4,
        head_dim=64,
        max_position_embeddings=16_384,
    ),
}
# Wide enough that a token depends on the whole history before it; narrow enough that the last bits of matrix
# products of different sizes stay two orders below the usual distance of the two best logits.
GAIN: Final = 1.25


def preset_decoder(
    name: str, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32, seed: int = 0
) -> Decoder:
    """The preset `name`, a key of `PRESETS`, with weights drawn from `seed`."""
    config = PRESETS[name]
    return build_decoder(config, _random_weights(config, seed), source=name, device=device, dtype=dtype)


def _random_weights(config: ModelConfig, seed: int) -> Iterator[tuple[str, Tensor]]:
    """Norms of one, and matrices with a standard deviation of `GAIN / sqrt(inputs)`; the embedding's is 1.

    Uniform, not normal, and drawn on the CPU in float32: a uniform draw is the generator's bits and correctly
    rounded arithmetic, where a normal one goes through logarithms whose last bit differs between CPUs.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in meta_decoder(config).named_parameters():
        if parameter.dim() == 1:
            yield name, torch.ones(parameter.shape)
            continue
        std = 1.0 if name == "embed_tokens.weight" else GAIN / math.sqrt(parameter.shape[1])
        unit = torch.rand(parameter.shape, generator=generator) - 0.5
        yield name, unit * (math.sqrt(12) * std)
