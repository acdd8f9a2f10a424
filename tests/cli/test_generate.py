"""`nanoserve generate`: text in, text out, with the template of the model and every message in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import decoders, models, pre_tokenizers
from typer.testing import CliRunner

from nanoserve.cache_dir import cached_model
from nanoserve.model.load import SMOLLM2_FILE, load_model
from nanoserve_cli.app import app

SMOLLM2 = cached_model(SMOLLM2_FILE)
CHAT = "{% for m in messages %}<|user|>{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}<|bot|>{% endif %}"
SPECIAL = ("<|end|>", "<|user|>", "<|bot|>")
HIDDEN, LAYERS, HEADS, KV_HEADS, INTERMEDIATE = 32, 2, 4, 2, 48


def generate(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["generate", *map(str, arguments)])


def answers(*arguments: object) -> list[dict[str, Any]]:
    result = generate(*arguments, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


def refused(*arguments: object) -> str:
    result = generate(*arguments)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.stderr
    return result.stderr.rstrip("\n")


def write_checkpoint(folder: Path, *, chat: bool = True, text: bool = True) -> Path:
    """A llama of random weights, as Hugging Face stores one, over an alphabet of bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *alphabet])}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIAL))
    head_dim = HIDDEN // HEADS
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(vocabulary),
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (len(vocabulary), HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (len(vocabulary), HIDDEN),
    }
    for layer in range(LAYERS):
        start = f"model.layers.{layer}."
        shapes |= {
            f"{start}input_layernorm.weight": (HIDDEN,),
            f"{start}post_attention_layernorm.weight": (HIDDEN,),
            f"{start}self_attn.q_proj.weight": (HEADS * head_dim, HIDDEN),
            f"{start}self_attn.k_proj.weight": (KV_HEADS * head_dim, HIDDEN),
            f"{start}self_attn.v_proj.weight": (KV_HEADS * head_dim, HIDDEN),
            f"{start}self_attn.o_proj.weight": (HIDDEN, HEADS * head_dim),
            f"{start}mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
            f"{start}mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
            f"{start}mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
        }
    seeded = torch.Generator().manual_seed(5)
    folder.mkdir()
    save_file(
        {
            name: torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=seeded) * 1.5 / shape[1] ** 0.5
            for name, shape in shapes.items()
        },
        folder / "model.safetensors",
    )
    (folder / "config.json").write_text(json.dumps(config))
    if text:
        backend.save(str(folder / "tokenizer.json"))
        settings = {"eos_token": "<|end|>"} | ({"chat_template": CHAT} if chat else {})
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("models") / "llama")


class TestATinyCheckpoint:
    def test_the_template_is_applied_unless_raw_is_given(self, checkpoint: Path) -> None:
        """The two prompts differ, and so does what a model of random weights makes of them."""
        tokenizer = load_model(checkpoint).tokenizer
        assert tokenizer is not None
        by_hand = tokenizer.render_chat([{"role": "user", "content": "hi"}])
        assert by_hand == "<|user|>hi<|bot|>"
        (chat,) = answers("hi", "--model", checkpoint, "--max-tokens", 12)
        (raw,) = answers("hi", "--model", checkpoint, "--max-tokens", 12, "--raw")
        (spelled,) = answers(by_hand, "--model", checkpoint, "--max-tokens", 12, "--raw")
        assert chat["tokens"] == spelled["tokens"] != raw["tokens"]
        assert (chat["prompt"], chat["finish"]) == ("hi", "length")

    def test_text_is_what_the_tokens_say_and_it_is_all_of_stdout(self, checkpoint: Path) -> None:
        (answer,) = answers("hi", "--model", checkpoint, "--max-tokens", 12)
        tokenizer = load_model(checkpoint).tokenizer
        assert tokenizer is not None
        assert len(answer["tokens"]) == 12
        assert answer["text"] == tokenizer.decode(answer["tokens"])
        result = generate("hi", "--model", checkpoint, "--max-tokens", 12)
        assert (result.exit_code, result.stdout, result.stderr) == (0, answer["text"].strip() + "\n", "")

    def test_several_prompts_answer_in_their_order_and_as_alone(self, checkpoint: Path) -> None:
        prompts = ("one", "a longer one", "x")
        together = answers(*prompts, "--model", checkpoint, "--max-tokens", 12)
        assert [answer["prompt"] for answer in together] == list(prompts)
        assert together == [answers(prompt, "--model", checkpoint, "--max-tokens", 12)[0] for prompt in prompts]

    def test_several_prompts_are_shown_above_their_answers(self, checkpoint: Path) -> None:
        shown = generate("one", "two", "--model", checkpoint, "--max-tokens", 4).stdout
        assert shown.startswith("> one\n")
        assert "\n> two\n" in shown

    def test_buckets_change_no_token(self, checkpoint: Path) -> None:
        asked = ("one", "a longer one", "x", "--model", checkpoint, "--max-tokens", 40)
        assert answers(*asked) == answers(*asked, "--bucket-decode")

    def test_a_seed_fixes_the_draws_and_another_changes_them(self, checkpoint: Path) -> None:
        asked = ("hi", "--model", checkpoint, "--max-tokens", 30, "--temperature", 2)
        first, again, other = (answers(*asked, "--seed", seed) for seed in (1, 1, 2))
        assert first == again != other

    def test_max_tokens_is_kept(self, checkpoint: Path) -> None:
        assert [len(answers("hi", "--model", checkpoint, "--max-tokens", n)[0]["tokens"]) for n in (1, 5)] == [1, 5]

    @pytest.mark.parametrize(
        ("flags", "word"),
        [(("--temperature", -1), "temperature"), (("--temperature", "nan"), "temperature"), (("--top-p", 0), "top_p")],
    )
    def test_odd_sampling_is_refused_before_a_model_is_loaded(self, flags: tuple[object, ...], word: str) -> None:
        assert word in refused("hi", "--model", "no-such-model", *flags)

    def test_a_prompt_that_does_not_fit_names_both_numbers(self, checkpoint: Path) -> None:
        """20 letters between 2 marks are 22 tokens; 22 + 5 - 1 slots."""
        message = refused("x" * 20, "--model", checkpoint, "--max-tokens", 5, "--max-model-len", 25)
        assert message == "error: 22 prompt tokens and 5 outputs need 26 slots, max_model_len is 25"
        assert answers("x" * 20, "--model", checkpoint, "--max-tokens", 5, "--max-model-len", 26)

    def test_an_empty_prompt_is_refused_as_it_is_and_not_in_a_template(self, checkpoint: Path) -> None:
        assert "the prompt is empty" in refused("", "--model", checkpoint, "--raw")
        assert len(answers("", "--model", checkpoint, "--max-tokens", 3)) == 1


class TestModelsThatCannotAnswer:
    @pytest.mark.parametrize("name", ["tiny", "small"])
    def test_a_preset_has_no_tokenizer(self, name: str) -> None:
        assert refused("hi", "--model", name) == f"error: {name} cannot answer in text: {name} has no tokenizer"

    def test_a_checkpoint_without_one(self, tmp_path: Path) -> None:
        folder = write_checkpoint(tmp_path / "mute", text=False)
        message = refused("hi", "--model", folder)
        assert message.startswith(f"error: {folder} cannot answer in text: ")
        assert "tokenizer.json is missing" in message

    def test_a_checkpoint_without_a_template_is_told_the_flag(self, tmp_path: Path) -> None:
        folder = write_checkpoint(tmp_path / "plain", chat=False)
        assert len(answers("hi", "--model", folder, "--raw", "--max-tokens", 3)) == 1
        assert "--raw" in refused("hi", "--model", folder)

    def test_smollm2_before_it_is_fetched(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NANOSERVE_CACHE", str(tmp_path))
        assert refused("hi").endswith("is missing: run `nanoserve fetch smollm2`")

    def test_an_unknown_name(self) -> None:
        assert refused("hi", "--model", "smolm2") == "error: no model 'smolm2', did you mean 'smollm2'?"


@pytest.mark.skipif(not SMOLLM2.is_file(), reason="SmolLM2 is not here: run `nanoserve fetch smollm2`")
class TestSmolLM2:
    def test_it_knows_the_capital_of_france(self) -> None:
        result = generate("What is the capital of France?", "--max-tokens", 12)
        assert (result.exit_code, result.stderr) == (0, "")
        assert "Paris" in result.stdout

    @pytest.mark.slow
    def test_several_questions_are_one_batch_and_end_by_themselves(self) -> None:
        """A small model is wrong about Italy, and must be wrong in the same words alone and in a padded batch."""
        questions = ("What is the capital of France?", "What is the capital of Italy?")
        together = answers(*questions, "--bucket-decode")
        assert "Paris" in together[0]["text"]
        assert [answer["finish"] for answer in together] == ["stop", "stop"]
        assert together == [answers(question)[0] for question in questions]
