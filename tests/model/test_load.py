"""What somebody may call a model, and what they are told when it is none."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gguf_files import write_model
from test_oracle import FAMILIES, randomized

from nanoserve.cache_dir import cache_dir
from nanoserve.model.errors import CheckpointError
from nanoserve.model.load import load_model
from nanoserve.model.presets import PRESETS, preset_decoder

DIGEST = "043969141cd8484ef03180bf3a1212d1ba6e3adf3afafbabd27c902927724dff"


class TestPresets:
    @pytest.mark.parametrize("name", PRESETS)
    def test_the_decoder_is_ready_to_serve(self, name: str) -> None:
        model = load_model(name)
        assert model.decoder.config == PRESETS[name]
        assert (model.name, model.source, model.sha256) == (name, f"{name}, seed 0", None)
        assert (model.tokenizer, model.tokenizer_problem) == (None, f"{name} has no tokenizer")
        assert not model.decoder.training
        assert not any(parameter.requires_grad for parameter in model.decoder.parameters())

    def test_weights_are_those_of_the_seed_on_every_machine(self) -> None:
        """The digest is a constant: a machine that draws other weights would count other things."""
        weights = b"".join(p.numpy().tobytes() for p in preset_decoder("tiny").parameters())
        assert hashlib.sha256(weights).hexdigest() == DIGEST

    def test_another_seed_is_another_model(self) -> None:
        zero, one = preset_decoder("tiny"), preset_decoder("tiny", seed=1)
        assert not torch.equal(zero.lm_head.weight, one.lm_head.weight)

    def test_a_lower_dtype_rounds_the_same_draw(self) -> None:
        full, half = preset_decoder("tiny"), preset_decoder("tiny", dtype=torch.bfloat16)
        assert torch.equal(full.embed_tokens.weight.bfloat16(), half.embed_tokens.weight)

    def test_loading_leaves_the_global_generator_alone(self) -> None:
        before = torch.get_rng_state()
        load_model("tiny", seed=3)
        assert torch.equal(torch.get_rng_state(), before)


class TestPaths:
    def test_a_directory(self, tmp_path: Path) -> None:
        randomized(FAMILIES["llama"]()).to(torch.bfloat16).save_pretrained(tmp_path)
        model = load_model(tmp_path)
        assert (model.decoder.dtype, model.source, model.sha256) == (torch.float32, str(tmp_path), None)
        assert model.tokenizer is None
        assert model.tokenizer_problem is not None
        assert "tokenizer.json is missing" in model.tokenizer_problem
        assert load_model(tmp_path, dtype=None).decoder.dtype == torch.bfloat16

    def test_a_gguf_file_by_what_it_holds(self, tmp_path: Path) -> None:
        path = write_model(tmp_path / "named-otherwise", randomized(FAMILIES["llama"]()))
        model = load_model(str(path), dtype="float16")
        assert model.decoder.dtype == torch.float16
        assert model.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
        assert model.tokenizer_problem is not None
        assert "carries no tokenizer" in model.tokenizer_problem

    def test_a_file_that_only_looks_like_one(self, tmp_path: Path) -> None:
        path = tmp_path / "model.gguf"
        path.write_text("version https://git-lfs.github.com/spec/v1\n")
        with pytest.raises(CheckpointError, match=r"model\.gguf is neither a checkpoint directory nor a GGUF"):
            load_model(path)


class TestNames:
    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            ("smolm2", "no model 'smolm2', did you mean 'smollm2'?"),
            ("tinny", "no model 'tinny', did you mean 'tiny'?"),
            ("gpt-4", "no model 'gpt-4': give one of tiny, small, smollm2, or a path"),
            ("no/such/dir", "no model 'no/such/dir': give one of tiny, small, smollm2, or a path"),
        ],
    )
    def test_an_unknown_one(self, spec: str, message: str) -> None:
        with pytest.raises(ValueError, match=r"^no model") as refused:
            load_model(spec)
        assert str(refused.value) == message

    def test_an_unknown_dtype(self) -> None:
        with pytest.raises(ValueError, match="unknown dtype 'int8': choose one of float32, bfloat16, float16"):
            load_model("tiny", dtype="int8")

    def test_smollm2_before_it_is_fetched(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NANOSERVE_CACHE", str(tmp_path))
        with pytest.raises(CheckpointError, match=r"Q4_1\.gguf is missing: run `nanoserve fetch smollm2`"):
            load_model("smollm2")


class TestCacheDir:
    def test_the_rule(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NANOSERVE_CACHE", "/a")
        monkeypatch.setenv("XDG_CACHE_HOME", "/b")
        assert cache_dir() == Path("/a")
        monkeypatch.delenv("NANOSERVE_CACHE")
        assert cache_dir() == Path("/b/nanoserve")
        monkeypatch.setenv("XDG_CACHE_HOME", "")
        assert cache_dir() == Path.home() / ".cache" / "nanoserve"


def test_the_config_and_the_cache_rule_need_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; import nanoserve.cache_dir, nanoserve.model.hf_config, "
        "nanoserve.model.gguf_header, nanoserve.model.tokenizer, nanoserve.model.gguf_tokenizer"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
