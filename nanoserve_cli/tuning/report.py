"""Every list scored on every load: data only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from nanoserve.fitting import Robust
from nanoserve.fitting.prices import Cost
from nanoserve_cli.tuning.candidates import (
    COARSE_MULTIPLE,
    Candidate,
    default,
    default_within,
    engine_default,
    named,
    pruned_default,
    server_list,
)
from nanoserve_cli.tuning.decision import Decision, Noise, decide
from nanoserve_cli.tuning.evidence import Evidence, Load
from nanoserve_cli.tuning.fits import Fit, FittedPolicy, Rules, fit, robust
from nanoserve_cli.tuning.scoring import Objective, Score, Scorer

CURVE_LIMIT = 64
"""Sizes up to this are fitted for comparison: a list of more is compared with the largest one fitted."""


LEAST_EVIDENCE = {"requests": 20, "steps": 100, "samples": 20}
"""With fewer than this no fitted list is recommended, whatever it saves."""


@dataclass(frozen=True)
class Entry:
    """One list on one load: judged on the part held out, and on the part that lists are fitted to.

    `rival` is the fitted list of the same size, or of the largest size fitted; `matched` is the fewest graphs with
    which a fitted list costs no more, None where none does. Both where the list is judged.
    """

    candidate: Candidate
    judged: Score
    fit: Score
    rival: Score
    matched: int | None


@dataclass(frozen=True)
class LoadReport:
    """One load: the fit to it, every list of others, and what is proposed."""

    load: Load
    fit: Fit
    others: tuple[Entry, ...]
    proposals: tuple[Entry, ...]

    @property
    def best(self) -> Entry:
        """The proposal that costs least where it is judged."""
        return min(self.proposals, key=lambda entry: entry.judged.cost)


@dataclass(frozen=True)
class Shared:
    """A list, and what it costs on every load where that is judged."""

    candidate: Candidate
    scores: tuple[Score, ...]

    @property
    def costs(self) -> list[Cost]:
        """In the objective's unit."""
        return [score.cost for score in self.scores]


@dataclass(frozen=True)
class TuneReport:
    """Everything `tune` found.

    `shared` are the lists fitted to all loads at once, none where there is one load; `across` what they are held
    against: the baseline, and where there are several loads each one's own best. `search` is that of the minimax.
    """

    evidence: Evidence
    objective: Objective
    rules: Rules
    loads: tuple[LoadReport, ...]
    shared: tuple[Shared, ...]
    across: tuple[Shared, ...]
    search: Robust[FittedPolicy] | None
    decision: Decision

    @property
    def runner_up(self) -> tuple[Candidate, float] | None:
        """The cheapest complete list of others within the budget, and its cost over that of the best fitted list.

        The mean over the loads, where they are judged; None where there is none.
        """
        fitted = [entry for one in self.loads for entry in one.proposals]
        best = next((one.costs for one in self.shared if one.candidate is self.decision.best), None)
        ours = best or [entry.judged.cost for entry in fitted if entry.candidate is self.decision.best]
        found = []
        for entry in self.loads[0].others:
            one = entry.candidate
            theirs = [other.judged.cost for load in self.loads for other in load.others if other.candidate == one]
            # What is pruned to a load is another list on each.
            if one.completed and one.policy.count <= self.rules.budget and len(theirs) == len(ours):
                found.append((one, sum(a / b for a, b in zip(theirs, ours, strict=True)) / len(ours)))
        return min(found, key=lambda pair: pair[1], default=None)


def report(
    evidence: Evidence,
    objective: Objective,
    rules: Rules,
    *,
    prior: float | None,
    how: str,
    noise: Noise,
    engine: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> TuneReport:
    """Fits and scores everything. `how` is `mean` or `minimax`; `engine` is one whose own list may be the baseline."""
    say = progress or (lambda message: None)
    loads = []
    for load in evidence.loads:
        say(f"fitting lists of up to {max(CURVE_LIMIT, rules.budget)} graphs to load {load.factor:g}")
        loads.append(_of_load(load, evidence, objective, rules, prior))
    judges = [objective.scorer(load.judged) for load in evidence.loads]
    base = _shared(baseline(evidence, objective, rules, engine), judges)
    shared: list[Shared] = []
    search = None
    if len(loads) > 1:
        say(f"fitting one list to all {len(loads)} loads")
        lists, search = robust(evidence.loads, objective, rules, how, prior, evidence.size[0])
        shared = [_shared(one, judges) for one in lists]
    fitted = shared or [_shared(entry.candidate, judges) for entry in loads[0].proposals]
    decision = decide(
        [(one.candidate, one.costs) for one in fitted],
        (base.candidate, base.costs),
        budget=rules.budget,
        noise=noise,
        unit=objective.name,
        where=evidence.where,
    )
    own = (_shared(one.best.candidate, judges) for one in loads) if shared else ()
    if too_thin(evidence) and decision.recommended is decision.best:
        decision = without_evidence(decision, evidence, objective, rules)
    return TuneReport(evidence, objective, rules, tuple(loads), tuple(shared), (base, *own), search, decision)


def too_thin(evidence: Evidence) -> bool:
    """Whether there is too little to recommend any fitted list."""
    count, what = evidence.size
    return count < LEAST_EVIDENCE[what]


def without_evidence(decision: Decision, evidence: Evidence, objective: Objective, rules: Rules) -> Decision:
    """The baseline, or our default where that is over the budget; as it was where not even the default is within."""
    limits = objective.name, evidence.max_batch_size, rules.widths.maximum
    safe = decision.baseline
    if safe.policy.count > rules.budget:
        safe = default_within(*limits, rules.budget)
    if safe.policy.count > rules.budget:
        return decision
    count, what = evidence.size
    reason = f"{count:,} {what} tell no list from chance: {LEAST_EVIDENCE[what]:,} or more would begin to"
    return replace(decision, recommended=safe, reason=reason)


def baseline(evidence: Evidence, objective: Objective, rules: Rules, engine: str | None) -> Candidate:
    """What a fitted list has to beat: the server's own list where its log holds it, else that of the engine it is for,
    else the finest of our defaults within the budget. Completed, so that it covers what the fitted list covers.
    """
    limits = evidence.max_batch_size, rules.widths.maximum
    if evidence.server_sizes:
        return server_list(evidence.server_sizes, *limits)[-1]
    own = None if engine is None or objective.name != "rows" else engine_default(engine, *limits)
    return own or default_within(objective.name, *limits, rules.budget)


def _shared(candidate: Candidate, judges: Sequence[Scorer]) -> Shared:
    return Shared(candidate, tuple(judge.score(candidate.policy) for judge in judges))


def _of_load(load: Load, evidence: Evidence, objective: Objective, rules: Rules, prior: float | None) -> LoadReport:
    fitted = fit(load, objective, rules, prior, evidence.size[0], CURVE_LIMIT)
    judge = _Judge(load, objective, fitted)
    return LoadReport(
        load,
        fitted,
        tuple(judge.entry(one) for one in _others(load, evidence, objective, rules)),
        tuple(judge.entry(one) for one in fitted.candidates(rules.budget)),
    )


def _others(load: Load, evidence: Evidence, objective: Objective, rules: Rules) -> Iterator[Candidate]:
    """The server's own list first, our defaults, then every named ladder."""
    limits = evidence.max_batch_size, rules.widths.maximum
    if evidence.server_sizes:
        yield from server_list(evidence.server_sizes, *limits)
    yield default(objective.name, *limits)
    yield pruned_default(objective.name, *limits, load.fit)
    within = default_within(objective.name, *limits, rules.budget)
    if within.policy.count < default(objective.name, *limits).policy.count:
        yield within
    width = rules.widths.maximum
    multiples = {width} if objective.name == "rows" else {min(COARSE_MULTIPLE, width), width}
    for multiple in sorted(multiples):
        yield from named(*limits, multiple)


class _Judge:
    """Scores lists on one load; the fitted lists of every size are priced once."""

    def __init__(self, load: Load, objective: Objective, fitted: Fit) -> None:
        self._judged, self._fit = objective.scorer(load.judged), objective.scorer(load.fit)
        self._curve = fitted.curve
        self._scores = [self._judged.score(point.best) for point in fitted.curve.points]

    def entry(self, candidate: Candidate) -> Entry:
        """A list beside the fitted one of its size."""
        judged = self._judged.score(candidate.policy)
        # Off a list a step runs unpadded, so a list that holds little looks cheap: it has no match.
        matching = (
            point.graphs
            for point, score in zip(self._curve.points, self._scores, strict=True)
            if score.cost <= judged.cost and not judged.off_list
        )
        size = min(max(candidate.policy.count, self._curve.fewest), self._curve.most)
        rival = self._scores[size - self._curve.fewest]
        return Entry(candidate, judged, self._fit.score(candidate.policy), rival, next(matching, None))
