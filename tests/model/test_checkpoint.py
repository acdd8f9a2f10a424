"""Hugging Face directories: every parameter exactly once, and one line that names what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from nanoserve.model.checkpoint import load_directory
from nanoserve.model.errors import CheckpointError, UnsupportedModel

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 256,
}


def saved(directory: Path, *, tied: bool = False, shard_size: str = "1GB", dtype: str = "float32") -> Path:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, tie_word_embeddings=tied)
    model = transformers.LlamaForCausalLM(config).to(getattr(torch, dtype))
    model.save_pretrained(directory, max_shard_size=shard_size)
    return directory


def rewrite(directory: Path, *, drop: str | None = None, **add: Tensor) -> None:
    """Change the single weight file: without one tensor, with others."""
    tensors = load_file(directory / "model.safetensors")
    if drop is not None:
        del tensors[drop]
    save_file({**tensors, **add}, directory / "model.safetensors")


def test_single_file(tmp_path: Path) -> None:
    decoder = load_directory(saved(tmp_path))
    tensors = load_file(tmp_path / "model.safetensors")
    parameters = dict(decoder.named_parameters())
    assert {name.removeprefix("model.") for name in tensors} == parameters.keys()
    for name, tensor in tensors.items():
        assert torch.equal(parameters[name.removeprefix("model.")], tensor)


def test_the_decoder_is_ready_to_serve(tmp_path: Path) -> None:
    decoder = load_directory(saved(tmp_path))
    assert not decoder.training
    assert not any(parameter.requires_grad for parameter in decoder.parameters())
    assert not any(tensor.is_meta for tensor in (*decoder.parameters(), *decoder.buffers()))
    decoder.to("cpu", torch.bfloat16)


def test_shards_give_the_same_weights_as_one_file(tmp_path: Path) -> None:
    one = load_directory(saved(tmp_path / "one"))
    many = load_directory(saved(tmp_path / "many", shard_size="50KB"))
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    for (name, parameter), (other_name, other) in zip(one.named_parameters(), many.named_parameters(), strict=True):
        assert name == other_name
        assert torch.equal(parameter, other)


def test_tied_weights_share_their_storage(tmp_path: Path) -> None:
    decoder = load_directory(saved(tmp_path, tied=True))
    assert decoder.lm_head.weight is decoder.embed_tokens.weight


def test_a_tied_model_that_ships_an_output_projection_keeps_its_embedding(tmp_path: Path) -> None:
    saved(tmp_path, tied=True)
    rewrite(tmp_path, **{"lm_head.weight": torch.zeros(100, 64)})
    decoder = load_directory(tmp_path)
    assert decoder.lm_head.weight is decoder.embed_tokens.weight
    assert decoder.lm_head.weight.abs().sum() > 0


def test_dtype_is_the_configs_unless_chosen(tmp_path: Path) -> None:
    saved(tmp_path, dtype="bfloat16")
    assert load_directory(tmp_path).dtype == torch.bfloat16
    assert load_directory(tmp_path, dtype=torch.float32).dtype == torch.float32
    assert {p.dtype for p in load_directory(tmp_path, dtype=torch.float16).parameters()} == {torch.float16}


def test_what_other_loaders_need_is_passed_over(tmp_path: Path) -> None:
    saved(tmp_path)
    rewrite(tmp_path, **{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})
    save_file({"tok_embeddings.weight": torch.zeros(1)}, tmp_path / "consolidated.safetensors")
    load_directory(tmp_path)


class TestRefusals:
    def refusal(self, directory: Path, kind: type[ValueError] = CheckpointError) -> str:
        with pytest.raises(kind) as refused:
            load_directory(directory)
        message = str(refused.value)
        assert "\n" not in message
        assert str(directory) in message
        return message

    def test_untied_without_an_output_projection(self, tmp_path: Path) -> None:
        saved(tmp_path)
        rewrite(tmp_path, drop="lm_head.weight")
        assert self.refusal(tmp_path).endswith("missing tensors (1): lm_head.weight")

    def test_missing_tensors_are_counted_and_the_first_named(self, tmp_path: Path) -> None:
        saved(tmp_path)
        save_file({"lm_head.weight": torch.zeros(100, 64)}, tmp_path / "model.safetensors")
        assert "missing tensors (20): embed_tokens.weight, " in self.refusal(tmp_path)
        assert self.refusal(tmp_path).endswith(" and 17 more")

    def test_a_tensor_the_model_has_no_place_for(self, tmp_path: Path) -> None:
        saved(tmp_path)
        rewrite(tmp_path, **{"model.layers.2.mlp.up_proj.weight": torch.zeros(96, 64)})
        message = self.refusal(tmp_path)
        assert message.endswith("unexpected tensors (1): layers.2.mlp.up_proj.weight")

    def test_a_tensor_of_the_wrong_shape(self, tmp_path: Path) -> None:
        saved(tmp_path)
        rewrite(tmp_path, **{"model.norm.weight": torch.zeros(65)})
        assert self.refusal(tmp_path).endswith("wrongly shaped tensors (1): norm.weight [65] for [64]")

    def test_a_tensor_in_two_shards(self, tmp_path: Path) -> None:
        saved(tmp_path, shard_size="50KB")
        extra = {"model.norm.weight": torch.zeros(64)}
        save_file(extra, tmp_path / "model-extra.safetensors")
        index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
        index["weight_map"]["model.extra"] = "model-extra.safetensors"
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        assert self.refusal(tmp_path).endswith("norm.weight comes twice")

    def test_integer_weights(self, tmp_path: Path) -> None:
        saved(tmp_path)
        rewrite(tmp_path, **{"model.norm.weight": torch.zeros(64, dtype=torch.int8)})
        message = self.refusal(tmp_path, UnsupportedModel)
        assert message.endswith("norm.weight is torch.int8: quantized weights are not implemented")

    def test_a_file_cut_short(self, tmp_path: Path) -> None:
        saved(tmp_path)
        file = tmp_path / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-100])
        assert "cannot be read as safetensors" in self.refusal(tmp_path)

    def test_a_file_that_is_a_git_lfs_pointer(self, tmp_path: Path) -> None:
        saved(tmp_path)
        (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
        assert "cannot be read as safetensors" in self.refusal(tmp_path)

    def test_a_missing_shard(self, tmp_path: Path) -> None:
        saved(tmp_path, shard_size="50KB")
        first = min(tmp_path.glob("model-00001-of-*.safetensors"))
        first.unlink()
        assert f"{first} is missing" in self.refusal(tmp_path)

    def test_an_index_that_points_outside(self, tmp_path: Path) -> None:
        saved(tmp_path, shard_size="50KB")
        (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../a.safetensors"}}')
        assert "names '../a.safetensors', which is outside the directory" in self.refusal(tmp_path)

    def test_an_empty_index(self, tmp_path: Path) -> None:
        saved(tmp_path, shard_size="50KB")
        (tmp_path / "model.safetensors.index.json").write_text("{}")
        assert "names no weight file" in self.refusal(tmp_path)

    def test_a_directory_of_another_format(self, tmp_path: Path) -> None:
        saved(tmp_path)
        (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
        assert "neither model.safetensors nor model.safetensors.index.json" in self.refusal(tmp_path)

    def test_a_directory_without_a_config(self, tmp_path: Path) -> None:
        (saved(tmp_path) / "config.json").unlink()
        assert "config.json is missing" in self.refusal(tmp_path)
