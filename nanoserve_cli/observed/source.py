"""A server log as text lines: gzip by content, any line ending, terminal colours removed."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from nanoserve_cli.workload.errors import TraceError

_GZIP_MAGIC = b"\x1f\x8b"
_FIRST_BLOCK = 8192
_LONGEST_LINE = 1 << 20
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@contextmanager
def open_log(path: Path) -> Iterator[Iterator[str]]:
    """The lines of a log, streamed; a line of more than 1 MiB comes in pieces, so memory is bounded.

    Unlike `open_lines` this takes what begins with a bracket or has control characters, as logs do. Raises
    TraceError where the file cannot be read or is a damaged gzip.
    """
    with _text(path) as text:
        yield map(_plain, iter(partial(text.readline, _LONGEST_LINE), ""))


def may_be_log(path: Path) -> bool:
    """Whether a file that is neither CSV nor JSON lines can be a log at all: its first block is text."""
    try:
        with _text(path) as text:
            block = text.read(_FIRST_BLOCK)
    except TraceError:
        return False
    return block.count("\ufffd") * 20 < len(block)


@contextmanager
def _text(path: Path) -> Iterator[io.TextIOWrapper]:
    try:
        with path.open("rb") as raw:
            compressed = raw.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC)
            data = io.BufferedReader(gzip.GzipFile(fileobj=raw), _FIRST_BLOCK) if compressed else raw
            yield io.TextIOWrapper(data, encoding="utf-8-sig", errors="replace")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"{path}: damaged gzip data ({error}): download it again") from None
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from None


def _plain(line: str) -> str:
    return _COLOUR.sub("", line) if "\x1b" in line else line
