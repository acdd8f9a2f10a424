"""The optimal lists of a part of the traffic: for every size, with a prior, and one list for several loads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nanoserve.buckets import DecodeBuckets, StaircaseBuckets
from nanoserve.fitting import Axis, Curve, Fitted, Robust, StepsHistogram, fit_product, fit_rows, fit_staircase, minimax
from nanoserve.fitting.prices import Cost, IntArray
from nanoserve_cli.tuning.candidates import FITTED, Candidate
from nanoserve_cli.tuning.evidence import Load, Part
from nanoserve_cli.tuning.scoring import Objective

PRIORS = (1e-4, 1e-2, 3e-2, 1e-1)
"""Shares of an even prior that are tried. The least does little more than place the graphs that the traffic leaves."""

PREMIUM = 0.05
"""What a prior may cost on the end of the fit part: the largest of `PRIORS` within it is taken. A list without one is
best until the load moves; at twice the rate it then pads several times as much as a plain ladder would."""

UNTIMED_PRIOR = 1e-2
"""Where the source has no time to choose one by."""

PSEUDO_COUNT = 10
"""A prior weighs as much as so many requests, steps or samples at least: of a few nothing much can be learnt."""

FittedPolicy = DecodeBuckets | StaircaseBuckets


@dataclass(frozen=True)
class Rules:
    """What a fitted list must keep: the two axes' rules, and how many graphs it may have."""

    rows: Axis
    widths: Axis
    budget: int


@dataclass(frozen=True)
class Fit:
    """The lists fitted to one histogram, and the prior that went into it.

    `curve` has the optimum for every number of graphs: row ladders under the objective `rows`, else staircases.
    `product` is the best product found within the budget and `gap` its cost over the optimum's; None under `rows`.
    """

    curve: Curve[FittedPolicy]
    product: FittedPolicy | None
    gap: float | None
    prior: float

    def candidates(self, budget: int) -> list[Candidate]:
        """What is proposed at a budget: the optimum, and the product beside it."""
        best = self.curve.at(min(budget, self.curve.most)).best
        if self.product is None:
            return [Candidate("fitted list", FITTED, best, "fitted", "one")]
        return [
            Candidate("fitted staircase", FITTED, best, "fitted", "staircase"),
            Candidate("fitted product", FITTED, self.product, "fitted product", ""),
        ]


def fit(load: Load, objective: Objective, rules: Rules, prior: float | None, size: int, most: int) -> Fit:
    """Fits a load's first part for every size up to `most`, and at the budget. What is held out is never looked at.

    `prior` None chooses one, for `size` requests, steps or samples of evidence. Raises what the solvers raise.
    """
    share = chosen_prior(load, objective, rules, prior, size)
    return _fit(objective.part(load.fit).histogram, objective, rules, share, max(most, rules.budget))


def chosen_prior(load: Load, objective: Objective, rules: Rules, prior: float | None, size: int) -> float:
    """`prior`, or else the one that `choose_prior` chooses, if that weighs as much as `PSEUDO_COUNT` of `size`."""
    return max(choose_prior(load, objective, rules), PSEUDO_COUNT / size) if prior is None else prior


def choose_prior(load: Load, objective: Objective, rules: Rules) -> float:
    """The largest share of `PRIORS` whose list costs at most `PREMIUM` more than the best of them where that is judged.

    They are fitted to the beginning of the fit part and judged on its end.
    """
    if load.inner is None:
        return UNTIMED_PRIOR
    before, after = load.inner
    seen, scorer = objective.part(before).histogram, objective.scorer(after)
    costs = [scorer.score(_best(with_prior(seen, share, objective, rules), objective, rules)).cost for share in PRIORS]
    return max(share for share, cost in zip(PRIORS, costs, strict=True) if cost <= (1 + PREMIUM) * min(costs))


def with_prior(histogram: StepsHistogram, share: float, objective: Objective, rules: Rules) -> StepsHistogram:
    """`histogram.with_prior` with all sizes rounded up to what may be a bucket: to a fit that is the same, and small.

    Where only rows are looked at the prior is over rows alone.
    """
    if share == 0:
        return histogram
    widths = np.ones(1, np.int64) if objective.name == "rows" else rules.widths.allowed
    tops = rules.rows.allowed, widths
    sizes = np.multiply.outer(*(np.diff(axis, prepend=0) for axis in tops)).ravel()
    even = StepsHistogram(
        np.repeat(tops[0], tops[1].size),
        np.tile(tops[1], tops[0].size),
        sizes * (share * histogram.total / sizes.sum()),
    )
    return StepsHistogram.mixture([(_rounded(histogram, tops), 1), (even, 1)])


def _rounded(histogram: StepsHistogram, tops: tuple[IntArray, IntArray]) -> StepsHistogram:
    return histogram.bucket_rows(tops[0].tolist()).bucket_widths(tops[1].tolist())


def robust(
    loads: Sequence[Load], objective: Objective, rules: Rules, how: str, prior: float | None, size: int
) -> tuple[list[Candidate], Robust[FittedPolicy] | None]:
    """One list for several loads: `mean` fits their mixture, `minimax` their worst regret.

    `prior` None chooses one as `fit` does, on the mixture. Of that both the staircase and the product are proposed.
    """
    mixed = mixture(loads, objective)
    if how == "mean":
        both = fit(mixed, objective, rules, prior, size, rules.budget).candidates(rules.budget)
        return [
            replace(one, rows_ladder="all loads", name=one.name.replace("fitted", "mean of loads,")) for one in both
        ], None
    share = chosen_prior(mixed, objective, rules, prior, size)
    # The prior is part of each load here, so that every load's own optimum is one under the same cost.
    found = minimax(
        [with_prior(objective.part(one.fit).histogram.normalised(), share, objective, rules) for one in loads],
        lambda histogram: _best(histogram, objective, rules),
        lambda histogram, best: _cost(histogram, best, objective),
    )
    return [Candidate("minimax of loads", FITTED, found.best, "all loads", "minimax")], found


def mixture(loads: Sequence[Load], objective: Objective) -> Load:
    """Several loads as one, each with an open price of 1, so that a busy one counts for no more than a quiet one."""

    def mixed(parts: Sequence[Part]) -> Part:
        seen = [objective.part(part).histogram for part in parts]
        return Part(StepsHistogram.mixture([(one, 1 / one.priced(objective.price)) for one in seen]), None)

    inner = [one.inner for one in loads if one.inner is not None]
    halves = (mixed([one[0] for one in inner]), mixed([one[1] for one in inner])) if len(inner) == len(loads) else None
    return Load(1.0, mixed([one.fit for one in loads]), None, halves)


def _cost(histogram: StepsHistogram, policy: FittedPolicy, objective: Objective) -> Cost:
    return histogram.presented(policy).priced(objective.price)


def _fit(seen: StepsHistogram, objective: Objective, rules: Rules, prior: float, most: int) -> Fit:
    histogram = with_prior(seen, prior, objective, rules)
    curve = _curve(histogram, objective, rules, most)
    if objective.name == "rows":
        return Fit(curve, None, None, prior)
    bound = curve.at(min(rules.budget, curve.most)).cost
    product = fit_product(histogram, rules.rows, rules.widths, rules.budget, objective.price, bound=bound)
    return Fit(curve, product.best, product.gap, prior)


def _best(histogram: StepsHistogram, objective: Objective, rules: Rules) -> FittedPolicy:
    curve = _curve(histogram, objective, rules, rules.budget)
    return curve.at(min(rules.budget, curve.most)).best


def _curve(histogram: StepsHistogram, objective: Objective, rules: Rules, most: int) -> Curve[FittedPolicy]:
    if objective.name != "rows":
        staircases = fit_staircase(histogram, rules.rows, rules.widths, most, objective.price)
        return Curve(staircases.fewest, tuple(Fitted(f.best, f.cost, f.graphs) for f in staircases.points))
    ladders = fit_rows(histogram, rules.rows, min(most, rules.rows.maximum), objective.price)
    width = rules.widths.maximum
    return Curve(
        ladders.fewest,
        tuple(
            Fitted(DecodeBuckets(rules.rows.maximum, width, rows=f.best, widths=(width,)), f.cost, f.graphs)
            for f in ladders.points
        ),
    )
