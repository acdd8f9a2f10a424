"""One workload through the engine twice, open and bucketed: counts checked against the arithmetic, and the times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from nanoserve.buckets import CaptureList, DecodePolicy, GateError, Shape
from nanoserve.decode import RunnerOptions
from nanoserve.engine import Engine
from nanoserve.gates import CAPTURE_LIMIT, RECOMPILE_LIMIT
from nanoserve.pricing import RunCost, price_run
from nanoserve.workload import Workload
from nanoserve_cli.partings import Partings, find_partings
from nanoserve_cli.replay import Progress, Replay, replay_real, replay_virtual
from nanoserve_cli.stats import Spread
from nanoserve_cli.units import NS_PER_MS

if TYPE_CHECKING:
    from nanoserve.decode.counting import CompileCount
    from nanoserve.decode.graphs import GraphCounts
    from nanoserve.model.decoder import Decoder


class RunUnsound(GateError):
    """A run whose counts are not what the arithmetic says, or whose two modes made different tokens."""


@dataclass(frozen=True)
class EngineSettings:
    """How the engines of a comparison are built. `decoder` None plans without weights.

    `count_compiles` presents the shapes of a run that compiles nothing itself to dynamo afterwards.
    """

    policy: DecodePolicy | CaptureList
    decoder: Decoder | None
    runner: RunnerOptions = field(default_factory=RunnerOptions)
    block_size: int = 16
    num_blocks: int | None = None
    check_inert: bool = False
    allow_partial: bool = False
    audit: bool = False
    count_compiles: bool = True

    def build(self, *, bucketed: bool) -> Engine:
        """An engine for one mode."""
        return Engine.build(
            self.decoder,
            self.policy.max_batch_size,
            self.policy.max_model_len,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            audit=self.audit,
            policy=self.policy if bucketed else None,
            **asdict(self.runner if not bucketed else replace(self.runner, dynamic="off")),
        )


@dataclass(frozen=True)
class ClockSettings:
    """`virtual` steps on a grid of `step_ns`; `real` follows the arrival times, `speedup` times as fast."""

    kind: str = "virtual"
    step_ns: int = 25 * NS_PER_MS
    speedup: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1e-6 <= self.speedup <= 1e6:
            raise ValueError(f"speedup must be from 0.000001 to 1,000,000, got {self.speedup:g}")

    def replay(
        self, engine: Engine, workload: Workload, before_step: Callable[[], object] | None, progress: Progress | None
    ) -> Replay:
        """Runs a workload on this clock."""
        if self.kind == "virtual":
            return replay_virtual(
                engine, workload, step_ns=self.step_ns, seed=self.seed, before_step=before_step, progress=progress
            )
        return replay_real(
            engine, workload, speedup=self.speedup, seed=self.seed, before_step=before_step, progress=progress
        )


@dataclass(frozen=True)
class ModeRun:
    """One mode of a comparison. `compiled` is None where compiles were not counted, the rest where it was not done.

    `policy` is what steps ran under: after a partial capture, the list of the graphs there are. `graphs` is what the
    run itself captured and replayed, `warm_up_graphs` what its warm-up did.
    """

    replay: Replay
    compiled: CompileCount | None
    warm_up_seconds: float | None
    inert_rows: int | None
    policy: DecodePolicy | CaptureList | None = None
    warm_up_graphs: GraphCounts | None = None
    graphs: GraphCounts | None = None


@dataclass(frozen=True)
class Comparison:
    """One workload, open and bucketed. `cost` prices the bucketed run; `partings` is None where no token was made.

    `same_steps` is false only under the real clock, where the two modes meet different arrivals. `eager_partings`
    compares the bucketed tokens with an open run of the eager runner, where another one ran.
    """

    policy: DecodePolicy | CaptureList
    cost: RunCost
    open: ModeRun
    bucketed: ModeRun
    same_steps: bool
    partings: Partings | None
    eager_partings: Partings | None


def falls_back(shapes: int) -> str | None:
    """The reason why so many shapes are given up by torch.compile as it is, or None."""
    return f"{shapes:,} shapes, dynamo keeps {RECOMPILE_LIMIT}" if shapes > RECOMPILE_LIMIT else None


def compare(
    workload: Workload,
    settings: EngineSettings,
    clock: ClockSettings,
    *,
    progress: Callable[[str, int], None] | None = None,
) -> Comparison:
    """Runs `workload` open, then bucketed, and checks what ran against the arithmetic.

    Raises RunUnsound where the plans that ran do not add up to `price_run`, a mode lost a request, the two modes ran
    different steps on one virtual clock; TokensPart where float32 greedy tokens part and the logits are no tie.
    """
    runs = {}
    for mode in ("open", "bucketed"):
        report = None if progress is None else lambda ended, mode=mode: progress(mode, ended)
        runs[mode] = _run(workload, settings, clock, bucketed=mode == "bucketed", progress=report)
    opened, bucketed = runs["open"], runs["bucketed"]
    for name, run in runs.items():
        _check_accounted(name, run.replay)
    cost = price_run(bucketed.replay.steps, bucketed.policy or settings.policy)
    _check_counts(cost, bucketed.replay)
    _check_counts_open(opened.replay)
    same_steps = opened.replay.steps == bucketed.replay.steps
    if clock.kind == "virtual" and not same_steps:
        raise RunUnsound("the open and the bucketed run of one workload took different steps on one virtual clock")
    partings = eager_partings = None
    if settings.decoder is not None:
        part = partial(find_partings, workload, settings.decoder, clock.seed, bucketed.replay.tokens)
        partings = part(opened.replay.tokens)
        if settings.runner.runner != "eager" and clock.kind == "virtual":
            eager = replace(settings, runner=RunnerOptions())
            eager_partings = part(_run(workload, eager, clock, bucketed=False, progress=None).replay.tokens)
    return Comparison(settings.policy, cost, opened, bucketed, same_steps, partings, eager_partings)


def _run(
    workload: Workload, settings: EngineSettings, clock: ClockSettings, *, bucketed: bool, progress: Progress | None
) -> ModeRun:
    if settings.runner.runner == "compiled" and settings.decoder is not None:
        from nanoserve.decode.compiled import quiet_dynamo, reset_dynamo

        reset_dynamo()
        with quiet_dynamo():
            return _run_mode(workload, settings, clock, bucketed=bucketed, progress=progress)
    return _run_mode(workload, settings, clock, bucketed=bucketed, progress=progress)


def _run_mode(
    workload: Workload, settings: EngineSettings, clock: ClockSettings, *, bucketed: bool, progress: Progress | None
) -> ModeRun:
    engine = settings.build(bucketed=bucketed)
    warm_up_seconds = None
    if bucketed and settings.decoder is not None:
        warm_up_seconds = engine.warm_up(
            _shapes_needed(workload, settings, clock), allow_partial=settings.allow_partial
        )
    inert_rows = 0

    def check_inert() -> None:
        nonlocal inert_rows
        from nanoserve.inert import check_step_inert

        inert_rows += check_step_inert(engine)

    warmed = _graph_counts(engine)
    replay = clock.replay(engine, workload, check_inert if settings.check_inert else None, progress)
    done = _graph_counts(engine)
    return ModeRun(
        replay,
        None if settings.decoder is None else _compiled(engine, settings, replay, bucketed=bucketed),
        warm_up_seconds,
        inert_rows if settings.check_inert else None,
        engine.cache.decode_buckets,
        warmed,
        None if done is None or warmed is None else done - warmed,
    )


def _graph_counts(engine: Engine) -> GraphCounts | None:
    runner = getattr(engine.worker, "runner", None)
    return getattr(runner, "counts", None)


def _shapes_needed(workload: Workload, settings: EngineSettings, clock: ClockSettings) -> Sequence[Shape] | None:
    """The shapes a run will present, from planning it first; None (all of them) where the real clock decides."""
    if clock.kind != "virtual":
        return None
    planned = EngineSettings(settings.policy, None, block_size=settings.block_size, num_blocks=settings.num_blocks)
    presented = clock.replay(planned.build(bucketed=True), workload, None, None).presented
    return [shape for shape in presented if shape in set(settings.policy.shapes)]


def _compiled(engine: Engine, settings: EngineSettings, replay: Replay, *, bucketed: bool) -> CompileCount | None:
    """Compiles of the run itself, or else those of a counting pass over the shapes it presented, if asked and few."""
    from nanoserve.decode.compiled import CompiledDecode
    from nanoserve.decode.counting import CompileCount, count_compiles
    from nanoserve.model_worker import ModelWorker

    worker = engine.worker
    assert isinstance(worker, ModelWorker)
    if isinstance(worker.runner, CompiledDecode):
        region = worker.runner.region
        return CompileCount(len(region.distinct), region.compiles, region.recompiles, region.abandoned)
    uncounted = settings.runner.runner == "graphs" or not settings.count_compiles
    if uncounted or (bucketed and len(replay.presented) > CAPTURE_LIMIT):
        return None
    policy = settings.policy if bucketed else None
    return count_compiles(
        worker,
        replay.steps.open_shapes() if not bucketed else replay.presented,
        policy,
        dynamic="off" if bucketed else settings.runner.dynamic,
    )


def _check_counts(cost: RunCost, replay: Replay) -> None:
    """The plans that ran against the closed form: two ways to the same numbers."""
    on_list = tuple((shape, replay.presented.get(shape, 0)) for shape, _ in cost.steps_per_shape)
    ran = (sum(replay.presented.values()), replay.graph_cells, on_list)
    priced = (cost.steps, cost.padded_cells, cost.steps_per_shape)
    if ran != priced:
        raise RunUnsound(f"the plans that ran make {ran[:2]} steps and cells, the arithmetic says {priced[:2]}")


def _check_counts_open(replay: Replay) -> None:
    cells = int(replay.steps.open_cells_each.sum())
    if replay.graph_cells != cells:
        raise RunUnsound(f"the open run computed {replay.graph_cells} cells, its steps hold {cells}")


def _check_accounted(mode: str, replay: Replay) -> None:
    failed = [record for record in replay.requests if record.outcome == "failed"]
    if failed:
        raise RunUnsound(
            f"{len(failed)} of {len(replay.requests)} requests failed in the {mode} run; number {failed[0].index}: "
            f"{failed[0].reason}"
        )
    unended = [record.index for record in replay.requests if record.outcome == "waiting"]
    if unended:
        raise RunUnsound(f"the {mode} run lost {len(unended)} requests, the first is number {unended[0]}")


def step_ratio(comparison: Comparison) -> Spread | None:
    """Bucketed over open step time, step by step; None where the modes ran different steps or nothing was measured."""
    ours, theirs = comparison.bucketed.replay.decode_seconds, comparison.open.replay.decode_seconds
    if not comparison.same_steps or comparison.partings is None:
        return None
    return Spread.of(ours / theirs)
