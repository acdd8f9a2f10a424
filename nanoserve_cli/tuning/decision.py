"""Which list is recommended: the best fitted one where it beats what is there already by more than the noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nanoserve.fitting.prices import Cost
from nanoserve_cli.tuning.candidates import Candidate

LEAST_GAIN = 0.01
"""A list of one's own is work: below this share of the price it is not worth having."""


@dataclass(frozen=True)
class Noise:
    """The share of the price that a gain must exceed to be one, and why."""

    share: float = LEAST_GAIN
    why: str = "and a list of one's own is work"


@dataclass(frozen=True)
class Decision:
    """`best` is the cheapest fitted list, `gains` what it saves of the cost of `baseline`, load by load.

    `recommended` is one of the two, and `reason` says why in a line.
    """

    recommended: Candidate
    best: Candidate
    baseline: Candidate
    gains: tuple[float, ...]
    reason: str

    @property
    def gain(self) -> float:
        """The mean over the loads."""
        return sum(self.gains) / len(self.gains)


def decide(
    fitted: Sequence[tuple[Candidate, Sequence[Cost]]],
    baseline: tuple[Candidate, Sequence[Cost]],
    *,
    budget: int,
    noise: Noise,
    unit: str,
    where: str,
) -> Decision:
    """Weighs lists by what they cost on each load: the one of least mean cost, each load in units of the baseline's.

    A baseline over the budget is recommended in no case. `unit` is what is saved, as in `3.0% fewer rows`; `where`
    says what the costs are of.
    """
    before = baseline[1]

    def gains_of(costs: Sequence[Cost]) -> tuple[float, ...]:
        return tuple(1 - after / was for after, was in zip(costs, before, strict=True))

    best, gains = max(((one, gains_of(costs)) for one, costs in fitted), key=lambda found: sum(found[1]))
    gain = sum(gains) / len(gains)
    over = f", which is over the budget of {budget}" if baseline[0].policy.count > budget else ""
    fewer = "more" if gain < 0 else "fewer" if unit in ("rows", "cells") else "less"
    reason = f"{abs(gain):.1%} {fewer} {unit} than {baseline[0].described}{over}, {where}"
    if gain <= noise.share and not over:
        reason = f"no gain worth having: {best.described} takes {abs(gain):.1%} {fewer} {unit}, {where}"
        if gain > 0:
            reason += f": not over {noise.share:.1%}, {noise.why}"
        return Decision(baseline[0], best, baseline[0], gains, reason)
    return Decision(best, best, baseline[0], gains, reason)
