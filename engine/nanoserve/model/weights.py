"""Put a stream of named tensors into a decoder: every parameter exactly once, or an error with the names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import torch
from torch import Tensor, nn

from nanoserve.model.config import ModelConfig
from nanoserve.model.decoder import Decoder
from nanoserve.model.errors import CheckpointError, UnsupportedModel

DTYPES: Final[Mapping[str, torch.dtype]] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
NAMES_SHOWN: Final = 3


def dtype_named(name: str) -> torch.dtype:
    """The torch dtype of one of the three names the engine runs in. Raises ValueError for any other."""
    if name not in DTYPES:
        raise ValueError(f"unknown dtype {name!r}: choose one of {', '.join(DTYPES)}")
    return DTYPES[name]


def meta_decoder(config: ModelConfig) -> Decoder:
    """A decoder that has shapes and no memory."""
    with torch.device("meta"):
        return Decoder(config)


def build_decoder(
    config: ModelConfig,
    tensors: Iterable[tuple[str, Tensor]],
    *,
    source: str,
    device: torch.device | str,
    dtype: torch.dtype,
) -> Decoder:
    """The decoder of `config` with `tensors`, named as its parameters are, copied to `device` in `dtype`.

    The tensors are taken one at a time, so a stream costs one of them beside the model. A tied decoder has no
    output projection of its own: one that comes along is ignored. Raises CheckpointError for missing,
    unexpected, repeated or wrongly shaped tensors, UnsupportedModel for weights that are no plain floats;
    `source` says in the message where they came from.
    """
    decoder = meta_decoder(config)
    wanted = dict(decoder.named_parameters())
    loaded: set[str] = set()
    unexpected, misshapen = [], []
    for name, tensor in tensors:
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if name in loaded:
            raise CheckpointError(f"{source}: {name} comes twice")
        if name not in wanted:
            unexpected.append(name)
        elif tensor.shape != wanted[name].shape:
            misshapen.append(f"{name} {list(tensor.shape)} for {list(wanted[name].shape)}")
        else:
            _require_float(name, tensor, source)
            _assign(decoder, name, torch.empty(tensor.shape, dtype=dtype, device=device).copy_(tensor))
        loaded.add(name)
    _refuse(source, "wrongly shaped tensors", misshapen)
    _refuse(source, "unexpected tensors", unexpected)
    _refuse(source, "missing tensors", [name for name in wanted if name not in loaded])
    decoder.tie_weights()
    return decoder.eval().requires_grad_(False)


def _assign(decoder: Decoder, name: str, tensor: Tensor) -> None:
    owner, _, leaf = name.rpartition(".")
    setattr(decoder.get_submodule(owner), leaf, nn.Parameter(tensor, requires_grad=False))


def _require_float(name: str, tensor: Tensor, source: str) -> None:
    if tensor.dtype not in (*DTYPES.values(), torch.float64):
        raise UnsupportedModel(f"{source}: {name} is {tensor.dtype}: quantized weights are not implemented")


def _refuse(source: str, what: str, names: list[str]) -> None:
    if names:
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        raise CheckpointError(f"{source}: {what} ({len(names)}): {', '.join(names[:NAMES_SHOWN])}{more}")
