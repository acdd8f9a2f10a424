"""`config.json` to `ModelConfig`: both spellings of every moved key, and a refusal by name of the rest."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from nanoserve.model.config import Llama3RopeScaling, ModelConfig, check_supports
from nanoserve.model.errors import CheckpointError, UnsupportedModel
from nanoserve.model.hf_config import parse_hf_config, read_hf_config

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def raw(architecture: str = "LlamaForCausalLM", **changes: Any) -> dict[str, Any]:
    sizes = {
        "vocab_size": 100,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
    }
    return {"architectures": [architecture], **sizes, **changes}


def without(key: str, **changes: Any) -> dict[str, Any]:
    return {name: value for name, value in raw(**changes).items() if name != key}


@pytest.mark.parametrize(
    ("architecture", "family", "qk_norm", "qkv_bias"),
    [
        ("LlamaForCausalLM", "llama", False, False),
        ("MistralForCausalLM", "mistral", False, False),
        ("Qwen2ForCausalLM", "qwen2", False, True),
        ("Qwen3ForCausalLM", "qwen3", True, False),
    ],
)
def test_family(architecture: str, family: str, qk_norm: bool, qkv_bias: bool) -> None:
    config = parse_hf_config(raw(architecture))
    assert (config.family, config.qk_norm, config.qkv_bias) == (family, qk_norm, qkv_bias)
    assert config.output_bias is False


def test_attention_bias_is_on_all_four_projections() -> None:
    config = parse_hf_config(raw(attention_bias=True))
    assert (config.qkv_bias, config.output_bias) == (True, True)


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", **LLAMA3}},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_theta": 500_000, "rope_scaling": {"type": "llama3", **LLAMA3}},
        {"rope_theta": 5e5, "rope_parameters": {"rope_type": "llama3", **LLAMA3}},
    ],
)
def test_every_spelling_of_llama3_rope(spelling: dict[str, Any]) -> None:
    config = parse_hf_config(raw(**spelling))
    assert config.rope_theta == 500_000.0
    assert config.rope_scaling == Llama3RopeScaling(8.0, 1.0, 4.0, 8192)


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}},
        {"rope_theta": 1_000_000, "rope_scaling": None},
        {"rope_theta": 1e6},
    ],
)
def test_every_spelling_of_plain_rope(spelling: dict[str, Any]) -> None:
    config = parse_hf_config(raw(**spelling))
    assert (config.rope_theta, config.rope_scaling) == (1e6, None)


def test_rope_theta_of_a_config_without_one_is_ten_thousand() -> None:
    assert parse_hf_config(raw()).rope_theta == 10_000.0


@pytest.mark.parametrize(
    ("config", "head_dim"),
    [
        (raw(), 16),
        (raw(head_dim=24), 24),
        (raw(head_dim=None), 16),
        (raw("Qwen3ForCausalLM"), 128),
        (raw("Qwen3ForCausalLM", head_dim=32), 32),
    ],
)
def test_head_dim_is_the_configs_own_where_it_has_one(config: dict[str, Any], head_dim: int) -> None:
    assert parse_hf_config(config).head_dim == head_dim


def test_the_first_llamas_have_a_kv_head_a_query_head() -> None:
    assert parse_hf_config(without("num_key_value_heads")).num_kv_heads == 4


@pytest.mark.parametrize(
    ("config", "window"),
    [
        (raw(sliding_window=64), None),
        (raw("MistralForCausalLM", sliding_window=64), 64),
        (raw("MistralForCausalLM", sliding_window=None), None),
        (raw("MistralForCausalLM"), 4096),
        (raw("Qwen2ForCausalLM", sliding_window=64, use_sliding_window=False), None),
        (raw("Qwen2ForCausalLM", sliding_window=64), None),
        (raw("Qwen2ForCausalLM", sliding_window=64, use_sliding_window=True, max_window_layers=2), 64),
        (raw("Qwen2ForCausalLM", sliding_window=64, use_sliding_window=True, max_window_layers=4), None),
        (raw("Qwen2ForCausalLM", sliding_window=64, use_sliding_window=True), None),
        (
            raw(
                "Qwen3ForCausalLM",
                sliding_window=64,
                use_sliding_window=True,
                max_window_layers=4,
                layer_types=["full_attention"] * 3 + ["sliding_attention"],
            ),
            64,
        ),
        (
            raw(
                "Qwen3ForCausalLM",
                sliding_window=64,
                use_sliding_window=True,
                max_window_layers=0,
                layer_types=["full_attention"] * 4,
            ),
            None,
        ),
    ],
)
def test_a_window_counts_where_some_layer_slides(config: dict[str, Any], window: int | None) -> None:
    assert parse_hf_config(config).sliding_window == window


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"architectures": ["SmolLM3ForCausalLM"]},
            "config.json: architecture SmolLM3ForCausalLM is not implemented, only LlamaForCausalLM, "
            "MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM",
        ),
        ({"architectures": None, "model_type": "gpt2"}, "architecture none (model_type 'gpt2')"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "RoPE type 'yarn' is not implemented"),
        ({"rope_parameters": {"rope_type": "linear"}}, "RoPE type 'linear' is not implemented"),
        ({"rope_parameters": {"full_attention": {}}}, "RoPE settings that differ by layer type"),
        ({"partial_rotary_factor": 0.5}, "partial rotary embedding"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial rotary embedding"),
        ({"mlp_bias": True}, "mlp_bias is not implemented"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not implemented, only 'silu'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "weights quantized by 'gptq'"),
        ({"no_rope_layers": [1, 1, 1, 0]}, "layers without RoPE"),
        ({"layer_types": ["linear_attention"]}, "layer type 'linear_attention' is not implemented"),
        ({"layer_types": ["sliding_attention"]}, "sliding_attention layers are not implemented for Llama"),
        ({"architectures": ["MistralForCausalLM"], "attention_bias": True}, "attention_bias is not"),
    ],
)
def test_refuses_by_name_what_is_not_implemented(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel) as refusal:
        parse_hf_config(raw(**changes))
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (without("hidden_size"), "config.json: hidden_size is absent, a positive integer is needed"),
        (without("num_key_value_heads", architectures=["Qwen2ForCausalLM"]), "num_key_value_heads is absent"),
        (raw(vocab_size="many"), "vocab_size is 'many'"),
        (raw(num_hidden_layers=0), "num_hidden_layers is 0"),
        (raw(num_key_value_heads=3), "4 attention heads do not divide into 3 KV heads"),
        (raw(head_dim=15), "head_dim must be even, got 15"),
        (raw(hidden_size=63), "hidden_size 63 is no multiple of 4 heads and head_dim is absent"),
        (
            raw(rope_scaling={"type": "llama3", "factor": 8}),
            "lacks high_freq_factor, low_freq_factor, original",
        ),
    ],
)
def test_a_config_that_makes_no_sense_is_a_checkpoint_error(config: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError) as refusal:
        parse_hf_config(config)
    assert message in str(refusal.value)


class TestCheckSupports:
    config = ModelConfig("mistral", 100, 64, 96, 2, 4, 2, 16, 512, sliding_window=128)

    def test_a_window_as_long_as_the_context_changes_nothing(self) -> None:
        check_supports(self.config, 128)

    def test_a_shorter_window_is_refused(self) -> None:
        with pytest.raises(UnsupportedModel, match=r"sliding window of 128 tokens.*lower max_model_len from 129"):
            check_supports(self.config, 129)

    def test_positions_the_model_was_not_made_for_are_refused(self) -> None:
        config = dataclasses.replace(self.config, sliding_window=None)
        check_supports(config, 512)
        with pytest.raises(UnsupportedModel, match=r"max_model_len 513 is past .* max_position_embeddings 512"):
            check_supports(config, 513)


class TestDirectory:
    def write(self, directory: Path, **files: Any) -> Path:
        for name, content in files.items():
            (directory / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
        return directory

    def test_eos_is_the_union_of_all_three_places(self, tmp_path: Path) -> None:
        self.write(
            tmp_path,
            config=raw(eos_token_id=7),
            generation_config={"eos_token_id": [9, 7]},
            tokenizer_config={"eos_token": "</s>", "added_tokens_decoder": {"3": {"content": "</s>"}}},
        )
        assert read_hf_config(tmp_path).model.eos_token_ids == (3, 7, 9)

    def test_eos_of_a_tokenizer_that_lists_its_tokens_elsewhere(self, tmp_path: Path) -> None:
        self.write(
            tmp_path,
            config=raw(eos_token_id=[4, 5]),
            tokenizer_config={"eos_token": {"content": "<end>", "lstrip": False}},
            tokenizer={"added_tokens": [{"id": 6, "content": "<end>"}, {"id": 1, "content": "<s>"}]},
        )
        assert read_hf_config(tmp_path).model.eos_token_ids == (4, 5, 6)

    @pytest.mark.parametrize(
        ("changes", "dtype"),
        [
            ({"dtype": "bfloat16"}, "bfloat16"),
            ({"torch_dtype": "float16"}, "float16"),
            ({"torch_dtype": "torch.bfloat16"}, "bfloat16"),
            ({}, "float32"),
        ],
    )
    def test_dtype_by_either_key(self, changes: dict[str, Any], dtype: str, tmp_path: Path) -> None:
        assert read_hf_config(self.write(tmp_path, config=raw(**changes))).dtype == dtype

    def test_a_dtype_the_engine_does_not_run(self, tmp_path: Path) -> None:
        with pytest.raises(UnsupportedModel, match="dtype 'float8_e4m3fn' is not implemented"):
            read_hf_config(self.write(tmp_path, config=raw(dtype="float8_e4m3fn")))

    def test_no_config(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match=r"config\.json is missing"):
            read_hf_config(tmp_path)

    @pytest.mark.parametrize("text", ["{", "[]", "version https://git-lfs.github.com/spec/v1"])
    def test_a_config_that_is_no_json_object(self, text: str, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text(text, encoding="utf-8")
        with pytest.raises(CheckpointError, match=r"config\.json .*fetch it again"):
            read_hf_config(tmp_path)
