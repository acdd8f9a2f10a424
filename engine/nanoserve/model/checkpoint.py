"""Read a Hugging Face directory: `config.json` and safetensors, in one file or in shards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from nanoserve.model.decoder import Decoder
from nanoserve.model.errors import CheckpointError
from nanoserve.model.hf_config import read_hf_config, read_json
from nanoserve.model.weights import build_decoder, dtype_named

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def load_directory(path: Path, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None) -> Decoder:
    """The decoder of a Hugging Face checkpoint directory, in `dtype` (default: the one its config names).

    Raises UnsupportedModel for what is not implemented, CheckpointError for files that are missing, damaged
    or do not fit the config; either says so in one line.
    """
    config = read_hf_config(path)
    return build_decoder(
        config.model,
        _tensors(weight_files(path)),
        source=str(path),
        device=device,
        dtype=dtype or dtype_named(config.dtype),
    )


def weight_files(directory: Path) -> tuple[Path, ...]:
    """The one weight file, or the shards its index names. Others are another format's (`consolidated*`)."""
    if (directory / SINGLE).is_file():
        return (directory / SINGLE,)
    if not (directory / INDEX).is_file():
        raise CheckpointError(f"{directory} has neither {SINGLE} nor {INDEX}: only safetensors checkpoints are read")
    names = sorted(set(read_json(directory / INDEX).get("weight_map", {}).values()))
    if not names:
        raise CheckpointError(f"{directory / INDEX} names no weight file: fetch it again")
    for name in names:
        if Path(name).name != name:
            raise CheckpointError(f"{directory / INDEX} names {name!r}, which is outside the directory")
        if not (directory / name).is_file():
            raise CheckpointError(f"{directory / name} is missing: {INDEX} names it, fetch the shard")
    return tuple(directory / name for name in names)


def _tensors(files: tuple[Path, ...]) -> Iterator[tuple[str, Tensor]]:
    """Every tensor under its parameter's name, but RoPE's frequencies, which old checkpoints carry."""
    for file in files:
        try:
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - a handle, not a mapping
                    if not name.endswith("rotary_emb.inv_freq"):
                        yield name.removeprefix("model."), tensors.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file} cannot be read as safetensors ({error}): fetch it again") from error
