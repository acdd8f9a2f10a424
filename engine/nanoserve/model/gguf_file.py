"""Read a GGUF file into a decoder: metadata to `ModelConfig`, names to parameters, weights dequantized.

A dequantized model costs what its `dtype` costs: this reads the weights people have, it is no quantized
inference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from gguf import quants
from torch import Tensor

from nanoserve.model.config import ModelConfig
from nanoserve.model.decoder import Decoder
from nanoserve.model.errors import CheckpointError, UnsupportedModel
from nanoserve.model.gguf_header import GGUFHeader, GGUFTensor, read_header
from nanoserve.model.weights import build_decoder

ARCHITECTURES: Final = ("llama", "qwen2", "qwen3")
ROPE_FACTORS: Final = "rope_freqs.weight"
TOP_NAMES: Final[Mapping[str, str]] = {
    "token_embd.weight": "embed_tokens.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_NAMES: Final[Mapping[str, str]] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Keys that change the forward pass where they are there and not zero.
UNIMPLEMENTED: Final[Mapping[str, str]] = {
    "expert_count": "mixture of experts",
    "embedding_scale": "a scale on the embeddings",
    "residual_scale": "a scale on the residuals",
    "logit_scale": "a scale on the logits",
    "attention.scale": "another attention scale",
    "attention.clamp_kqv": "a clamp on queries, keys and values",
}


def load_gguf(path: Path, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Decoder:
    """The decoder of a GGUF file, dequantized to `dtype` one tensor at a time.

    F32, F16, BF16 and every quantized type the `gguf` package can dequantize are read. Raises
    UnsupportedModel for another type, architecture or switch, CheckpointError for a damaged file.
    """
    header = read_header(path)
    config = gguf_config(header)
    return build_decoder(config, _tensors(header, config), source=str(path), device=device, dtype=dtype)


def gguf_config(header: GGUFHeader) -> ModelConfig:
    """The `ModelConfig` of a GGUF file. Raises UnsupportedModel or CheckpointError."""
    family = header.metadata.get("general.architecture")
    if family not in ARCHITECTURES:
        raise UnsupportedModel(
            f"{header.path}: architecture {family!r} is not implemented, only {', '.join(ARCHITECTURES)}"
        )
    prefix = f"{family}."
    values = {key.removeprefix(prefix): v for key, v in header.metadata.items() if key.startswith(prefix)}
    tensors = {tensor.name: tensor for tensor in header.tensors}
    _refuse_unimplemented(header, values)
    num_heads, hidden_size = (
        _size(header, values, "attention.head_count"),
        _size(header, values, "embedding_length"),
    )
    if "token_embd.weight" not in tensors:
        raise CheckpointError(f"{header.path}: missing tensors (1): token_embd.weight")
    try:
        return ModelConfig(
            family=family,
            vocab_size=tensors["token_embd.weight"].shape[0],
            hidden_size=hidden_size,
            intermediate_size=_size(header, values, "feed_forward_length"),
            num_layers=_size(header, values, "block_count"),
            num_heads=num_heads,
            num_kv_heads=_size(header, values, "attention.head_count_kv", num_heads),
            head_dim=_head_dim(header, values, hidden_size, num_heads),
            max_position_embeddings=_size(header, values, "context_length"),
            rms_norm_eps=float(values.get("attention.layer_norm_rms_epsilon", 1e-6)),
            rope_theta=float(values.get("rope.freq_base", 10_000.0)),
            rope_divisors=_rope_divisors(header, tensors.get(ROPE_FACTORS)),
            qk_norm="blk.0.attn_q_norm.weight" in tensors,
            qkv_bias="blk.0.attn_q.bias" in tensors,
            output_bias="blk.0.attn_output.bias" in tensors,
            tie_word_embeddings="output.weight" not in tensors,
            sliding_window=values.get("attention.sliding_window") or None,
            eos_token_ids=header.eos_token_ids,
        )
    except (UnsupportedModel, CheckpointError):
        raise
    except ValueError as error:
        raise CheckpointError(f"{header.path}: {error}") from error


def dequantized(data: np.ndarray[Any, Any], tensor: GGUFTensor, source: Path) -> Tensor:
    """`tensor` in float32, from the bytes of the whole file. Raises UnsupportedModel, CheckpointError."""
    try:
        rows = quants.quant_shape_to_byte_shape(tensor.shape, tensor.type)
        raw = data[tensor.start : tensor.start + tensor.size].reshape(rows)
        # Writable, as torch wants its memory: float32 would otherwise be a view of the read-only file.
        values = np.require(quants.dequantize(raw, tensor.type), np.float32, ("C", "W"))
    except NotImplementedError:
        raise UnsupportedModel(
            f"{source}: {tensor.name} is {tensor.type.name}, which the gguf package cannot dequantize: "
            "use a file of F32, F16, BF16, Q8_0, Q4_0, Q4_1 or K-quants"
        ) from None
    except ValueError as error:
        raise CheckpointError(f"{source}: {tensor.name} {list(tensor.shape)}: {error}") from error
    return torch.from_numpy(values.reshape(tensor.shape))


def unpermuted(weight: Tensor, heads: int) -> Tensor:
    """Rows of a query or key projection back in rotate-half order.

    llama.cpp rotates neighbours `(2i, 2i + 1)` in its llama architecture, so its converter interleaves the
    two halves of each head (`LlamaModel.permute` in convert_hf_to_gguf.py). `weight` is a matrix or a bias.
    """
    return weight.view(heads, -1, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


def _tensors(header: GGUFHeader, config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """Every tensor under its parameter's name; an unknown one keeps its own, and is refused by it."""
    data = np.memmap(header.path, mode="r")
    interleaved = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads} if config.family == "llama" else {}
    for tensor in header.tensors:
        if tensor.name == ROPE_FACTORS:
            continue
        name = parameter_name(tensor.name)
        weight = dequantized(data, tensor, header.path)
        module = name.split(".")[-2] if "." in name else ""
        if module in interleaved and weight.shape[0] == interleaved[module] * config.head_dim:
            weight = unpermuted(weight, interleaved[module])
        yield name, weight


def parameter_name(name: str) -> str:
    """The decoder's name of a GGUF tensor; an unknown name comes back as it is."""
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if layer is None or layer[2] not in LAYER_NAMES:
        return TOP_NAMES.get(name, name)
    return f"layers.{layer[1]}.{LAYER_NAMES[layer[2]]}.{layer[3]}"


def _refuse_unimplemented(header: GGUFHeader, values: Mapping[str, Any]) -> None:
    """Settings that would change the forward pass and that the decoder does not have."""
    if header.metadata.get("split.count", 1) > 1:
        raise UnsupportedModel(f"{header.path} is one part of a split GGUF: join it with llama-gguf-split --merge")
    for key, what in UNIMPLEMENTED.items():
        if values.get(key):
            raise UnsupportedModel(f"{header.path}: {what} ({key}) is not implemented")
    scaling = values.get("rope.scaling.type", "none")
    if scaling != "none":
        raise UnsupportedModel(f"{header.path}: RoPE scaling type {scaling!r} is not implemented")
    if float(values.get("rope.scale_linear", 1.0)) != 1.0:
        raise UnsupportedModel(f"{header.path}: linear RoPE scaling (rope.scale_linear) is not implemented")


def _rope_divisors(header: GGUFHeader, tensor: GGUFTensor | None) -> tuple[float, ...]:
    """llama3 scaling as the converter writes it: a tensor of one divisor a frequency."""
    if tensor is None:
        return ()
    return tuple(dequantized(np.memmap(header.path, mode="r"), tensor, header.path).tolist())


def _head_dim(header: GGUFHeader, values: Mapping[str, Any], hidden_size: int, num_heads: int) -> int:
    head_dim = _size(header, values, "attention.key_length", hidden_size // num_heads)
    if values.get("attention.value_length", head_dim) != head_dim:
        raise UnsupportedModel(f"{header.path}: values of another length than keys are not implemented")
    if values.get("rope.dimension_count", head_dim) != head_dim:
        raise UnsupportedModel(f"{header.path}: partial rotary embedding (rope.dimension_count) is not implemented")
    return head_dim


def _size(header: GGUFHeader, values: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = values.get(key, default)
    if isinstance(value, list):
        raise UnsupportedModel(f"{header.path}: {key} that differs by layer is not implemented")
    if not isinstance(value, int) or value < 1:
        said = "is absent" if value is None else f"is {value!r}"
        raise CheckpointError(f"{header.path}: {key} {said}, a positive integer is needed")
    return value
