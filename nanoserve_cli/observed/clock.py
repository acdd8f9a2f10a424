"""The times of log lines: the first stamp on a line, with a year or, as vLLM prints it, without one."""

from __future__ import annotations

import re
from datetime import date

from nanoserve_cli.units import NS_PER_MS, NS_PER_S
from nanoserve_cli.workload.fields import MAX_STAMP_NS

_STAMP = re.compile(
    r"(?<![\d-])(?:(20\d\d)-)?(\d\d)-(\d\d)[T ]([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?:[.,](\d{1,9}))?"
    r"(Z|[+-]\d\d:?\d\d)?",
    re.ASCII,
)
_EPOCH = re.compile(r"#?\s*(?:(\d{10})(?:\.(\d{1,9})\d*)?|(\d{13}))\s*", re.ASCII)
_PREFIX = 64
_COMMON_YEAR = 2023
_LEAP_YEAR = 2024
_HALF_A_YEAR = 183
_ROOM_FOR_LATE_LINES = 20 * 365
_EPOCH_DAY = date(1970, 1, 1).toordinal()


class Clock:
    """Nanoseconds of the lines of one log, in their order; a line without a time has that of the one before.

    The outermost stamp of a line is taken, because a container puts one on every line and a server only on the
    first of a message. The first stamp decides for the file whether years are read. Without them a date more than
    half a year back is the next year's, one more than half a year on is a late line of the year before, and
    29 February makes the year a leap year.
    """

    def __init__(self) -> None:
        self.now: int | None = None
        self._text = ""
        self._dated: bool | None = None
        self._year = 0
        self._day: int | None = None
        self._years_before = _ROOM_FOR_LATE_LINES
        self._leap = False

    def pass_by(self, line: str) -> None:
        """Notes the time of a line that says nothing else: a stamp at its beginning, or an epoch on its own."""
        match = _STAMP.search(line, 0, _PREFIX)
        if match is not None:
            self._take(match)
        elif len(line) < _PREFIX and (epoch := _EPOCH.fullmatch(line)):
            seconds, fraction, milliseconds = epoch.groups(default="")
            self._dated, self._text = True, ""
            self.now = (
                int(milliseconds) * NS_PER_MS if milliseconds else int(seconds) * NS_PER_S + int(fraction.ljust(9, "0"))
            )

    def read(self, line: str) -> int | None:
        """The time of `line` in nanoseconds, from any zero; None before the first stamp."""
        match = _STAMP.search(line)
        if match is not None:
            self._take(match)
        return self.now

    def _take(self, match: re.Match[str]) -> None:
        if match[0] == self._text:
            return
        year, month, day, hour, minute, second, fraction, zone = match.groups(default="")
        if self._dated is None:
            self._dated = bool(year)
        days = self._of_year(year, month, day) if self._dated else self._of_calendar(month, day)
        if days is None:
            return
        seconds = days * 86_400 + int(hour) * 3600 + int(minute) * 60 + int(second)
        if self._dated and len(zone) > 1:
            seconds -= int(zone[0] + "1") * (int(zone[1:3]) * 3600 + int(zone[-2:]) * 60)
        stamp = seconds * NS_PER_S + int(fraction.ljust(9, "0"))
        if 0 <= stamp < MAX_STAMP_NS:
            self._text, self.now = match[0], stamp

    def _of_year(self, year: str, month: str, day: str) -> int | None:
        """Days since 1970, in the year of the line before where the stamp has none; None for no date."""
        self._year = int(year or self._year)
        return _days(self._year, int(month), int(day))

    def _of_calendar(self, month: str, day: str) -> int | None:
        """Days from a zero well before the first line's year; None for no date."""
        self._leap = self._leap or (month, day) == ("02", "29")
        year = _LEAP_YEAR if self._leap else _COMMON_YEAR
        days = _days(year, int(month), int(day))
        if days is None:
            return None
        days += self._years_before - date(year, 1, 1).toordinal() + _EPOCH_DAY
        if self._day is not None and abs(days - self._day) > _HALF_A_YEAR:
            turned = (365 + self._leap) if days < self._day else -365
            self._years_before, self._leap, days = self._years_before + turned, False, days + turned
        self._day = days
        return days


def _days(year: int, month: int, day: int) -> int | None:
    try:
        return date(year, month, day).toordinal() - _EPOCH_DAY
    except ValueError:
        return None
