"""Results on disk: rows that survive whoever is killed while writing them, read back with their types.

The one format is CSV with `columns.COLUMNS`. A row is there from the moment it was made; what a kill left of one is
closed by the next append, so that it can never be taken for a whole one, and is left out, counted, when it is read.
"""

from __future__ import annotations

import csv
import fcntl
import io
import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoserve_cli.columns import COLUMNS, RUN_COLUMNS, SCHEMA_VERSION, Column

if TYPE_CHECKING:
    from pandas import DataFrame


class RecordsError(ValueError):
    """A results file that cannot be written or added to; nothing in it was changed."""


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes a file beside its place and moves it there: a reader sees the old one or the new one, never half of it."""
    path = path.resolve()  # through a link: the file it names is what changes
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            part.chmod(path.stat().st_mode & 0o7777)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def prepare_folder(folder: Path) -> None:
    """That results can go into `folder`, which is made: said before an hour's run and not after it.

    Raises RecordsError where it cannot be written or its `runs.csv` has other columns.
    """
    _check_writable(folder)
    prepare_file(folder / "runs.csv")


def prepare_file(path: Path) -> None:
    """The same of one results file: its folder is made, and it may be there already with our columns."""
    _check_writable(path.parent)
    if path.exists() and not path.is_file():
        raise RecordsError(f"{path}: cannot be added to: is no regular file")
    try:
        if path.exists():
            with path.open("r+b") as file:
                _check_header(path, file.readline())
    except OSError as error:
        raise RecordsError(f"{path}: cannot be added to: {error.strerror or error}") from None


def _check_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RecordsError(f"{folder}: cannot write the results: {error.strerror or error}") from None


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Adds one row to a CSV with `RUN_COLUMNS`, in one write under a lock.

    Raises RecordsError where the file has other columns or cannot be written.
    """
    line = csv_line(_cells(row))
    try:
        with path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            first = file.readline()
            _check_header(path, first)
            if not first.endswith(b"\n"):
                file.truncate(0)
                file.write(_HEADER)
            file.seek(0)
            content = file.read()
            cut = _cut_cell(content)
            file.truncate(len(content) - cut)
            file.write(_closing(content[: len(content) - cut]) + line.encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise RecordsError(f"{path}: cannot be added to: {error.strerror or error}") from None


class OtherSchema(RecordsError):
    """A results file of another version of the columns."""


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a whole results file."""
    return "".join(csv_line(line) for line in (RUN_COLUMNS, *map(_cells, rows)))


def _cells(row: Mapping[str, Any]) -> list[Any]:
    return [_cell(row.get(column)) for column in RUN_COLUMNS]


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A whole results file at once: the old one stays until the new one is complete. Raises RecordsError."""
    try:
        write_atomically(path, csv_text(rows))
    except OSError as error:
        raise RecordsError(f"{path}: cannot be written: {error.strerror or error}") from None


def read_rows(path: Path) -> tuple[list[dict[str, str]], int]:
    """The rows of a results file as text, and how many lines a kill had cut short: one without its end is no row.

    Raises RecordsError where it cannot be read or has another header, OtherSchema where that is of another version.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            text = file.read()
        lines = list(csv.reader(io.StringIO(text, newline="")))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RecordsError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not text.endswith("\n") and _HEADER.decode().startswith(text):
        return [], len(lines)
    header, body = lines[0], [line for line in lines[1:] if line]
    if tuple(header) != RUN_COLUMNS:
        raise _other_header(path, header, body)
    ended = body if text.endswith("\n") else body[:-1]
    whole = [line for line in ended if len(line) == len(RUN_COLUMNS)]
    other = [line[0] for line in whole if line[0] != str(SCHEMA_VERSION)]
    if other:
        said = other[0] or "none"
        raise OtherSchema(
            f"{path}: holds rows of results schema {said}, this nanoserve reads {SCHEMA_VERSION}: move it away"
        )
    return [dict(zip(RUN_COLUMNS, line, strict=True)) for line in whole], len(body) - len(whole)


def _other_header(path: Path, header: Sequence[str], body: Sequence[Sequence[str]]) -> RecordsError:
    found = body[0][0] if body else "another version"
    if header[:1] == ["schema_version"] and found == str(SCHEMA_VERSION):
        odd = sorted(set(header) ^ set(RUN_COLUMNS)) or ["their order"]
        return RecordsError(
            f"{path}: has other columns than results schema {found}: {', '.join(odd[:3])}; make it again"
        )
    if header[:1] == ["schema_version"]:
        return OtherSchema(
            f"{path}: is of results schema {found}, this nanoserve reads {SCHEMA_VERSION}: make it again"
        )
    return RecordsError(f"{path}: is no results file: its first line is not the header `nanoserve sweep --out` writes")


def measured_rows(path: Path) -> tuple[list[dict[str, str]], int]:
    """The same of a file that must have a row. Raises RecordsError, too, where it has none."""
    rows, cut = read_rows(path)
    if not rows:
        raise RecordsError(f"{path}: holds no whole row: nothing was measured")
    return rows, cut


def check_finite(row: Mapping[str, Any], path: Path) -> None:
    """RecordsError where a figure of a row is NaN or infinite: no run measures that, and nothing compares with it."""
    for name, value in row.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise RecordsError(f"{path}: column {name} holds {value}, which no run measures")


def parse_row(row: Mapping[str, str], path: Path) -> dict[str, Any]:
    """A row of `path` with the types of its columns; None where a cell is empty. RecordsError for one of no type."""
    return {column.name: _parsed(row[column.name], column, path) for column in COLUMNS}


def _parsed(text: str, column: Column, path: Path) -> Any:
    try:
        return _PARSERS[column.dtype](text) if text else None
    except (ValueError, KeyError):
        raise RecordsError(f"{path}: column {column.name} holds {text!r}, which is no {column.dtype}") from None


_PARSERS: dict[str, Callable[[str], Any]] = {
    "string": str,
    "Int64": int,
    "Float64": float,
    "boolean": lambda text: {"true": True, "false": False}[text],
}


def read_results(path: Path) -> DataFrame:
    """A results file as a DataFrame with the dtypes of `columns.COLUMNS`; `attrs["cut"]` counts lines cut short.

    Raises RecordsError where it cannot be read, has another schema, no row, or a cell that is not of its type.
    """
    import pandas as pd

    rows, cut = measured_rows(path)
    texts = pd.DataFrame(rows, columns=list(RUN_COLUMNS), dtype="string").replace("", pd.NA)
    frame = pd.DataFrame({column.name: _typed(path, column, texts[column.name]) for column in COLUMNS})
    frame.attrs["cut"] = cut
    return frame


def _typed(path: Path, column: Column, texts: Any) -> Any:
    try:
        if column.dtype == "boolean":
            return texts.map({"true": True, "false": False}, na_action="ignore").astype("boolean")
        typed = texts.astype(column.dtype)
        if column.dtype == "Float64" and not typed.dropna().map(math.isfinite).all():
            raise ValueError("NaN or infinity")
        return typed
    except (ValueError, TypeError, OverflowError) as error:
        raise RecordsError(f"{path}: column {column.name} holds what is no {column.dtype}: {error}") from None


def _check_header(path: Path, first: bytes) -> None:
    """That a first line is the header, or the beginning of one that was cut short."""
    if first != _HEADER and (first.endswith(b"\n") or not _HEADER.startswith(first)):
        raise RecordsError(
            f"{path}: has other columns than schema {SCHEMA_VERSION}: move it away or choose another --out"
        )


def _cut_cell(content: bytes) -> int:
    """How many bytes at the end are of a cell that was cut short, its comma included, if a row was.

    They go, lest the row look whole where all but the end of its last cell had been written.
    """
    last_line = content[content.rfind(b"\n") + 1 :]
    return len(last_line) - last_line.rfind(b",") if b"," in last_line else 0


def _closing(content: bytes) -> bytes:
    """What ends a row that was cut short by a kill, so that it does not swallow the next: its quote, and its line."""
    if content.endswith(b"\n") and content.count(b'"') % 2 == 0:
        return b""
    return b'"\n' if content.count(b'"') % 2 else b"\n"


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else value


def csv_line(values: Sequence[Any]) -> str:
    """One line of CSV with its end."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(values)
    return buffer.getvalue()


_HEADER = csv_line(RUN_COLUMNS).encode()
