"""Text to token ids and back, and a conversation to the ids of its prompt."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import tokenizers
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from nanoserve.model.errors import CheckpointError
from nanoserve.model.hf_config import read_json, token_text, tokenizer_eos_ids

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer with the chat template of its model.

    `special_tokens` are the texts a template may ask for (`bos_token`, `eos_token`, ...); `eos_ids` the ids
    the tokenizer itself says end a text. `source` names the files in error messages.
    """

    backend: tokenizers.Tokenizer
    source: str
    chat_template: str | None = None
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    eos_ids: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """How many ids decode to something. A model may have more; those are not to be sampled."""
        return int(self.backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, with what the tokenizer puts around a plain text (a BOS, where it has one)."""
        return list(self.backend.encode(text).ids)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`, special tokens left out."""
        return str(self.backend.decode(list(ids), skip_special_tokens=True))

    def chat(self, messages: Sequence[Message]) -> list[int]:
        """The prompt ids of a conversation that the assistant is to continue.

        A message has `role` and `content`. Raises CheckpointError where the model has no chat template, or
        its template does not take these messages.
        """
        return list(self.backend.encode(self.render_chat(messages), add_special_tokens=False).ids)

    def render_chat(self, messages: Sequence[Message]) -> str:
        """The text that `chat` encodes: the template brings its own BOS."""
        if self.chat_template is None:
            raise CheckpointError(f"{self.source} has no chat template: give it a plain prompt")
        try:
            template = _environment().from_string(self.chat_template)
            return template.render(messages=messages, add_generation_prompt=True, **self.special_tokens)
        except (jinja2.TemplateError, TypeError) as error:
            raise CheckpointError(f"{self.source}: the chat template failed: {error}") from error


def load_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face directory: `tokenizer.json`, and its settings beside it.

    Raises CheckpointError where `tokenizer.json` is missing or damaged.
    """
    file = directory / "tokenizer.json"
    if not file.is_file():
        raise CheckpointError(f"{file} is missing: only the fast tokenizer format is read")
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the binding raises plain Exception, whatever is wrong
        raise CheckpointError(f"{file} cannot be read as a tokenizer ({error}): fetch it again") from error
    settings = read_json(directory / "tokenizer_config.json", required=False)
    names = ("bos_token", "eos_token", "unk_token", "pad_token")
    texts = {name: token_text(settings.get(name)) for name in names}
    return Tokenizer(
        backend,
        source=str(directory),
        chat_template=_chat_template(directory, settings),
        special_tokens={name: text for name, text in texts.items() if text is not None},
        eos_ids=tokenizer_eos_ids(directory),
    )


def _chat_template(directory: Path, settings: Mapping[str, Any]) -> str | None:
    """The template file, which newer checkpoints have, or the setting: one text, or several by name."""
    file = directory / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template}
        template = named.get("default")
    return template


def _environment() -> jinja2.Environment:
    """Templates come with checkpoints, so they run sandboxed, with the settings of transformers."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    """Jinja's own filter escapes HTML, which no prompt wants."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)
