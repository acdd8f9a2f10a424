"""From what somebody calls a model, a name or a path, to a decoder and its tokenizer."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from nanoserve.cache_dir import cached_model
from nanoserve.model.checkpoint import load_directory
from nanoserve.model.decoder import Decoder
from nanoserve.model.errors import CheckpointError, UnsupportedModel
from nanoserve.model.gguf_file import load_gguf
from nanoserve.model.gguf_header import is_gguf, read_header
from nanoserve.model.gguf_tokenizer import gguf_tokenizer
from nanoserve.model.presets import PRESETS, preset_decoder
from nanoserve.model.tokenizer import Tokenizer, load_tokenizer
from nanoserve.model.weights import dtype_named

SMOLLM2: Final = "smollm2"
SMOLLM2_FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_NAMES: Final = (*PRESETS, SMOLLM2)


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to be prepared and run, and where it is from.

    `name` is what was asked for; `source` a path, or the preset and its seed. `sha256` is the file's, where
    the model is one file. `tokenizer` is None for a preset, and where the checkpoint's cannot be used:
    `tokenizer_problem` then says why, since a model without one still serves token ids.
    """

    decoder: Decoder
    tokenizer: Tokenizer | None
    name: str
    source: str
    sha256: str | None = None
    tokenizer_problem: str | None = None


def load_model(
    spec: str | Path, *, device: torch.device | str = "cpu", dtype: str | None = "float32", seed: int = 0
) -> LoadedModel:
    """Load `tiny`, `small`, `smollm2`, a Hugging Face directory or a GGUF file.

    `dtype` is float32, bfloat16 or float16; None takes what a directory's config says, and float32 elsewhere.
    `seed` is that of the presets' weights. Raises ValueError for an unknown name or dtype, CheckpointError
    for files that are absent or damaged, UnsupportedModel for what is not implemented.
    """
    name, chosen = str(spec), None if dtype is None else dtype_named(dtype)
    if name in PRESETS:
        decoder = preset_decoder(name, device=device, dtype=chosen or torch.float32, seed=seed)
        return LoadedModel(decoder, None, name, f"{name}, seed {seed}", tokenizer_problem=f"{name} has no tokenizer")
    path = _path(name)
    if path.is_dir():
        decoder = load_directory(path, device=device, dtype=chosen)
        tokenizer, problem = _tokenizer_or_reason(lambda: load_tokenizer(path))
        return LoadedModel(decoder, tokenizer, name, str(path), tokenizer_problem=problem)
    decoder = load_gguf(path, device=device, dtype=chosen or torch.float32)
    tokenizer, problem = _tokenizer_or_reason(lambda: gguf_tokenizer(read_header(path)))
    return LoadedModel(decoder, tokenizer, name, str(path), _sha256(path), problem)


def _path(name: str) -> Path:
    """The directory or GGUF file that `name` stands for, recognised by what it holds, not by its ending."""
    if not name.strip():
        raise ValueError(f"the model's name is empty: give one of {', '.join(MODEL_NAMES)}, or a path")
    if name == SMOLLM2:
        path = cached_model(SMOLLM2_FILE)
        if not path.is_file():
            raise CheckpointError(f"{path} is missing: run `nanoserve fetch {SMOLLM2}`")
        return path
    path = Path(name).expanduser()
    if path.is_dir() or is_gguf(path):
        return path
    if path.exists():
        raise CheckpointError(f"{path} is neither a checkpoint directory nor a GGUF file")
    close = difflib.get_close_matches(name, MODEL_NAMES, n=1)
    hint = f", did you mean {close[0]!r}?" if close else f": give one of {', '.join(MODEL_NAMES)}, or a path"
    raise ValueError(f"no model {name!r}{hint}")


def _tokenizer_or_reason(load: Callable[[], Tokenizer]) -> tuple[Tokenizer | None, str | None]:
    try:
        return load(), None
    except (CheckpointError, UnsupportedModel) as error:
        return None, str(error)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
