"""A trace file as lines of text: gzip by content, any line ending, with or without a byte-order mark.

What is plainly no trace is refused here, by its first bytes and in words.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nanoserve_cli.workload.errors import TraceError

_GZIP_MAGIC = b"\x1f\x8b"
_FIRST_BLOCK = 8192
_CONTROL = bytes(set(range(32)) - set(b"\t\n\r\f"))

_FOREIGN = (
    (b"version https://git-lfs", "is a Git-LFS pointer, not the data: run `git lfs pull` in its repository"),
    (b"PK\x03\x04", "is a zip archive: unpack it first"),
    (b"PAR1", "is a Parquet file: write it as CSV first"),
    (b"BZh", "is bzip2 data: unpack it first (gzip is read as it is)"),
    (b"\xfd7zXZ", "is xz data: unpack it first (gzip is read as it is)"),
    (b"\x28\xb5\x2f\xfd", "is zstd data: unpack it first (gzip is read as it is)"),
    (b"\xff\xfe", "is UTF-16 text: save it as UTF-8"),
    (b"\xfe\xff", "is UTF-16 text: save it as UTF-8"),
    (b"<", "looks like an HTML or XML page, not a trace: check the address it was downloaded from"),
    (b"[", "starts a JSON array; one object a line is read: try `jq -c '.[]'` on it"),
)


def sha256_of(path: Path) -> str:
    """The SHA-256 of the file's bytes as stored. Raises TraceError where it cannot be read."""
    with _readable(path) as raw:
        return hashlib.file_digest(raw, "sha256").hexdigest()


@contextmanager
def open_lines(path: Path) -> Iterator[Iterator[str]]:
    """The file's lines, streamed. Bytes that are no UTF-8 become U+FFFD, and so spoil their row alone.

    Raises TraceError where the path is no readable file, is empty, holds something that is no trace, or,
    while it is read, turns out to be damaged.
    """
    with _readable(path) as raw:
        compressed = raw.peek(len(_GZIP_MAGIC)).startswith(_GZIP_MAGIC)
        data = io.BufferedReader(gzip.GzipFile(fileobj=raw), _FIRST_BLOCK) if compressed else raw
        try:
            _refuse_foreign(path, data.peek(_FIRST_BLOCK))
            yield iter(io.TextIOWrapper(data, encoding="utf-8-sig", errors="replace"))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise TraceError(f"{path}: damaged gzip data ({error}): download it again") from None


@contextmanager
def _readable(path: Path) -> Iterator[io.BufferedReader]:
    if path.is_dir():
        raise TraceError(f"{path}: is a directory: name a file in it")
    try:
        if not path.is_file() and path.exists():
            raise TraceError(f"{path}: is no regular file: save the trace to one first")
        with path.open("rb") as raw:
            yield raw
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror or error}") from None


def _refuse_foreign(path: Path, block: bytes) -> None:
    text = block.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not text:
        raise TraceError(f"{path}: is empty")
    for magic, what in _FOREIGN:
        if text.startswith(magic):
            raise TraceError(f"{path}: {what}")
    if block.translate(None, _CONTROL) != block:
        raise TraceError(f"{path}: is binary data, not a CSV or JSON-lines trace")
