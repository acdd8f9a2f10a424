"""From `--model`, `--device` and `--dtype` to a decoder, or to none where steps are only planned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nanoserve.extras import import_engine

if TYPE_CHECKING:
    from nanoserve.model.decoder import Decoder
    from nanoserve.model.tokenizer import Tokenizer


@dataclass(frozen=True)
class ModelChoice:
    """A loaded model and what is recorded of it; every field is None where there is none."""

    decoder: Decoder | None = None
    tokenizer: Tokenizer | None = None
    tokenizer_problem: str | None = None
    name: str | None = None
    source: str | None = None
    sha256: str | None = None
    device: str | None = None
    dtype: str | None = None


def choose_model(name: str | None, *, device: str, dtype: str, seed: int) -> ModelChoice:
    """Loads `name`; `auto` is CUDA where there is one, and float32 on a CPU or else the checkpoint's dtype.

    Raises ImportError without torch, ValueError for an unknown model, dtype or device, and what `load_model` raises.
    """
    if name is None:
        return ModelChoice()
    build = import_engine("nanoserve.build", "running a model")
    import torch

    from nanoserve.model.load import load_model

    place = build.default_device() if device == "auto" else device
    build.check_device(place)
    wanted = ("float32" if place == "cpu" else None) if dtype == "auto" else dtype
    loaded = load_model(name, device=place, dtype=wanted, seed=seed)
    return ModelChoice(
        decoder=loaded.decoder,
        tokenizer=loaded.tokenizer,
        tokenizer_problem=loaded.tokenizer_problem,
        name=loaded.name,
        source=loaded.source,
        sha256=loaded.sha256,
        device=str(torch.device(place)),
        dtype=str(loaded.decoder.dtype).removeprefix("torch."),
    )
