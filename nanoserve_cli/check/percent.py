"""Percentages as people write them in a budget: `2%`, `+1%`, `-0.5%`. Exact, so that 2 % of 100 is 2."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

_FORM = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)) ?%", re.ASCII)


def parse_percent(value: Any) -> Fraction:
    """`"2%"` as 1/50, with its sign. ValueError for anything without a percent sign."""
    found = _FORM.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f"takes a percentage like 2%, got {value!r}")
    return Fraction(found[1]) / 100


def render_percent(share: Fraction) -> str:
    """Ten digits of it: what `parse_percent` reads back, but for a share that somebody wrote with more."""
    return f"{float(share * 100):.10g}%"
