"""Rotary position embedding: frequencies, the cos/sin table, the rotation (rotate-half, as Hugging Face)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nanoserve.model.config import Llama3RopeScaling, ModelConfig


def inverse_frequencies(config: ModelConfig) -> Tensor:
    """float32 `[head_dim / 2]`: `theta ** (-2i / head_dim)`, rescaled where the config says so."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    if config.rope_divisors:
        frequencies = frequencies / torch.tensor(config.rope_divisors)
    return frequencies if config.rope_scaling is None else _llama3_scaled(frequencies, config.rope_scaling)


def _llama3_scaled(frequencies: Tensor, scaling: Llama3RopeScaling) -> Tensor:
    """Low frequencies divided by `factor`, high ones kept, those between interpolated (Llama 3.1's code)."""
    wavelengths = 2 * math.pi / frequencies
    low_wavelength = scaling.original_max_position_embeddings / scaling.low_freq_factor
    high_wavelength = scaling.original_max_position_embeddings / scaling.high_freq_factor
    smooth = (scaling.original_max_position_embeddings / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    between = (1 - smooth) * frequencies / scaling.factor + smooth * frequencies
    scaled = torch.where(wavelengths > low_wavelength, frequencies / scaling.factor, frequencies)
    is_between = (wavelengths <= low_wavelength) & (wavelengths >= high_wavelength)
    return torch.where(is_between, between, scaled)


def rope_table(config: ModelConfig, length: int) -> Tensor:
    """float32 `[length, 2, head_dim]`: cos and sin of every position, each half of them the same."""
    angles = torch.outer(torch.arange(length, dtype=torch.float32), inverse_frequencies(config))
    angles = torch.cat((angles, angles), dim=-1)
    return torch.stack((angles.cos(), angles.sin()), dim=1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`x` `[..., heads, head_dim]` rotated by `cos` and `sin` `[..., 1, head_dim]`."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
