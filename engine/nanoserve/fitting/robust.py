"""One list for several loads: the mixture of them whose fitted list is worst off least.

The regret of a list on a load is its cost there over the cost of that load's own optimum. A list fitted to a mixture
minimises a weighted mean of regrets; the loads it neglects are weighted up and it is fitted again (multiplicative
weights: Freund and Schapire, "Adaptive game playing using multiplicative weights", 1999).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from nanoserve.fitting.histogram import StepsHistogram
from nanoserve.fitting.prices import Cost

T = TypeVar("T")


@dataclass(frozen=True)
class Robust(Generic[T]):
    """The best list found, and its regret on each load: 1.0 is that load's own optimum.

    `weights` are those of the loads, each scaled to an own optimum of 1, in the mixture that it was fitted to.
    `bound`: where the fit is exact, no list has a worst regret below it.
    """

    best: T
    regrets: tuple[float, ...]
    weights: tuple[float, ...]
    bound: float

    @property
    def worst(self) -> float:
        """The largest of the regrets."""
        return max(self.regrets)


def minimax(
    loads: Sequence[StepsHistogram],
    fit: Callable[[StepsHistogram], T],
    cost: Callable[[StepsHistogram, T], Cost],
    *,
    rounds: int = 32,
) -> Robust[T]:
    """Searches the mixtures of `loads` for the one whose `fit` has the least worst regret under `cost`.

    A search, not an optimum: one fit to each load alone, then `rounds` fits from equal weights on; the first of the
    best is returned, and `bound` tells how far from the optimum it can be at most. Deterministic. ValueError without
    a load.
    """
    if not loads:
        raise ValueError("minimax needs at least one load")
    lists = [fit(load) for load in loads]
    own = [cost(load, best) for load, best in zip(loads, lists, strict=True)]

    def regrets_of(best: T) -> tuple[float, ...]:
        return tuple(cost(load, best) / least for load, least in zip(loads, own, strict=True))

    weights = tuple(1.0 / len(loads) for _ in loads)
    bound = 1.0
    found = [Robust(best, regrets_of(best), _only(i, len(loads)), bound) for i, best in enumerate(lists)]
    for turn in range(1, rounds + 1):
        factors = (weight / least for weight, least in zip(weights, own, strict=True))
        best = fit(StepsHistogram.mixture(zip(loads, factors, strict=True)))
        regrets = regrets_of(best)
        # `best` is least in this mean, so every other list has a regret of at least the mean somewhere.
        bound = max(bound, sum(weight * regret for weight, regret in zip(weights, regrets, strict=True)))
        found.append(Robust(best, regrets, weights, bound))
        weights = _reweighted(weights, regrets, turn)
    chosen = min(found, key=lambda robust: robust.worst)
    return Robust(chosen.best, chosen.regrets, chosen.weights, min(bound, chosen.worst))


def _only(at: int, count: int) -> tuple[float, ...]:
    return tuple(float(i == at) for i in range(count))


def _reweighted(weights: Sequence[float], regrets: Sequence[float], turn: int) -> tuple[float, ...]:
    """The loads that are worse off weigh more, by steps that shrink with the root of the turns. Their sum stays 1."""
    least, spread = min(regrets), max(regrets) - min(regrets)
    step = 1.0 / (spread * math.sqrt(turn)) if spread > 0 else 0.0
    grown = [weight * (1.0 + step * (regret - least)) for weight, regret in zip(weights, regrets, strict=True)]
    return tuple(weight / sum(grown) for weight in grown)
