"""What could make a recommended list slower than what is there already: said beside it, a line each."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nanoserve.buckets import CaptureList, Shape
from nanoserve.fitting import StepTimeFit
from nanoserve.step_time import StepTime
from nanoserve_cli.tuning.gather import simulated
from nanoserve_cli.tuning.report import TuneReport

THIN = {"requests": 200, "steps": 1000, "samples": 200}
"""Fewer than this is little to fit a list to."""

UNSEEN_LIMIT = 2.0
"""How much more than the baseline a batch that was never seen may compute before it is said."""


def cautions(report: TuneReport, step_time: StepTime, timed: StepTimeFit | None = None) -> tuple[str, ...]:
    """All of them. A recommended baseline needs only the first two: it is what is there already."""
    lines = [*_thin(report), *_unmeasured(report, timed)]
    if report.decision.recommended is not report.decision.baseline:
        lines += [*_worse_loads(report), *_other_rates(report, step_time), *_unseen(report)]
    return tuple(lines)


def _thin(report: TuneReport) -> Iterator[str]:
    count, what = report.evidence.size
    if count < THIN[what]:
        yield f"thin evidence: {count:,} {what}; {THIN[what]:,} or more would tell a list from chance"


def _unmeasured(report: TuneReport, timed: StepTimeFit | None) -> Iterator[str]:
    """Steps beyond the shapes whose times were measured."""
    if timed is None:
        return
    rows = max(one.load.most_rows for one in report.loads)
    width = max(one.load.most_width for one in report.loads)
    if rows > timed.most_rows or width > timed.most_width:
        yield (
            f"step times were measured up to {timed.most_rows} rows and {timed.most_width} columns, the traffic has "
            f"{rows} and {width}: beyond that the {timed.name} model is a guess"
        )


def _worse_loads(report: TuneReport) -> Iterator[str]:
    """Loads on which a list for all of them loses."""
    worse = [
        f"{-gain:.1%} at load {one.load.factor:g}"
        for one, gain in zip(report.loads, report.decision.gains, strict=True)
        if gain < 0
    ]
    if worse and len(report.loads) > 1:
        other = "; --robust minimax looks at the worst load" if report.search is None else ""
        yield f"it costs more than the {report.decision.baseline.name}: {', '.join(worse)}{other}"


def _other_rates(report: TuneReport, step_time: StepTime) -> Iterator[str]:
    """The same requests at half the lowest rate that was fitted, and at twice the highest, where those lose."""
    workloads = [one.load.workload for one in report.loads]
    factors = [one.load.factor for one in report.loads]
    chosen, baseline = report.decision.recommended, report.decision.baseline
    for at, factor in ((factors.index(min(factors)), 0.5), (factors.index(max(factors)), 2.0)):
        workload = workloads[at]
        if workload is None or not len(workload) or workload.arrival_ns[-1] == 0:
            return
        load = simulated(workload, factor, report.evidence.max_batch_size, step_time, 0)
        scorer = report.objective.scorer(load.fit)
        ours, theirs = (scorer.score(one.policy) for one in (chosen, baseline))
        if ours.cost > theirs.cost:
            rate = factors[at] * factor
            yield (
                f"at load {rate:g} it wastes {ours.waste:.1%}, the {baseline.name} {theirs.waste:.1%}: if that may "
                f"come, fit it too, --loads {','.join(f'{one:g}' for one in sorted({*factors, rate}))}"
            )


def _unseen(report: TuneReport) -> Iterator[str]:
    """The batch that no step had and that fares worst against the baseline, at the median width of the traffic."""
    decision = report.decision
    lists = [one.policy for one in (decision.recommended, decision.baseline)]
    seen = {rows for one in report.loads for part in one.load.parts for rows in part.histogram.rows.tolist()}
    width = _median_width(report)
    worst, line = UNSEEN_LIMIT, None
    for rows in sorted(set(range(1, report.evidence.max_batch_size + 1)) - seen):
        ours, theirs = (one.shape_for(rows, width) for one in lists if not isinstance(one, CaptureList))
        ratio = _price(report, ours) / _price(report, theirs)
        if ratio > worst:
            runs = (f"{rows}x{width}", ours, theirs) if width > 1 else ("it", f"{ours.rows} rows", theirs.rows)
            worst = ratio
            line = (
                f"a batch of {rows} was never seen: {runs[0]} would run as {runs[1]}, where the "
                f"{decision.baseline.name} has {runs[2]}; a larger --prior or --max-pad 0.5 guards against that"
            )
    if line is not None:
        yield line


def _median_width(report: TuneReport) -> int:
    """Of the steps that the first load's list was fitted to; 1 where only rows are looked at."""
    histogram = report.objective.part(report.loads[0].load.fit).histogram
    order = np.argsort(histogram.width)
    reached = histogram.weight[order].cumsum()
    return int(histogram.width[order][np.searchsorted(reached, reached[-1] / 2)])


def _price(report: TuneReport, shape: Shape) -> float:
    return float(report.objective.price(np.array([shape.rows]), np.array([shape.width]))[0])
