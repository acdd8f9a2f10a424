"""Times and counts from text to integers without a float between.

A float64 of epoch seconds has a spacing of 238 ns, which merges neighbouring stamps of a real trace,
so nothing here ever makes one.
"""

from __future__ import annotations

import re
from datetime import date

from nanoserve_cli.units import NS_PER_S

_DECIMAL = re.compile(r"([+-]?\d{1,40})(?:\.(\d{0,40}))?(?:[eE]([+-]?\d{1,2}))?", re.ASCII)
_DATETIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:Z|([+-])(\d\d):?(\d\d)?)?", re.ASCII
)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_S_PER_DAY = 86_400


def parse_decimal(text: str) -> tuple[int, int]:
    """`(mantissa, exponent)` such that `text` is exactly `mantissa * 10**exponent`.

    Raises ValueError for anything that is no plain or scientific decimal, `nan` and `inf` included.
    """
    match = _DECIMAL.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"not a decimal number: {text!r}")
    whole, fraction, exponent = match.groups(default="")
    return int(whole + fraction), int(exponent or 0) - len(fraction)


def whole_number(text: str) -> int | None:
    """The integer that `text` is (`54`, `54.0`, `5.4e1`), or None where it has a fraction.

    Raises ValueError where it is no decimal number.
    """
    mantissa, exponent = parse_decimal(text)
    if exponent >= 0:
        return int(mantissa * 10**exponent)
    whole, fraction = divmod(mantissa, 10**-exponent)
    return None if fraction else whole


def decimal_ns(text: str, unit_ns: int) -> int:
    """Decimal `text` in units of `unit_ns` as nanoseconds, to the nearest, a half going up.

    Rounded and not cut, because digits past the nanosecond are what a float left behind: 1.9999999999999998
    means 2. Raises ValueError where `text` is no decimal number.
    """
    mantissa, exponent = parse_decimal(text)
    if exponent >= 0:
        return int(mantissa * unit_ns * 10**exponent)
    scale = 10**-exponent
    return int((2 * mantissa * unit_ns + scale) // (2 * scale))


def datetime_ns(text: str) -> int:
    """`2023-11-16 18:15:46.6805900`, with `T`, `Z` or an offset if it likes, as nanoseconds since 1970.

    A time without an offset is UTC. Raises ValueError for any other text and for an impossible date.
    """
    match = _DATETIME.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"not a date and time: {text!r}")
    year, month, day, hour, minute, second, fraction, sign, east_h, east_m = match.groups(default="")
    clock = int(hour), int(minute), int(second)
    if clock[0] > 23 or clock[1] > 59 or clock[2] > 59:
        raise ValueError(f"not a time of day: {text!r}")
    days = date(int(year), int(month), int(day)).toordinal() - _EPOCH_DAY
    seconds = days * _S_PER_DAY + clock[0] * 3600 + clock[1] * 60 + clock[2]
    if sign:
        seconds -= int(sign + "1") * (int(east_h) * 3600 + int(east_m or 0) * 60)
    return seconds * NS_PER_S + int(fraction.ljust(9, "0"))
