"""The tokenizer that a GGUF file carries: byte-level BPE from its tokens and merges.

How text is split before BPE is not in the file, only the name of a rule (`tokenizer.ggml.pre`). The rules
here are those of the models' own `tokenizer.json`; llama.cpp restates them in src/llama-vocab.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import tokenizers
from gguf.constants import TokenType
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from nanoserve.model.errors import CheckpointError, UnsupportedModel
from nanoserve.model.gguf_header import GGUFHeader
from nanoserve.model.tokenizer import Tokenizer

# Contractions, words with what precedes them, digits in groups of `digits`, punctuation, line ends, blanks.
SPLIT_EXPRESSION: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# What a template calls them, and the file: `tokenizer.ggml.<name>_token_id`.
SPECIAL_TOKENS: Final[Mapping[str, str]] = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "pad_token": "padding",
}


def gguf_tokenizer(header: GGUFHeader) -> Tokenizer:
    """The tokenizer of a GGUF file.

    Raises UnsupportedModel for a vocabulary that is no byte-level BPE or a splitting rule not known here,
    CheckpointError where the file carries no vocabulary.
    """
    metadata, source = header.metadata, str(header.path)
    model, rule = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "default")
    if model is None:
        raise CheckpointError(f"{source} carries no tokenizer (tokenizer.ggml.model)")
    if model != "gpt2":
        raise UnsupportedModel(f"{source}: tokenizer {model!r} is not implemented, only byte-level BPE ('gpt2')")
    if rule not in SPLITTING_RULES:
        known = ", ".join(SPLITTING_RULES)
        raise UnsupportedModel(f"{source}: tokenizer.ggml.pre {rule!r} is not implemented, only {known}")
    for key in ("tokens", "merges", "token_type"):
        if f"tokenizer.ggml.{key}" not in metadata:
            raise CheckpointError(f"{source}: tokenizer.ggml.{key} is absent: fetch the file again")
    backend = SPLITTING_RULES[rule](header)
    backend.decoder = decoders.ByteLevel()
    _add_special_tokens(backend, metadata)
    # llama.cpp starts every Llama 3 text with BOS whether or not the file says so.
    if metadata.get("tokenizer.ggml.add_bos_token", rule == "llama-bpe"):
        _start_with_bos(backend, metadata, source)
    return Tokenizer(
        backend,
        source=source,
        chat_template=metadata.get("tokenizer.chat_template"),
        special_tokens=_special_tokens(metadata),
        eos_ids=header.eos_token_ids,
    )


def _bpe(header: GGUFHeader, *, ignore_merges: bool = False) -> tokenizers.Tokenizer:
    vocabulary = {token: index for index, token in enumerate(header.metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ", 1)) for merge in header.metadata["tokenizer.ggml.merges"]]
    try:
        return tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=ignore_merges))
    except Exception as error:  # the binding raises plain Exception, whatever is wrong
        raise CheckpointError(f"{header.path}: tokenizer.ggml.merges do not fit the tokens ({error})") from error


def _byte_level(*, use_regex: bool) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def _gpt2(header: GGUFHeader) -> tokenizers.Tokenizer:
    backend = _bpe(header)
    backend.pre_tokenizer = _byte_level(use_regex=True)
    return backend


def _smollm(header: GGUFHeader) -> tokenizers.Tokenizer:
    """GPT-2's rule, every digit alone."""
    backend = _bpe(header)
    digits = pre_tokenizers.Digits(individual_digits=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, _byte_level(use_regex=True)])
    return backend


def _llama3(header: GGUFHeader) -> tokenizers.Tokenizer:
    """A word that is in the vocabulary is one token, whatever the merges would make of it."""
    backend = _bpe(header, ignore_merges=True)
    backend.pre_tokenizer = _split(digits="{1,3}")
    return backend


def _qwen2(header: GGUFHeader) -> tokenizers.Tokenizer:
    backend = _bpe(header)
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _split(digits="")
    return backend


def _split(*, digits: str) -> pre_tokenizers.PreTokenizer:
    expression = tokenizers.Regex(SPLIT_EXPRESSION.format(digits=digits))
    split = pre_tokenizers.Split(expression, behavior="isolated")
    return pre_tokenizers.Sequence([split, _byte_level(use_regex=False)])


SPLITTING_RULES: Final[Mapping[str, Callable[[GGUFHeader], tokenizers.Tokenizer]]] = {
    "gpt-2": _gpt2,
    "smollm": _smollm,
    "llama-bpe": _llama3,
    "qwen2": _qwen2,
}


def _add_special_tokens(backend: tokenizers.Tokenizer, metadata: Mapping[str, Any]) -> None:
    """Control tokens are found in a text and left out when decoding; user-defined ones are found and kept."""
    typed = list(zip(metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"], strict=True))
    control = [token for token, kind in typed if kind == TokenType.CONTROL]
    user_defined = [token for token, kind in typed if kind == TokenType.USER_DEFINED]
    backend.add_special_tokens([tokenizers.AddedToken(token, normalized=False) for token in control])
    backend.add_tokens([tokenizers.AddedToken(token, normalized=False) for token in user_defined])


def _start_with_bos(backend: tokenizers.Tokenizer, metadata: Mapping[str, Any], source: str) -> None:
    bos = _special_tokens(metadata).get("bos_token")
    if bos is None:
        raise CheckpointError(f"{source}: the tokenizer adds a BOS token and names none (tokenizer.ggml.bos_token_id)")
    backend.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A",
        pair=f"{bos} $A $B",
        special_tokens=[(bos, metadata["tokenizer.ggml.bos_token_id"])],
    )


def _special_tokens(metadata: Mapping[str, Any]) -> dict[str, str]:
    tokens = metadata["tokenizer.ggml.tokens"]
    ids = {name: metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in SPECIAL_TOKENS.items()}
    return {name: tokens[index] for name, index in ids.items() if index is not None and index < len(tokens)}
