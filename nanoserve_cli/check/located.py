"""A YAML file with the place of every value in it: for messages that name a line, and edits that touch nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanoserve_cli.check.verdicts import Place
from nanoserve_cli.yaml_file import read_mapping

Address = tuple[str | int, ...]
"""Keys and indices from the top of the document to a value."""


@dataclass(frozen=True)
class Located:
    """The mapping in a file, its text, and where each value of it is written. An alias stands where its anchor does."""

    document: dict[str, Any]
    text: str
    places: dict[Address, Place]


def read_located(path: Path, what: str, keys: tuple[str, ...], error: type[ValueError]) -> Located:
    """Raises `error` as `read_mapping` does."""
    from ruamel.yaml import YAML

    document = read_mapping(path, what, keys, error)
    text = path.read_bytes().decode("utf-8")
    return Located(document, text, dict(_walk(YAML(typ="safe", pure=True).compose(text), (), 0)))


def _walk(node: Any, address: Address, line: int) -> Iterator[tuple[Address, Place]]:
    """A value and all within it; `line` is its key's, from 0, where an empty one has none of its own."""
    yield address, Place(line + 1, node.start_mark.index, node.end_mark.index)
    yield from _within(node, address)


def _within(node: Any, address: Address) -> Iterator[tuple[Address, Place]]:
    if node.id == "sequence":
        for index, entry in enumerate(node.value):
            yield from _walk(entry, (*address, index), entry.start_mark.line)
    elif node.id == "mapping":
        # A merged mapping's values come first, so that the mapping's own go over them, as when it is read.
        for key, value in sorted(node.value, key=lambda pair: pair[0].tag != _MERGE):
            if key.tag == _MERGE:
                for merged in reversed(value.value) if value.id == "sequence" else [value]:
                    yield from _within(merged, address)
            else:
                yield from _walk(value, (*address, key.value), key.start_mark.line)


_MERGE = "tag:yaml.org,2002:merge"
