"""A Hugging Face `config.json` as a `ModelConfig`, or a refusal that names what is not implemented.

The file itself is read, never a config class: keys moved between transformers 4 and 5 (`rope_theta` and
`rope_scaling` became `rope_parameters`, `torch_dtype` became `dtype`), and a reader that asks a class for the
old key gets a default without a word.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nanoserve.model.config import Llama3RopeScaling, ModelConfig
from nanoserve.model.errors import CheckpointError, UnsupportedModel

ARCHITECTURES: Final[Mapping[str, str]] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
# What transformers takes where the file says nothing: the two families whose defaults are not "none".
DEFAULT_WINDOW: Final = 4096
DEFAULT_MAX_WINDOW_LAYERS: Final = 28
QWEN3_HEAD_DIM: Final = 128

Raw = Mapping[str, Any]


@dataclass(frozen=True)
class HFConfig:
    """What a directory says of its model: the decoder's config, and the name of the weights' dtype."""

    model: ModelConfig
    dtype: str


def read_hf_config(directory: Path) -> HFConfig:
    """Read `config.json`, and the EOS ids of `generation_config.json` and the tokenizer's files beside it.

    Raises CheckpointError for a missing or damaged file, UnsupportedModel for what is not implemented.
    """
    raw = read_json(directory / "config.json")
    generation = read_json(directory / "generation_config.json", required=False)
    eos = {*_token_ids(generation.get("eos_token_id")), *tokenizer_eos_ids(directory)}
    source = str(directory / "config.json")
    return HFConfig(parse_hf_config(raw, source=source, eos_token_ids=eos), _dtype(raw, source))


def parse_hf_config(raw: Raw, *, source: str = "config.json", eos_token_ids: Iterable[int] = ()) -> ModelConfig:
    """`raw` is the parsed `config.json`; `eos_token_ids` join its own. Raises as `read_hf_config` does."""
    family = _family(raw, source)
    _refuse_unimplemented(raw, source)
    hidden_size, num_heads = _size(raw, "hidden_size", source), _size(raw, "num_attention_heads", source)
    qkv_bias, output_bias = _biases(raw, family, source)
    rope_theta, rope_scaling = _rope(raw, source)
    try:
        return ModelConfig(
            family=family,
            vocab_size=_size(raw, "vocab_size", source),
            hidden_size=hidden_size,
            intermediate_size=_size(raw, "intermediate_size", source),
            num_layers=_size(raw, "num_hidden_layers", source),
            num_heads=num_heads,
            num_kv_heads=_num_kv_heads(raw, family, num_heads, source),
            head_dim=_head_dim(raw, family, hidden_size, num_heads, source),
            max_position_embeddings=_size(raw, "max_position_embeddings", source),
            rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
            rope_theta=rope_theta,
            rope_scaling=rope_scaling,
            qk_norm=family == "qwen3",
            qkv_bias=qkv_bias,
            output_bias=output_bias,
            tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
            sliding_window=_active_window(raw, family, source),
            eos_token_ids=tuple(sorted({*eos_token_ids, *_token_ids(raw.get("eos_token_id"))})),
        )
    except (UnsupportedModel, CheckpointError):
        raise
    except ValueError as error:
        raise CheckpointError(f"{source}: {error}") from error


def tokenizer_eos_ids(directory: Path) -> tuple[int, ...]:
    """The id of `eos_token` as the tokenizer's files have it; empty where they name none."""
    config = read_json(directory / "tokenizer_config.json", required=False)
    token = token_text(config.get("eos_token"))
    if token is None:
        return ()
    added = {int(index): entry for index, entry in config.get("added_tokens_decoder", {}).items()}
    found = [index for index, entry in added.items() if entry.get("content") == token]
    if not found:
        entries = read_json(directory / "tokenizer.json", required=False).get("added_tokens", ())
        found = [entry["id"] for entry in entries if entry.get("content") == token]
    return tuple(found)


def token_text(token: Any) -> str | None:
    """A token as `tokenizer_config.json` writes it, plain or as an object with `content`."""
    return token.get("content") if isinstance(token, Mapping) else token


def read_json(path: Path, *, required: bool = True) -> dict[str, Any]:
    """One JSON object; `{}` for an absent file that is not `required`. Raises CheckpointError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if required:
            raise CheckpointError(f"{path} is missing: a checkpoint directory needs it") from None
        return {}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON ({error}): fetch it again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds a JSON {type(value).__name__}, not an object: fetch it again")
    return value


def _family(raw: Raw, source: str) -> str:
    names = raw.get("architectures") or ()
    for name in names:
        if name in ARCHITECTURES:
            return ARCHITECTURES[name]
    said = ", ".join(names) or f"none (model_type {raw.get('model_type')!r})"
    raise UnsupportedModel(f"{source}: architecture {said} is not implemented, only {', '.join(ARCHITECTURES)}")


def _refuse_unimplemented(raw: Raw, source: str) -> None:
    """Switches that would change the forward pass and that the decoder does not have."""
    if raw.get("quantization_config") is not None:
        method = raw["quantization_config"].get("quant_method", "unknown")
        raise UnsupportedModel(f"{source}: weights quantized by {method!r} are not implemented; use the plain ones")
    if raw.get("mlp_bias"):
        raise UnsupportedModel(f"{source}: mlp_bias is not implemented")
    if raw.get("hidden_act", "silu") != "silu":
        raise UnsupportedModel(f"{source}: hidden_act {raw['hidden_act']!r} is not implemented, only 'silu'")
    if raw.get("no_rope_layers") and not all(raw["no_rope_layers"]):
        raise UnsupportedModel(f"{source}: layers without RoPE (no_rope_layers) are not implemented")
    other = sorted(set(raw.get("layer_types") or ()) - {"full_attention", "sliding_attention"})
    if other:
        raise UnsupportedModel(f"{source}: layer type {other[0]!r} is not implemented")


def _biases(raw: Raw, family: str, source: str) -> tuple[bool, bool]:
    """Whether q, k and v carry a bias, and whether the output projection does."""
    if family == "qwen2":
        return True, False
    attention_bias = bool(raw.get("attention_bias", False))
    if family == "mistral" and attention_bias:
        raise UnsupportedModel(f"{source}: attention_bias is not implemented for MistralForCausalLM")
    return attention_bias, attention_bias


def _rope(raw: Raw, source: str) -> tuple[float, Llama3RopeScaling | None]:
    """Theta and scaling from `rope_parameters`, or from `rope_theta` and `rope_scaling`."""
    settings = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if any(isinstance(value, Mapping) for value in settings.values()):
        raise UnsupportedModel(f"{source}: RoPE settings that differ by layer type are not implemented")
    if settings.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0)) not in (None, 1, 1.0):
        raise UnsupportedModel(f"{source}: partial rotary embedding (partial_rotary_factor) is not implemented")
    theta = float(settings.get("rope_theta") or raw.get("rope_theta") or 10_000.0)
    kind = settings.get("rope_type") or settings.get("type") or "default"
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise UnsupportedModel(f"{source}: RoPE type {kind!r} is not implemented, only 'default' and 'llama3'")
    missing = sorted(Llama3RopeScaling.__dataclass_fields__.keys() - settings.keys())
    if missing:
        raise CheckpointError(f"{source}: RoPE type 'llama3' lacks {', '.join(missing)}")
    return theta, Llama3RopeScaling(
        factor=float(settings["factor"]),
        low_freq_factor=float(settings["low_freq_factor"]),
        high_freq_factor=float(settings["high_freq_factor"]),
        original_max_position_embeddings=int(settings["original_max_position_embeddings"]),
    )


def _active_window(raw: Raw, family: str, source: str) -> int | None:
    """The window of the layers that slide: all of Mistral's, Qwen's from `max_window_layers` up, if any."""
    layer_types = raw.get("layer_types")
    if family == "llama":
        if layer_types and "sliding_attention" in layer_types:
            raise UnsupportedModel(f"{source}: sliding_attention layers are not implemented for LlamaForCausalLM")
        return None
    window: int | None = raw.get("sliding_window", DEFAULT_WINDOW)
    if family == "mistral":
        return window
    if not raw.get("use_sliding_window", False):
        return None
    if layer_types is not None:
        return window if "sliding_attention" in layer_types else None
    full_layers = raw.get("max_window_layers", DEFAULT_MAX_WINDOW_LAYERS)
    return window if full_layers < raw["num_hidden_layers"] else None


def _num_kv_heads(raw: Raw, family: str, num_heads: int, source: str) -> int:
    """Llama's first configs had no such key and one KV head a query head; the others always write it."""
    absent = raw.get("num_key_value_heads") is None
    if absent and (family == "llama" or "num_key_value_heads" in raw):
        return num_heads
    return _size(raw, "num_key_value_heads", source)


def _head_dim(raw: Raw, family: str, hidden_size: int, num_heads: int, source: str) -> int:
    if raw.get("head_dim") is not None:
        return _size(raw, "head_dim", source)
    if family == "qwen3" and "head_dim" not in raw:
        return QWEN3_HEAD_DIM
    if hidden_size % num_heads:
        raise CheckpointError(
            f"{source}: hidden_size {hidden_size} is no multiple of {num_heads} heads and head_dim is absent"
        )
    return hidden_size // num_heads


def _size(raw: Raw, key: str, source: str) -> int:
    value = raw.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        said = f"is {value!r}" if key in raw else "is absent"
        raise CheckpointError(f"{source}: {key} {said}, a positive integer is needed")
    return value


def _token_ids(value: Any) -> tuple[int, ...]:
    """An `eos_token_id` as the files write it: nothing, one id, or a list."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (int(value),)


def _dtype(raw: Raw, source: str) -> str:
    name = str(raw.get("dtype") or raw.get("torch_dtype") or "float32").removeprefix("torch.")
    if name not in ("float32", "bfloat16", "float16"):
        raise UnsupportedModel(f"{source}: dtype {name!r} is not implemented, only float32, bfloat16 and float16")
    return name
