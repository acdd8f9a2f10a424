"""A source to evidence: read, simulated where it holds requests, and cut by time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from nanoserve.fitting import StepsHistogram
from nanoserve.simulate import Simulation, simulate
from nanoserve.step_time import FixedStep, StepTime
from nanoserve.steps import Steps
from nanoserve.workload import Workload
from nanoserve_cli.observed.detect import read_observed
from nanoserve_cli.observed.model import Observed, Sample
from nanoserve_cli.traffic import Traffic, TrafficOptions, load_traffic
from nanoserve_cli.tuning.evidence import Evidence, Load, Part
from nanoserve_cli.units import NS_PER_MS
from nanoserve_cli.workload.resolve import resolve_trace
from nanoserve_cli.workload.source import sha256_of

DEFAULT_HOLDOUT = 0.3
DEFAULT_MAX_BATCH = 256
DEFAULT_STEP = FixedStep(25 * NS_PER_MS)


Weights = dict[int, float]
"""Seconds or steps by rows."""


class NoHoldout(ValueError):
    """A source of which nothing can be held out: nothing in it is later than the rest."""


def gather(
    options: TrafficOptions,
    *,
    max_batch_size: int | None,
    max_model_len: int,
    loads: Sequence[float] = (1.0,),
    holdout: float | None = None,
    step_time: StepTime | None = None,
) -> Evidence:
    """Reads a source and cuts it.

    `max_batch_size` None is the server's own where the source holds it, else 256. `holdout` is the last share of the
    time; None is 0.3 where there is time, else none. `step_time` None is 25 ms.

    Raises TraceError for a source that cannot be read, NoHoldout where a hold-out was asked of a source without time,
    ValueError for what only requests can be asked for, or steps beyond the limits.
    """
    if options.source is None:
        traffic = load_traffic(options, max_model_len)
        limits = (max_batch_size or DEFAULT_MAX_BATCH, max_model_len)
        return _simulated(traffic, None, limits, loads, holdout, step_time or DEFAULT_STEP)
    path = resolve_trace(options.source, options.trace_dir)
    observed = read_observed(path, format=options.format)
    limits = (max_batch_size or observed.max_batch or DEFAULT_MAX_BATCH, max_model_len)
    if observed.workload is not None:
        traffic = load_traffic(options, max_model_len)
        return _simulated(traffic, observed, limits, loads, holdout, step_time or DEFAULT_STEP)
    _check_recorded(options, observed, loads)
    load = _cut_samples(observed, holdout) if observed.steps is None else _cut_steps(observed.steps, holdout)
    _check_limits(observed, load, limits)
    notes = [*_observed_notes(observed), *_assumed(observed, load, limits[0], given=max_batch_size is not None)]
    return Evidence(
        label=path.name,
        kind=observed.kind,
        loads=(load,),
        has_widths=observed.steps is not None,
        max_batch_size=limits[0],
        max_model_len=max_model_len,
        size=_size(observed),
        notes=tuple(notes),
        source_sha256=sha256_of(path),
        observed=observed,
    )


def simulated(workload: Workload, factor: float, max_batch_size: int, step_time: StepTime, holdout: float) -> Load:
    """Requests at `factor` times their rate as steps, cut where the last share of the run's time begins.

    ValueError where nobody decodes, or one side of the cut would have no step.
    """
    faster = scaled(workload, factor)
    run = simulate(faster, max_batch_size, step_time=step_time)
    if not len(run.steps):
        raise ValueError(f"load {factor:g}: none of the {len(workload)} requests takes a decode step")
    before, after, moment = cut(run, holdout)
    if after is not None and not (len(before) and len(after)):
        raise ValueError(f"load {factor:g}: {len(workload)} requests are too few to hold some out: give --holdout 0")
    held = None if after is None else Part.of(after)
    return Load(factor, Part.of(before), held, _inner(before), faster, moment)


def scaled(workload: Workload, factor: float) -> Workload:
    """The same requests, arriving `factor` times as fast."""
    return replace(workload, arrival_ns=(workload.arrival_ns / factor).astype(np.int64))


def cut(run: Simulation, holdout: float) -> tuple[Steps, Steps | None, int]:
    """A run before and after the moment at which its last share of time begins, and that moment in ns.

    A step belongs to the side on which it starts. The second is None where nothing is held out.
    """
    if holdout == 0:
        return run.steps, None, 0
    moment = int((1 - holdout) * run.span_ns)
    step = run.cut_at(moment)
    return run.steps.between(0, step), run.steps.between(step, run.clock.end_step), moment


def cut_samples(samples: Sequence[Sample], moment: float, *, lasting: bool) -> tuple[Weights, Weights]:
    """Weights by rows before and after a moment in seconds. The parts add up to the whole.

    Where samples are `lasting` their weight is the seconds they stand for, and one that goes over the moment is divided
    there; else it is the steps of that second.
    """
    before: Weights = {}
    after: Weights = {}
    for at, rows, weight in samples:
        early = min(max(moment - at, 0.0), weight) if lasting else weight if at < moment else 0.0
        for side, amount in ((before, early), (after, weight - early)):
            if rows and amount > 0:
                side[rows] = side.get(rows, 0.0) + amount
    return before, after


def _simulated(
    traffic: Traffic,
    observed: Observed | None,
    limits: tuple[int, int],
    loads: Sequence[float],
    holdout: float | None,
    step_time: StepTime,
) -> Evidence:
    workload = traffic.workload
    if tuple(loads) != (1.0,) and workload.arrival_ns[-1] == 0:
        raise ValueError("--loads changes nothing where all requests arrive at once: add --request-rate")
    share = DEFAULT_HOLDOUT if holdout is None else holdout
    return Evidence(
        label=traffic.label if traffic.trace is None or traffic.trace.key else Path(traffic.label).name,
        kind="requests" if observed is None else observed.kind,
        loads=tuple(simulated(workload, factor, limits[0], step_time, share) for factor in loads),
        has_widths=True,
        max_batch_size=limits[0],
        max_model_len=limits[1],
        size=(len(workload), "requests"),
        notes=tuple(traffic.notes()),
        source_sha256=None if traffic.trace is None else traffic.trace.sha256,
        traffic=traffic,
        observed=observed,
    )


def _check_recorded(options: TrafficOptions, observed: Observed, loads: Sequence[float]) -> None:
    """ValueError for what can be done with requests alone."""
    for flag, asked in (
        ("--loads", tuple(loads) != (1.0,)),
        ("--limit", options.limit is not None),
        ("--strict", options.strict),
        ("--request-rate", options.request_rate is not None),
        ("--max-len", options.max_len != "reject"),
    ):
        if asked:
            raise ValueError(f"{flag} is of requests, and {observed.path} holds none: it was read as {observed.kind}")


def _check_limits(observed: Observed, load: Load, limits: tuple[int, int]) -> None:
    for what, seen, limit, flag in (
        ("rows", load.most_rows, limits[0], "--max-batch"),
        ("columns", load.most_width, limits[1], "--max-model-len"),
    ):
        if seen > limit:
            raise ValueError(f"{observed.path}: has steps of {seen} {what}, above {limit}: give the server's {flag}")


def _cut_steps(steps: Steps, holdout: float | None) -> Load:
    """A recorded run, cut by the number of its steps: the only clock that it has."""
    share = DEFAULT_HOLDOUT if holdout is None else holdout
    if share == 0:
        return Load(1.0, Part.of(steps), None, _inner(steps))
    parts = _by_number(steps, share)
    if parts is None:
        raise NoHoldout(f"{steps.total_steps} steps are too few to hold {share:g} of them out: give --holdout 0")
    before, after = parts
    return Load(1.0, Part.of(before), Part.of(after), _inner(before))


def _inner(steps: Steps) -> tuple[Part, Part] | None:
    """A run cut at the default share of its step numbers; None where one side would have no step."""
    parts = _by_number(steps, DEFAULT_HOLDOUT)
    return None if parts is None else (Part.of(parts[0]), Part.of(parts[1]))


def _by_number(steps: Steps, share: float) -> tuple[Steps, Steps] | None:
    first, end = int(steps.start_step[0]), int(steps.start_step[-1] + steps.steps[-1])
    at = first + round((end - first) * (1 - share))
    before, after = steps.between(first, at), steps.between(at, end)
    return (before, after) if len(before) and len(after) else None


def _cut_samples(observed: Observed, holdout: float | None) -> Load:
    """Rows over time, cut by time. Without time, NoHoldout where a hold-out was asked for."""
    assert observed.rows is not None
    whole = Part(StepsHistogram.of_rows(dict(observed.rows)), None)
    if observed.samples is None:
        if holdout:
            raise NoHoldout(f"{observed.path}: --holdout {holdout:g} needs time: {observed.untimed}; give --holdout 0")
        return Load(1.0, whole, None)
    lasting = observed.weight_unit == "seconds"
    end = max(sample.seconds + (sample.weight if lasting else 1.0) for sample in observed.samples)
    share = DEFAULT_HOLDOUT if holdout is None else holdout
    outer = _two_parts(observed.samples, (1 - share) * end, lasting=lasting)
    if share == 0 or outer is None:
        if holdout:
            raise NoHoldout(f"{observed.path}: too few samples to hold {holdout:g} of them out: give --holdout 0")
        inner = _two_parts(observed.samples, (1 - DEFAULT_HOLDOUT) * end, lasting=lasting)
        return Load(1.0, whole, None, inner)
    moment = (1 - share) * end
    earlier = [sample for sample in observed.samples if sample.seconds < moment]
    return Load(1.0, *outer, _two_parts(earlier, (1 - DEFAULT_HOLDOUT) * moment, lasting=lasting, until=moment))


def _two_parts(
    samples: Sequence[Sample], moment: float, *, lasting: bool, until: float = float("inf")
) -> tuple[Part, Part] | None:
    """Samples before and after a moment, those that last on past `until` cut there; None where a side is empty."""
    if lasting:
        samples = [one._replace(weight=min(one.weight, until - one.seconds)) for one in samples]
    sides = cut_samples(samples, moment, lasting=lasting)
    if not all(sides):
        return None
    before, after = (Part(StepsHistogram.of_rows(side), None) for side in sides)
    return before, after


def _size(observed: Observed) -> tuple[int, str]:
    """How much there is to go by: samples where they have times, for a line of a log may stand for many steps."""
    if observed.steps is not None:
        return observed.steps.total_steps, "steps"
    if observed.samples is not None:
        return len(observed.samples), "samples"
    return round(observed.total_weight), "steps" if observed.weight_unit == "steps" else "samples"


def _observed_notes(observed: Observed) -> Iterator[str]:
    """What the reader says, what it left out, and what was counted and is not fitted."""
    for skipped in observed.skipped:
        yield f"{skipped.count:,} lines skipped: {skipped.reason} (first at line {skipped.first_line:,})"
    yield from observed.notes
    if observed.mixed:
        modes: dict[str, float] = {}
        for some in observed.mixed:
            modes[some.mode] = modes.get(some.mode, 0.0) + some.weight
        listed = ", ".join(f"{weight:,.0f} of mode {mode}" for mode, weight in modes.items())
        yield f"counted and not fitted, steps with prefill or off the graphs: {listed}"
    if observed.mean_width is not None:
        yield f"mean context of a row: {observed.mean_width:,.0f} tokens"


def _assumed(observed: Observed, load: Load, max_batch_size: int, *, given: bool) -> Iterator[str]:
    if not given and observed.max_batch is None:
        yield f"the largest batch is not in the file: {max_batch_size} is assumed; give the server's --max-batch"
    if given and observed.max_batch not in (None, max_batch_size):
        yield f"the server's own largest batch is {observed.max_batch}: the list is for {max_batch_size}, as asked"
    if load.held is None and observed.samples is None and observed.steps is None:
        yield f"nothing is held out: {observed.untimed}"
