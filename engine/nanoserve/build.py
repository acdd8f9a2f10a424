"""From a model, a device and a runner's name to a worker: where an engine's parts are put together."""

from __future__ import annotations

import torch

from nanoserve.cache.kv import BatchedPagedKVCache
from nanoserve.decode import DecodeRunner, RunnerOptions
from nanoserve.decode.compiled import CompiledDecode
from nanoserve.decode.cuda_graphs import CudaGraphs
from nanoserve.decode.eager import EagerDecode
from nanoserve.decode.graphs import GraphBackend, GraphDecode
from nanoserve.decode.recorded import RecordedGraphs
from nanoserve.inputs import StepInputs
from nanoserve.model.decoder import Decoder
from nanoserve.model_worker import ModelWorker, attach_pool


def build_worker(
    model: Decoder | str,
    cache: BatchedPagedKVCache,
    options: RunnerOptions,
    *,
    device: str | None,
    dtype: str | None,
    audit: bool,
) -> ModelWorker:
    """A worker of `model` over `cache`, which gets its pool here. ValueError for options that cannot go together."""
    if device is not None:
        check_device(device)
    if isinstance(model, str):
        from nanoserve.model.load import load_model

        model = load_model(model, device=device or default_device(), dtype=dtype).decoder
    if not isinstance(model, Decoder):
        raise ValueError(f"model must be a decoder, a name or a path, got {model!r}")
    _check_as_asked(model, device, dtype)
    model.prepare(cache.max_model_len)
    attach_pool(cache, model)
    inputs = StepInputs(cache.max_batch_size, cache.sink_slot, model.device)
    return ModelWorker(model, cache, inputs, _runner(model, cache, inputs, options, audit=audit), audit=audit)


def _runner(
    model: Decoder, cache: BatchedPagedKVCache, inputs: StepInputs, options: RunnerOptions, *, audit: bool
) -> DecodeRunner:
    eager = EagerDecode(model, cache.pool)
    if options.runner == "eager":
        return eager
    if options.runner == "compiled" or options.graph_body == "compiled":
        compiled = CompiledDecode(
            model, cache.pool, cache.decode_buckets, backend=options.compile_backend, dynamic=options.dynamic
        )
    if options.runner == "compiled":
        return compiled
    backend = _graph_backend(options, model.device)
    buffers = {
        "the input buffer": lambda: inputs.buffer,
        "the slot table": lambda: cache.slot_table.view,
        "the KV pool": lambda: cache.pool,
        "the RoPE table": lambda: model.rope,
    }
    return GraphDecode(
        compiled if options.graph_body == "compiled" else eager,
        cache.decode_buckets,
        backend,
        buffers,
        dict(model.named_parameters()),
        torch.zeros((cache.max_batch_size, model.config.vocab_size), dtype=model.dtype, device=model.device),
        audit=audit,
    )


def _graph_backend(options: RunnerOptions, device: torch.device) -> GraphBackend:
    name = options.graph_backend
    if name == "auto":
        name = "cuda" if device.type == "cuda" else "recorded"
    if name == "cuda" and device.type != "cuda":
        raise ValueError(f"graph backend cuda needs a CUDA device, the model is on {device}: use recorded")
    if name == "recorded" and options.graph_body == "compiled":
        raise ValueError("graph backend recorded cannot see inside compiled code: use graph body eager")
    return CudaGraphs(device) if name == "cuda" else RecordedGraphs(device)


def _check_as_asked(decoder: Decoder, device: str | None, dtype: str | None) -> None:
    """ValueError where a decoder is elsewhere or otherwise than asked: it is not moved behind its owner's back."""
    if device is not None and decoder.device.type != torch.device(device).type:
        raise ValueError(f"device {device} was asked for, the decoder is on {decoder.device}: move it first")
    if dtype is not None and str(decoder.dtype) != f"torch.{dtype}":
        raise ValueError(f"dtype {dtype} was asked for, the decoder is {decoder.dtype}: convert it first")


def default_device() -> str:
    """CUDA where there is one, else the CPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def check_device(name: str) -> None:
    """ValueError for a device that is unknown, not supported, or not here."""
    try:
        kind = torch.device(name).type
    except RuntimeError:
        raise ValueError(f"device {name!r} is unknown: use cpu, cuda or cuda:N") from None
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"device {name!r} is not supported: use cpu, cuda or cuda:N")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda was asked for and this machine has none: use cpu")
