"""The fields of one record: a token count or a stamp, or a `RowError` that says which field is at fault.

A record is a mapping by column name. Its values are text (CSV, and JSON numbers with a fraction, which are
kept as `DecimalText` so that no digit is lost) or whatever else JSON has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nanoserve_cli.units import NS_PER_MS, NS_PER_S
from nanoserve_cli.workload.errors import RowError
from nanoserve_cli.workload.exact import datetime_ns, decimal_ns, whole_number

Record = Mapping[str, object]

MAX_TOKENS = 2**31 - 1
MAX_STAMP_NS = 2**62  # the difference of any two stamps below it fits an int64
_FAST_DIGITS = 18  # any decimal of so many digits fits an int64


class DecimalText(str):
    """A JSON number that had a fraction or an exponent, as it was written."""

    __slots__ = ()


def count(record: Record, key: str) -> int:
    """A whole number of tokens, 0 or more. `54.0` is whole, `54.5` is not."""
    value = _present(record, key)
    number = value if type(value) is int else _whole(key, value)
    if number < 0:
        raise RowError(f"{key} is negative", value)
    if number > MAX_TOKENS:
        raise RowError(f"{key} is out of range", value)
    return number


def tokens(record: Record, key: str) -> int:
    """A whole number of tokens, 1 or more."""
    number = count(record, key)
    if number == 0:
        raise RowError(f"{key} is zero")
    return number


def seconds(record: Record, key: str) -> int:
    """A stamp written in seconds, as nanoseconds."""
    return _stamp(record, key, NS_PER_S)


def milliseconds(record: Record, key: str) -> int:
    """A stamp written in milliseconds, as nanoseconds."""
    return _stamp(record, key, NS_PER_MS)


def nanoseconds(record: Record, key: str) -> int:
    """A stamp written in nanoseconds."""
    return _stamp(record, key, 1)


def date_or_epoch_ms(record: Record, key: str) -> int:
    """A stamp written as a date and time, or as integer milliseconds since 1970, as nanoseconds."""
    value = _present(record, key)
    if type(value) is int or (isinstance(value, str) and value.isdecimal()):
        return _stamp(record, key, NS_PER_MS)
    return _in_range(key, value, datetime_ns)


def objects(record: Record, key: str) -> list[Record]:
    """A non-empty JSON list of objects."""
    value = _present(record, key)
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        raise RowError(f"{key} is not a list of objects", value)
    return value


def _present(record: Record, key: str) -> object:
    value = record.get(key)
    if value is None or value == "":
        raise RowError(f"{key} is missing")
    return value


def _whole(key: str, value: object) -> int:
    if not isinstance(value, str):
        raise RowError(f"{key} is not a number", value)
    if len(value) <= _FAST_DIGITS and value.isdecimal():
        return int(value)
    try:
        number = whole_number(value)
    except ValueError:
        raise RowError(f"{key} is not a number", value) from None
    if number is None:
        raise RowError(f"{key} is not a whole number", value)
    return number


def _stamp(record: Record, key: str, unit_ns: int) -> int:
    value = _present(record, key)
    text = str(value) if type(value) is int else value
    return _in_range(key, text, lambda stamp: decimal_ns(stamp, unit_ns))


def _in_range(key: str, value: object, parse: Callable[[str], int]) -> int:
    if not isinstance(value, str):
        raise RowError(f"{key} is not a time", value)
    try:
        stamp = parse(value)
    except ValueError:
        raise RowError(f"{key} is not a time", value) from None
    if not -MAX_STAMP_NS < stamp < MAX_STAMP_NS:
        raise RowError(f"{key} is out of range", value)
    return stamp
