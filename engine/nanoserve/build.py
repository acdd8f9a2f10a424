"""From a model, a device and a runner's name to a worker: where an engine's parts are put together."""

from __future__ import annotations

import torch

from nanoserve.cache.kv import BatchedPagedKVCache
from nanoserve.decode import DecodeRunner
from nanoserve.decode.compiled import CompiledDecode
from nanoserve.decode.eager import EagerDecode
from nanoserve.model.decoder import Decoder
from nanoserve.model_worker import ModelWorker, attach_pool


def build_worker(
    model: Decoder | str,
    cache: BatchedPagedKVCache,
    *,
    device: str | None,
    dtype: str | None,
    runner: str,
    compile_backend: str,
    dynamic: str,
) -> ModelWorker:
    """A worker of `model` over `cache`, which gets its pool here."""
    if isinstance(model, str):
        from nanoserve.model.load import load_model

        model = load_model(model, device=device or default_device(), dtype=dtype).decoder
    _check_as_asked(model, device, dtype)
    model.prepare(cache.max_model_len)
    pool = attach_pool(cache, model)
    if runner == "eager":
        chosen: DecodeRunner = EagerDecode(model, pool)
    else:
        chosen = CompiledDecode(model, pool, cache.decode_buckets, backend=compile_backend, dynamic=dynamic)
    return ModelWorker(model, cache, chosen)


def _check_as_asked(decoder: Decoder, device: str | None, dtype: str | None) -> None:
    """ValueError where a decoder is elsewhere or otherwise than asked: it is not moved behind its owner's back."""
    if device is not None and decoder.device.type != torch.device(device).type:
        raise ValueError(f"device {device} was asked for, the decoder is on {decoder.device}: move it first")
    if dtype is not None and str(decoder.dtype) != f"torch.{dtype}":
        raise ValueError(f"dtype {dtype} was asked for, the decoder is {decoder.dtype}: convert it first")


def default_device() -> str:
    """CUDA where there is one, else the CPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"
