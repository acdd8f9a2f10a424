"""Text to ids and back: from `tokenizer.json`, from the vocabulary in a GGUF file, and through a chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import transformers
from gguf_files import write_file
from tokenizers import decoders, models, pre_tokenizers, trainers

from nanoserve.cache_dir import cached_model
from nanoserve.model.errors import CheckpointError, UnsupportedModel
from nanoserve.model.gguf_header import read_header
from nanoserve.model.gguf_tokenizer import gguf_tokenizer
from nanoserve.model.load import SMOLLM2_FILE
from nanoserve.model.tokenizer import Tokenizer, load_tokenizer

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  two  spaces\n\n\tand a tab ",
    "I'll say it's 1234567.89, DON'T",
    "naïve café, Ünïcödé — 日本語 and 한국어 🦙👩‍🚀",
    "e\u0301 is two code points",
    "def f(x):\r\n    return x**2  # squared\r\n",
    "٣٤٥ Ⅷ ½",
]
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


@pytest.fixture(scope="module")
def trained() -> dict[str, Any]:
    """A byte-level vocabulary and its merges, as `tokenizer.json` has them."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False
    )
    backend.train_from_iterator(TEXTS * 20 + ["12345 the hello there world words"] * 20, trainer)
    return json.loads(backend.to_str())["model"]


def gguf_file(path: Path, trained: dict[str, Any], rule: str | None, **changes: Any) -> Path:
    tokens = sorted(trained["vocab"], key=trained["vocab"].__getitem__)
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": rule,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": [" ".join(merge) for merge in trained["merges"]],
        "tokenizer.ggml.token_type": [3 if token in SPECIAL else 1 for token in tokens],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.eot_token_id": 1,
        "tokenizer.chat_template": CHAT,
    }
    return write_file(path, "llama", metadata | changes, {"none": np.zeros(1, np.float32)})


def from_gguf(path: Path, trained: dict[str, Any], rule: str | None, **changes: Any) -> Tokenizer:
    return gguf_tokenizer(read_header(gguf_file(path, trained, rule, **changes)))


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    """What the text is split into before BPE, with blanks as the byte alphabet has them."""
    return [piece for piece, _ in tokenizer.backend.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize("rule", ["gpt-2", "smollm", "qwen2", "llama-bpe"])
class TestEveryRule:
    @pytest.mark.parametrize("text", TEXTS)
    def test_round_trip(self, rule: str, text: str, trained: dict[str, Any], tmp_path: Path) -> None:
        tokenizer = from_gguf(tmp_path / "model", trained, rule)
        expected = text.replace("e\u0301", "é") if rule == "qwen2" else text
        assert tokenizer.decode(tokenizer.encode(text)) == expected

    def test_control_tokens_are_found_and_left_out(self, rule: str, trained: dict[str, Any], tmp_path: Path) -> None:
        tokenizer = from_gguf(tmp_path / "model", trained, rule, **{"tokenizer.ggml.add_bos_token": False})
        ids = tokenizer.encode("<|im_start|>the<|im_end|>")
        assert (ids[0], ids[-1]) == (1, 2)
        assert tokenizer.decode(ids) == "the"


def test_smollm_splits_every_digit(trained: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = from_gguf(tmp_path / "model", trained, "smollm")
    assert pieces(tokenizer, "in 2024, it's 7") == ["in", "Ġ", "2", "0", "2", "4", ",", "Ġit", "'s", "Ġ", "7"]


def test_gpt2_keeps_numbers_whole(trained: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = from_gguf(tmp_path / "model", trained, "gpt-2")
    assert pieces(tokenizer, "in 2024, it's 7") == ["in", "Ġ2024", ",", "Ġit", "'s", "Ġ7"]


def test_llama3_groups_digits_in_threes_and_starts_with_bos(trained: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = from_gguf(tmp_path / "model", trained, "llama-bpe")
    assert pieces(tokenizer, "in 1234567 IT'S\n\n go") == ["in", "Ġ", "123", "456", "7", "ĠIT", "'S", "ĊĊ", "Ġgo"]
    assert tokenizer.encode("the")[0] == 0
    assert tokenizer.chat([{"role": "user", "content": "hi"}])[0] == 1


def test_llama3_takes_a_word_of_the_vocabulary_whole(trained: dict[str, Any], tmp_path: Path) -> None:
    without_merges = {**trained, "merges": trained["merges"][:1]}
    token = max((token for token in trained["vocab"] if token.isascii() and token.isalpha()), key=len)
    assert len(token) > 2
    ids = from_gguf(tmp_path / "model", without_merges, "llama-bpe").encode(token)
    assert ids[1:] == [trained["vocab"][token]]


@pytest.mark.parametrize("text", TEXTS)
def test_qwen2_agrees_with_transformers(text: str, trained: dict[str, Any], tmp_path: Path) -> None:
    merges = [tuple(merge) for merge in trained["merges"]]
    oracle = transformers.Qwen2Tokenizer(vocab=trained["vocab"], merges=merges)
    assert from_gguf(tmp_path / "model", trained, "qwen2").encode(text) == oracle.encode(text)


@pytest.mark.parametrize("text", TEXTS)
def test_gpt2_agrees_with_transformers(text: str, trained: dict[str, Any], tmp_path: Path) -> None:
    merges = [tuple(merge) for merge in trained["merges"]]
    oracle = transformers.GPT2Tokenizer(vocab=trained["vocab"], merges=merges)
    assert from_gguf(tmp_path / "model", trained, "gpt-2").encode(text) == oracle.encode(text)


def test_user_defined_tokens_are_found_and_kept(trained: dict[str, Any], tmp_path: Path) -> None:
    types = [4 if index == 1 else 1 for index in range(len(trained["vocab"]))]
    tokenizer = from_gguf(tmp_path / "model", trained, "gpt-2", **{"tokenizer.ggml.token_type": types})
    assert tokenizer.encode("a<|im_start|>b")[1] == 1
    assert tokenizer.decode(tokenizer.encode("a<|im_start|>b")) == "a<|im_start|>b"


def test_what_the_file_says_of_itself(trained: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = from_gguf(tmp_path / "model", trained, "gpt-2")
    assert tokenizer.eos_ids == (1, 2)
    assert tokenizer.size == len(trained["vocab"])
    assert tokenizer.special_tokens == {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}


@pytest.mark.parametrize(
    ("rule", "changes", "kind", "message"),
    [
        ("default", {}, UnsupportedModel, "tokenizer.ggml.pre 'default' is not implemented, only gpt-2, smollm"),
        (None, {}, UnsupportedModel, "tokenizer.ggml.pre 'default' is not implemented"),
        ("gpt-2", {"tokenizer.ggml.model": "llama"}, UnsupportedModel, "tokenizer 'llama' is not implemented"),
        ("gpt-2", {"tokenizer.ggml.model": None}, CheckpointError, "carries no tokenizer"),
        ("gpt-2", {"tokenizer.ggml.merges": None}, CheckpointError, "tokenizer.ggml.merges is absent"),
        ("gpt-2", {"tokenizer.ggml.merges": ["zz yy"]}, CheckpointError, "tokenizer.ggml.merges do not fit"),
        (
            "llama-bpe",
            {"tokenizer.ggml.bos_token_id": None},
            CheckpointError,
            "adds a BOS token and names none",
        ),
    ],
)
def test_refusals_of_a_gguf_tokenizer(
    rule: str | None,
    changes: dict[str, Any],
    kind: type[ValueError],
    message: str,
    trained: dict[str, Any],
    tmp_path: Path,
) -> None:
    with pytest.raises(kind) as refused:
        from_gguf(tmp_path / "model", trained, rule, **changes)
    assert message in str(refused.value)
    assert str(tmp_path) in str(refused.value)


class TestDirectory:
    def saved(self, directory: Path, trained: dict[str, Any], **settings: Any) -> Path:
        merges = [tuple(merge) for merge in trained["merges"]]
        backend = tokenizers.Tokenizer(models.BPE(vocab=trained["vocab"], merges=merges))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens(SPECIAL)
        backend.save(str(directory / "tokenizer.json"))
        settings = {"eos_token": "<|im_end|>", "bos_token": {"content": "<|endoftext|>"}} | settings
        (directory / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
        return directory

    @pytest.mark.parametrize("text", TEXTS)
    def test_round_trip(self, text: str, trained: dict[str, Any], tmp_path: Path) -> None:
        tokenizer = load_tokenizer(self.saved(tmp_path, trained))
        assert tokenizer.decode(tokenizer.encode(text)) == text

    def test_settings(self, trained: dict[str, Any], tmp_path: Path) -> None:
        tokenizer = load_tokenizer(self.saved(tmp_path, trained))
        assert tokenizer.eos_ids == (2,)
        assert tokenizer.special_tokens == {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}

    def test_blocks_on_their_own_lines_leave_none(self, trained: dict[str, Any], tmp_path: Path) -> None:
        template = "{% for m in messages %}\n    {% if m.content %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\n"
        tokenizer = load_tokenizer(self.saved(tmp_path, trained, chat_template=template))
        messages = [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]
        oracle = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(tmp_path / "tokenizer.json"), chat_template=template
        )
        expected = oracle.apply_chat_template(messages, tokenize=False)
        assert tokenizer.render_chat(messages) == expected == "one\ntwo\n"

    @pytest.mark.parametrize("named", [False, True])
    def test_chat_agrees_with_transformers(self, named: bool, trained: dict[str, Any], tmp_path: Path) -> None:
        template = [{"name": "tool_use", "template": ""}, {"name": "default", "template": CHAT}] if named else CHAT
        self.saved(tmp_path, trained, chat_template=template)
        messages = [{"role": "system", "content": "Be <brief>."}, {"role": "user", "content": "hello world"}]
        oracle = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(tmp_path / "tokenizer.json"), chat_template=CHAT
        )
        expected = oracle.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert load_tokenizer(tmp_path).chat(messages) == expected

    def test_a_template_file_comes_first(self, trained: dict[str, Any], tmp_path: Path) -> None:
        self.saved(tmp_path, trained, chat_template="setting")
        (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content | tojson }}")
        tokenizer = load_tokenizer(tmp_path)
        assert tokenizer.render_chat([{"role": "user", "content": "<é>"}]) == '<|endoftext|>"<é>"'

    def test_a_model_without_a_chat_template(self, trained: dict[str, Any], tmp_path: Path) -> None:
        tokenizer = load_tokenizer(self.saved(tmp_path, trained))
        with pytest.raises(CheckpointError, match=r"has no chat template: give it a plain prompt"):
            tokenizer.chat([{"role": "user", "content": "hi"}])

    @pytest.mark.parametrize(
        ("template", "message"),
        [
            ("{{ raise_exception('roles must alternate') }}", "the chat template failed: roles must alternate"),
            ("{% for %}", "the chat template failed"),
            ("{{ messages[0].content + 1 }}", "the chat template failed: can only concatenate str"),
            ("{{ messages.__class__.__mro__ }}", "the chat template failed: access to attribute '__class__'"),
            ("{{ messages.append(1) }}", "the chat template failed: access to attribute 'append'"),
        ],
    )
    def test_a_template_that_fails_or_reaches_out(
        self, template: str, message: str, trained: dict[str, Any], tmp_path: Path
    ) -> None:
        tokenizer = load_tokenizer(self.saved(tmp_path, trained, chat_template=template))
        with pytest.raises(CheckpointError) as refused:
            tokenizer.chat([{"role": "user", "content": "hi"}])
        assert message in str(refused.value)

    def test_no_tokenizer_file(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing"):
            load_tokenizer(tmp_path)

    def test_a_damaged_tokenizer_file(self, tmp_path: Path) -> None:
        (tmp_path / "tokenizer.json").write_text("{}")
        with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be read as a tokenizer"):
            load_tokenizer(tmp_path)


@pytest.mark.skipif(
    not cached_model(SMOLLM2_FILE).is_file(), reason="SmolLM2 is not here: run `nanoserve fetch smollm2`"
)
class TestSmolLM2:
    """Ids that Hugging Face's tokenizer and Ollama give for the same texts, as others have published them."""

    system = (1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182)

    @pytest.mark.parametrize(
        ("text", "ids"),
        [
            ("Hello", [19556]),
            ("hello world", [28120, 905]),
            ("What is the capital of France?", [1780, 314, 260, 3575, 282, 4649, 47]),
            (
                "Quelle est la capitale de la France ? Réponds en une phrase.",
                [
                    65,
                    2726,
                    290,
                    1264,
                    2618,
                    47765,
                    1121,
                    367,
                    2618,
                    4649,
                    9148,
                    428,
                    2756,
                    96,
                    19870,
                    430,
                    16520,
                    8715,
                    30,
                ],
            ),
        ],
    )
    def test_chat(self, text: str, ids: list[int]) -> None:
        tokenizer = gguf_tokenizer(read_header(cached_model(SMOLLM2_FILE)))
        expected = [*self.system, 2, 198, 1, 4093, 198, *ids, 2, 198, 1, 520, 9531, 198]
        assert tokenizer.chat([{"role": "user", "content": text}]) == expected
        assert tokenizer.decode(ids) == text
