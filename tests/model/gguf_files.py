"""Writes GGUF files as llama.cpp's converter does, with the `gguf` package's writer and tables of names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from gguf.constants import GGMLQuantizationType as Quant

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
}


def write_model(
    path: Path,
    model: transformers.PreTrainedModel,
    quant: Quant = Quant.F32,
    *,
    permute: bool = True,
    extra: Mapping[str, np.ndarray] | None = None,
    **metadata: Any,
) -> Path:
    """`model` as a GGUF file: matrices in `quant`, the rest in float32, as is the custom."""
    config = model.config
    architecture = ARCHITECTURES[config.model_type]
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    tensors = dict(extra or {})
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        module = name.split(".")[-2]
        if permute and architecture is gguf.MODEL_ARCH.LLAMA and module in heads:
            tensor = permuted(tensor, heads[module])  # noqa: PLW2901
        written = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert written is not None, name
        tensors[written] = tensor.numpy()
    return write_file(path, gguf.MODEL_ARCH_NAMES[architecture], metadata_of(config) | metadata, tensors, quant)


def write_file(
    path: Path,
    architecture: str,
    metadata: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    quant: Quant = Quant.F32,
) -> Path:
    """A GGUF file; a metadata key that starts with a dot belongs to the architecture, None leaves it out."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        full = f"{architecture}{key}" if key.startswith(".") else key
        if isinstance(value, bool):
            writer.add_bool(full, value)
        elif isinstance(value, int):
            writer.add_uint32(full, value)
        elif isinstance(value, float):
            writer.add_float32(full, value)
        elif isinstance(value, str):
            writer.add_string(full, value)
        elif value is not None:
            writer.add_array(full, value)
    for name, tensor in tensors.items():
        kind = quant if tensor.ndim == 2 else Quant.F32
        writer.add_tensor(name, gguf.quantize(np.ascontiguousarray(tensor), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def metadata_of(config: transformers.PretrainedConfig) -> dict[str, Any]:
    return {
        ".block_count": config.num_hidden_layers,
        ".context_length": config.max_position_embeddings,
        ".embedding_length": config.hidden_size,
        ".feed_forward_length": config.intermediate_size,
        ".attention.head_count": config.num_attention_heads,
        ".attention.head_count_kv": config.num_key_value_heads,
        ".attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        ".attention.key_length": head_dim(config),
        ".attention.value_length": head_dim(config),
        ".rope.dimension_count": head_dim(config),
        ".rope.freq_base": float(config.rope_parameters["rope_theta"]),
        "tokenizer.ggml.eos_token_id": 2,
    }


def head_dim(config: transformers.PretrainedConfig) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def permuted(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Row `2i` of a head is row `i` of its first half, row `2i + 1` row `i` of its second."""
    size = weight.shape[0] // heads
    order = [head * size + half * (size // 2) + i for head in range(heads) for i in range(size // 2) for half in (0, 1)]
    return weight[order]
