"""What can be wrong with a trace: the file (`TraceError`, for a person), a row (`RowError`, for a count)."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class TraceError(ValueError):
    """No requests can be had from this trace. One line: what, where, and what to do about it."""


class RowError(Exception):
    """A row that holds no request.

    `reason` never quotes the row, so that equal faults count as one; `value` is what was found there.
    """

    def __init__(self, reason: str, value: object = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.value = value

    def __str__(self) -> str:
        return self.reason if self.value is None else f"{self.reason} ({shorten(repr(self.value))})"


def shorten(text: str, width: int = 60) -> str:
    """`text`, or its beginning and an ellipsis where it is longer than `width` characters."""
    return text if len(text) <= width else text[: width - 3] + "..."


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A sentence part, `did you mean ...?` or the list of what is known, to end an error with."""
    names = list(known)
    close = get_close_matches(word, names, n=1)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(names)}"
