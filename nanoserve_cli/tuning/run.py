"""`nanoserve tune` as one call: evidence, fits, what they would settle at, and what is recommended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from nanoserve.fitting import Axis, StepTimeFit, fit_step_time, price_cells, price_rows, price_time
from nanoserve.ladders import ROW_LADDERS, completed
from nanoserve.step_time import FixedStep, StepTime
from nanoserve_cli.step_times_file import read_step_times
from nanoserve_cli.traffic import TrafficOptions
from nanoserve_cli.tuning.candidates import DEFAULT_MULTIPLE, Candidate, server_list
from nanoserve_cli.tuning.cautions import cautions
from nanoserve_cli.tuning.decision import LEAST_GAIN, Noise, decide
from nanoserve_cli.tuning.evidence import Evidence
from nanoserve_cli.tuning.feedback import Settled, settle
from nanoserve_cli.tuning.fits import Rules, fit
from nanoserve_cli.tuning.gather import DEFAULT_STEP, gather
from nanoserve_cli.tuning.report import CURVE_LIMIT, TuneReport, report
from nanoserve_cli.tuning.scoring import Objective
from nanoserve_cli.workload.errors import did_you_mean

DEFAULT_GRAPHS = 36
MOST_MINUTES = 15


@dataclass(frozen=True)
class TuneSettings:
    """What to tune for.

    At most one of `graphs` and `target` says how many graphs; neither is as many as the server's own list has where the
    source holds it, else `DEFAULT_GRAPHS`. `target` is `waste:5%` or `match:NAME`, a row ladder of another system.
    `objective` None is cells where widths are known and the `engine` takes them, else rows. `step_time` None is 25 ms;
    `step_times` is a file that `bench --out` writes. `verify` says that requests will be run on the engine.
    """

    traffic: TrafficOptions
    max_batch_size: int | None = None
    max_model_len: int = 8192
    graphs: int | None = None
    target: str | None = None
    objective: str | None = None
    engine: str | None = None
    takes_widths: bool = True
    step_time: StepTime | None = None
    step_times: Path | None = None
    row_granularity: int = 1
    width_granularity: int = 128
    keep_rows: tuple[int, ...] = ()
    max_pad: float | None = None
    holdout: float | None = None
    loads: tuple[float, ...] = (1.0,)
    robust: str = "mean"
    prior: float | None = None
    verify: bool = False

    @property
    def clock(self) -> StepTime:
        """What a simulated step lasts."""
        return self.step_time or DEFAULT_STEP


@dataclass(frozen=True)
class Tuned:
    """The report, the model of step times where one was fitted, the lists under their own cost where that moves, and
    what could make the recommended list slower than what is there.
    """

    report: TuneReport
    step_time_fit: StepTimeFit | None
    settled: tuple[Settled, ...]
    cautions: tuple[str, ...]


def tune(settings: TuneSettings, progress: Callable[[str], None] | None = None) -> Tuned:
    """Everything but the proof on the engine. Raises TraceError, and ValueError for what does not go together."""
    measured = None if settings.step_times is None else read_step_times(settings.step_times)
    evidence = gather(
        settings.traffic,
        max_batch_size=settings.max_batch_size,
        max_model_len=settings.max_model_len,
        loads=settings.loads,
        holdout=settings.holdout,
        step_time=settings.step_time,
    )
    if settings.verify and evidence.traffic is None:
        raise ValueError(f"--verify needs requests to run, and {evidence.label} was read as {evidence.kind}")
    timed = None if measured is None else fit_step_time(measured, evidence.max_batch_size)
    objective = _objective(settings, evidence, timed)
    rules, prior = _rules(settings, evidence, objective)
    _check_work(objective, rules, len(evidence.loads))
    found = report(
        evidence,
        objective,
        rules,
        prior=prior,
        how=settings.robust,
        noise=_noise(objective, timed),
        engine=settings.engine,
        progress=progress,
    )
    settled: tuple[Settled, ...] = ()
    if evidence.traffic is not None and not isinstance(settings.clock, FixedStep):
        settled = settle(evidence, _finalists(found), settings.clock)
        found = _resettled(found, settled, _noise(objective, timed))
    return Tuned(found, timed, settled, (*_of_target(settings, found), *cautions(found, settings.clock, timed)))


def _check_work(objective: Objective, rules: Rules, loads: int) -> None:
    """ValueError for a grid of candidates whose staircases would take more than a quarter of an hour here.

    A solve is about `rows^2 widths^2 graphs / 4` additions, a load takes five of them, a core does a billion a second.
    """
    if objective.name == "rows":
        return
    rows, widths = rules.rows.allowed.size, rules.widths.allowed.size
    minutes = rows**2 * widths**2 * max(rules.budget, CURVE_LIMIT) / 4 * 5 * loads / 1e9 / 60
    if minutes > MOST_MINUTES:
        raise ValueError(
            f"{rows:,} row by {widths:,} width buckets to choose from take about {minutes:,.0f} minutes to fit: raise "
            "--width-granularity or --row-granularity, or lower the limits"
        )


def _of_target(settings: TuneSettings, found: TuneReport) -> Iterator[str]:
    """A target is met on what is fitted: what the list does on the part held out is said beside it."""
    load = found.evidence.loads[0]
    if settings.target is not None and load.held is not None:
        policy = found.decision.recommended.policy
        on_fit, held = (found.objective.scorer(part).score(policy).waste for part in (load.fit, load.held))
        yield f"--target {settings.target} is met on what is fitted: waste {on_fit:.1%} there, {held:.1%} held out"


def _objective(settings: TuneSettings, evidence: Evidence, timed: StepTimeFit | None) -> Objective:
    """What is minimised. ValueError for cells or time of rows alone, and for time without a model of it."""
    name = settings.objective or ("cells" if evidence.has_widths and settings.takes_widths else "rows")
    if name != "time" and settings.step_time is not None and evidence.traffic is None:
        raise ValueError(f"--step-time is of requests, and {evidence.label} holds none: it was read as {evidence.kind}")
    if name == "rows":
        return Objective("rows", price_rows)
    if not evidence.has_widths:
        raise ValueError(f"--objective {name} needs widths, and {evidence.kind} holds rows only: use --objective rows")
    if name == "cells":
        return Objective("cells", price_cells)
    model = settings.step_time if timed is None else timed.model
    if model is None or isinstance(model, FixedStep):
        raise ValueError("--objective time needs a cost: --step-times FILE of a bench, or --step-time linear:T0,A,B")
    return Objective("time", price_time(model))


def _noise(objective: Objective, timed: StepTimeFit | None) -> Noise:
    if objective.name != "time" or timed is None or timed.error <= LEAST_GAIN:
        return Noise()
    return Noise(timed.error, "by which the model of step times is off")


def _rules(settings: TuneSettings, evidence: Evidence, objective: Objective) -> tuple[Rules, float | None]:
    """The rules, and the prior: a target is met with the one that was chosen for it."""
    limits = evidence.max_batch_size, evidence.max_model_len
    own = server_list(evidence.server_sizes, *limits)[-1].policy.count if evidence.server_sizes else DEFAULT_GRAPHS
    rules = Rules(
        Axis(limits[0], settings.row_granularity, settings.keep_rows, settings.max_pad),
        Axis(limits[1], min(settings.width_granularity, limits[1])),
        settings.graphs or own,
    )
    if settings.target is None:
        return rules, settings.prior
    found, prior = _graphs_for(settings, evidence, objective, replace(rules, budget=CURVE_LIMIT))
    return replace(rules, budget=found), prior


def _graphs_for(settings: TuneSettings, evidence: Evidence, objective: Objective, rules: Rules) -> tuple[int, float]:
    """The fewest graphs that meet a target on what is fitted, and the prior they were fitted with."""
    assert settings.target is not None
    scorer = objective.scorer(evidence.loads[0].fit)
    kind, _, value = settings.target.partition(":")
    if kind == "waste":
        least = scorer.open / (1 - _share(value, settings.target))
    elif kind == "match":
        if value not in ROW_LADDERS:
            raise ValueError(f"--target match: {value!r} is no row ladder: {did_you_mean(value, ROW_LADDERS)}")
        multiple = rules.widths.maximum if objective.name == "rows" else DEFAULT_MULTIPLE
        other = completed(value, f"multiple:{multiple}", evidence.max_batch_size, rules.widths.maximum)
        least = scorer.score(other).cost
    else:
        raise ValueError(f"--target takes waste:5% or match:NAME, got {settings.target!r}")
    fitted = fit(evidence.loads[0], objective, rules, settings.prior, evidence.size[0], CURVE_LIMIT)
    scores = [scorer.score(point.best) for point in fitted.curve.points]
    for point, score in zip(fitted.curve.points, scores, strict=True):
        if score.cost <= least:
            return point.graphs, fitted.prior
    raise ValueError(
        f"--target {settings.target}: the best list of {fitted.curve.most} graphs wastes {scores[-1].waste:.1%}, more "
        f"than the {1 - scorer.open / least:.1%} asked for"
    )


def _share(text: str, target: str) -> float:
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise ValueError(f"--target waste takes a share such as 5%, got {target!r}")
    return value


def _finalists(found: TuneReport) -> list[Candidate]:
    """The lists between which the feedback decides, the baseline last."""
    fitted = [one.candidate for one in found.shared] or [entry.candidate for entry in found.loads[0].proposals]
    return [*fitted, found.decision.baseline]


def _resettled(found: TuneReport, settled: tuple[Settled, ...], noise: Noise) -> TuneReport:
    """The decision anew, by the time of a token under each list's own cost."""
    *fitted, baseline = [
        (one, [each.ms_per_token for each in settled if each.candidate is one]) for one in _finalists(found)
    ]
    decision = decide(
        fitted,
        baseline,
        budget=found.rules.budget,
        noise=noise,
        unit="time a token",
        where=f"under its own cost, {found.evidence.where}",
    )
    return replace(found, decision=decision)
