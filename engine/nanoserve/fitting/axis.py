"""Which ladders an axis may have: where they end, on which multiples, with which members, how much they may pad."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import SupportsIndex

import numpy as np

from nanoserve.fitting.prices import IntArray


@dataclass(frozen=True)
class Candidates:
    """The bucket tops that matter on one axis, ascending, and how far down each may reach.

    A bucket with top `tops[j]` may hold what lies above `tops[i - 1]` (above 0 where `i` is 0) if and only if
    `reach[j] <= i <= j`.
    """

    tops: IntArray
    reach: IntArray

    def position(self, values: IntArray) -> IntArray:
        """The index of the lowest candidate that holds each value."""
        return np.searchsorted(self.tops, values)


@dataclass(frozen=True)
class Axis:
    """The rule for the ladders of one axis, `rows` or `width`.

    Bucket tops are multiples of `granularity`, `forced` members, and `maximum`, which is always the last. Every forced
    member is in the ladder. `max_pad` bounds the padding of *any* size 1..maximum, seen or not:
    `(top - size) / top <= max_pad`. ValueError for arguments that no ladder can satisfy.
    """

    maximum: int
    granularity: int = 1
    forced: tuple[int, ...] = ()
    max_pad: float | None = None

    def __post_init__(self) -> None:
        for name in ("maximum", "granularity"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, SupportsIndex) or int(value) < 1:
                raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
        for member in self.forced:
            if not 1 <= member <= self.maximum:
                raise ValueError(f"forced member {member} is outside 1..{self.maximum}")
        if self.max_pad is not None and not 0 <= self.max_pad < 1:
            raise ValueError(f"max_pad must be at least 0 and below 1, got {self.max_pad}")
        object.__setattr__(self, "forced", tuple(sorted({*map(int, self.forced)})))

    @cached_property
    def allowed(self) -> IntArray:
        """Every value that may be a bucket top, ascending."""
        multiples = np.arange(self.granularity, self.maximum + 1, self.granularity)
        return np.union1d(multiples, np.array([*self.forced, self.maximum], np.int64))

    @cached_property
    def fewest(self) -> int:
        """How many buckets any ladder of this axis has at least: each as far up as it may reach, from the bottom.

        ValueError where `max_pad` cannot be kept with any number of them.
        """
        if self.max_pad is None:
            return len({*self.forced, self.maximum})
        tops, reach = self.allowed, self._reach(self.allowed)
        held = buckets = 0
        while held < tops.size:
            furthest = int(np.searchsorted(reach, held, side="right"))
            if furthest <= held:
                size, top = (int(tops[held - 1]) if held else 0) + 1, int(tops[held])
                raise ValueError(
                    f"max_pad {self.max_pad} cannot be kept: {size} goes up to {top} at least, which pads "
                    f"{(top - size) / top:.3f} of it; use a smaller granularity or force a member below {top}"
                )
            held, buckets = furthest, buckets + 1
        return buckets

    @property
    def reason(self) -> str:
        """What makes `fewest` what it is, for a message: the one constraint that alone asks for as many, or all."""
        forced = f"forced members {_listed(self.forced)}"
        padded = f"max_pad {self.max_pad} up to {self.maximum}"
        if self.granularity > 1:
            padded += f" by multiples of {self.granularity}"
        if self.max_pad is None:
            return forced if self.forced else f"the maximum {self.maximum}"
        if not self.forced or _fewest_or_none(replace(self, forced=())) == self.fewest:
            return padded
        return forced if replace(self, max_pad=None).fewest == self.fewest else f"{padded} and {forced}"

    def check_count(self, most: int, what: str) -> None:
        """ValueError where no ladder of `most` buckets satisfies the rule: it says why, and how many would."""
        if most < self.fewest:
            raise ValueError(f"{most} buckets of {what} are too few: {self.reason} takes at least {self.fewest}")

    def candidates(self, observed: IntArray, what: str) -> Candidates:
        """The tops among which the best ladder is found, for traffic of these sizes; ValueError beyond the maximum.

        A top may sink to the lowest allowed value that still holds the largest size seen in its bucket, and costs no
        more for it. So these values suffice, unless `max_pad` asks for tops where nothing was seen.
        """
        if int(observed.max()) > self.maximum:
            raise ValueError(
                f"the traffic has steps of {what} {int(observed.max())}, beyond the maximum {self.maximum}"
            )
        tops = self.allowed
        if self.max_pad is None:
            lowest = tops[np.searchsorted(tops, observed)]
            tops = np.union1d(lowest, np.array([*self.forced, self.maximum], np.int64))
        return Candidates(tops, self._reach(tops))

    def _reach(self, tops: IntArray) -> IntArray:
        """`Candidates.reach`: never below a forced member, nor further down than `max_pad` bears. It never falls."""
        # The number of forced members below a top says which of them it may not swallow.
        below = np.searchsorted(np.array(self.forced, np.int64), tops)
        forced = np.array([0, *self.forced], np.int64)[below]
        reach = np.searchsorted(tops, forced, side="right")
        if self.max_pad is not None:
            smallest = np.concatenate(([1], tops + 1))
            for j, top in enumerate(tops.tolist()):
                padded = (top - smallest[: j + 1]) / top > self.max_pad
                reach[j] = max(int(reach[j]), int(padded.sum()))
        return reach


def check_budget(rows: Axis, widths: Axis, budget: int) -> None:
    """ValueError where no policy of `budget` shapes satisfies both rules: it says why, and how many would."""
    least = rows.fewest * widths.fewest
    if budget < least:
        raise ValueError(
            f"{budget} shapes are too few: {rows.reason} takes at least {rows.fewest} row buckets, and "
            f"{widths.reason} at least {widths.fewest} widths in each: {least} shapes"
        )


def _fewest_or_none(axis: Axis) -> int | None:
    """`axis.fewest`; None where its `max_pad` cannot be kept."""
    try:
        return axis.fewest
    except ValueError:
        return None


def _listed(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values)) if len(values) <= 8 else f"{values[0]}, {values[1]}, ... {values[-1]}"
