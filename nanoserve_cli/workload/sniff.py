"""What the lines of a file are: CSV with a header or one JSON object a line, with which columns.

One line is always one row. No known trace has a line break inside quotes, and read that way a stray quote
spoils its own row and not the thousand after it.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice

from nanoserve_cli.workload.errors import RowError, shorten
from nanoserve_cli.workload.fields import DecimalText, Record
from nanoserve_cli.workload.formats import Container

HEAD_LINES = 20
"""So many rows are looked at to tell the format: optional keys may be missing from the first."""

NumberedLine = tuple[int, str]


@dataclass(frozen=True)
class Sniffed:
    """The file as rows still to be decoded.

    `features` are the columns or keys, and `key:fraction` for keys with a fractional number. `rows` are the
    line numbers, from 1, and texts of every line that is not blank. `decode` makes a record of a line or
    raises RowError. `broken` says that a JSON file has no whole object among its first lines.
    """

    container: Container
    columns: tuple[str, ...]
    features: frozenset[str]
    rows: Iterator[NumberedLine]
    decode: Callable[[str], Record]
    broken: bool = False


def sniff(lines: Iterator[str]) -> Sniffed | None:
    """Look at the first rows of `lines` and give them back with the rest; None where no line has anything."""
    numbered = ((number, line) for number, line in enumerate(lines, 1) if not line.isspace())
    head = list(islice(numbered, HEAD_LINES))
    if not head:
        return None
    if head[0][1].lstrip().startswith("{") or any(_is_object(line) for _, line in head[1:]):
        return _jsonl(head, numbered)
    names = _header(head[0][1])
    return Sniffed("csv", names, frozenset(names), chain(head[1:], numbered), _csv_decoder(names))


def decode_json(line: str) -> Record:
    """The JSON object that a line holds. Raises RowError for anything else."""
    try:
        value = json.loads(line, parse_float=DecimalText, parse_constant=str)
    except (ValueError, RecursionError):
        raise RowError("not JSON", line.strip()) from None
    if not isinstance(value, dict):
        raise RowError("not a JSON object", line.strip())
    return value


def _jsonl(head: list[NumberedLine], rest: Iterator[NumberedLine]) -> Sniffed:
    records = [decode_json(line) for _, line in head if _is_object(line)]
    columns = tuple(dict.fromkeys(key for record in records for key in record))
    fractions = {f"{key}:fraction" for key in columns if _is_mostly_decimal([r[key] for r in records if key in r])}
    return Sniffed("jsonl", columns, frozenset(columns) | fractions, chain(head, rest), decode_json, broken=not records)


def _is_mostly_decimal(values: list[object]) -> bool:
    """Whether more than half are written with a decimal point: one odd row does not change the unit of a file."""
    return 2 * sum(isinstance(value, DecimalText) for value in values) > len(values)


def _is_object(line: str) -> bool:
    try:
        decode_json(line)
    except RowError:
        return False
    return True


def _header(line: str) -> tuple[str, ...]:
    try:
        return tuple(name.strip() for name in _cells(line))
    except RowError:
        return (line.strip(),)


def _csv_decoder(names: tuple[str, ...]) -> Callable[[str], Record]:
    def decode(line: str) -> Record:
        cells = _cells(line)
        if len(cells) < len(names):
            raise RowError("row cut short", shorten(line.rstrip()))
        if len(cells) > len(names):
            raise RowError("more cells than the header", shorten(line.rstrip()))
        return dict(zip(names, cells, strict=True))

    return decode


def _cells(line: str) -> list[str]:
    line = line.rstrip("\r\n")
    if '"' not in line:
        return line.split(",")
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error:
        raise RowError("stray quote", shorten(line)) from None
