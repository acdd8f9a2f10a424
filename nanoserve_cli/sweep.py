"""What `nanoserve sweep` computes: every priced point compiled, billed and run where asked, as rows of one file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoserve.buckets import Shape
from nanoserve.extras import has_engine, import_engine
from nanoserve_cli.columns import RUN_COLUMNS, SCHEMA_VERSION
from nanoserve_cli.csv_file import append_row, parse_row, read_rows, write_rows
from nanoserve_cli.executors import Executor
from nanoserve_cli.grid import Point, SweepSpec
from nanoserve_cli.planning import time_plans
from nanoserve_cli.pricer import Priced
from nanoserve_cli.provenance import code_sha256, provenance
from nanoserve_cli.records import cost_columns

if TYPE_CHECKING:
    from nanoserve_cli.sweep_engine import SweepEngine

COMPILE_LIMIT, COMPILE_MIB_LIMIT = 64, 4096
"""So many distinct shapes, and none that needs more, are compiled without being asked for: seconds on two cores."""
BLOCK_SIZE = 16
PLANNED_STEPS = 32
PLANNED_TABLE_CELLS = 2**23

Row = dict[str, Any]
Identity = tuple[str, str, int, str]
"""What makes a row of an earlier run this point's: its configuration, its trace, the columns, and the code."""


@dataclass(frozen=True)
class Outcome:
    """What became of the point at `index` of the grid: its row, or why there is none."""

    index: int
    point: Point
    row: Row | None
    error: str | None = None


class Sweep:
    """One sweep over priced points: `kept` are rows of an earlier run, `todo` the points that have none.

    Without torch the columns that need it stay empty. Raises what `choose_model` raises, ImportError where torch is
    asked for and absent.
    """

    def __init__(
        self, spec: SweepSpec, priced: Sequence[Priced], reusable: Mapping[Identity, Row] | None = None
    ) -> None:
        self.spec = spec
        self.priced = priced
        self.engine = _engine_of(spec)
        self._why_uncounted = None if spec.measure_compiles is not None else self._why_not_compiled()
        asked = self._why_uncounted is None if spec.measure_compiles is None else spec.measure_compiles
        self.counts_compiles = self.engine is not None and asked
        self.identities = [self._identity(one) for one in priced]
        found = {index: (reusable or {}).get(identity) for index, identity in enumerate(self.identities)}
        self.kept = {index: row for index, row in found.items() if row is not None}
        self.todo = [index for index, row in found.items() if row is None]
        self._plan_us: dict[tuple[int, int], float | None] = {}
        self._base = self._same_for_all()

    def notes(self) -> Iterator[str]:
        """What will not be measured, and why, a line each."""
        if self.engine is None:
            if not self.spec.host_only:
                yield "no torch here: compiles and MiB are not measured (pip install 'nanoserve[engine]')"
            return
        for refusal in filter(None, map(self.engine.refusal, self.spec.max_model_len)):
            yield f"MiB are not predicted: {refusal}"
        if self._why_uncounted is not None:
            yield f"compiles are not counted: {self._why_uncounted}"

    @property
    def to_compile(self) -> set[Shape]:
        """The distinct shapes of what is to do, where compiles are counted."""
        return _shapes_used(self.priced[index] for index in self.todo) if self.counts_compiles else set()

    def compile(self, report: Callable[[int], None]) -> None:
        """Counts what each of `to_compile` costs dynamo, once for the whole sweep. `report` is told how many are."""
        if self.engine is not None and (shapes := self.to_compile):
            self.engine.compile(shapes, report)

    def run(self, executor: Executor, tell: Callable[[str], None]) -> Iterator[Outcome]:
        """The outcome of every point that is to do, as it is finished. `tell` is told of every worker lost."""
        if self.engine is None or not self.spec.measure:
            for index in self.todo:
                yield Outcome(index, self.priced[index].point, self._row(index, {}))
            return
        from nanoserve_cli.sweep_engine import Task, measure_point

        todo = [self.priced[index] for index in self.todo]
        tasks = [Task(one.point, self.engine.measurement, one.cost, one.trace_sha256) for one in todo]
        for done in executor.run(measure_point, tasks, tell):
            index = self.todo[done.index]
            row = None if done.value is None else self._row(index, done.value)
            yield Outcome(index, self.priced[index].point, row, done.error)

    def _why_not_compiled(self) -> str | None:
        """Why compiles are not counted unless it is asked for; None where they are cheap, or cannot be."""
        shapes = _shapes_used(self.priced)
        if self.engine is None or not shapes:
            return None
        if len(shapes) > COMPILE_LIMIT:
            return f"{len(shapes):,} distinct shapes (--measure-compiles does)"
        if refusal := self.engine.refusal(max(shape.width for shape in shapes)):
            return refusal
        mib = self.engine.step_mib(shapes)
        return f"a step of {mib:,.0f} MiB (--measure-compiles does)" if mib > COMPILE_MIB_LIMIT else None

    def _identity(self, one: Priced) -> Identity:
        engine = None if self.engine is None else self.engine.identity
        config = one.point.config_hash(engine=engine, compiles=self.counts_compiles)
        return (config, one.trace_sha256 or "", SCHEMA_VERSION, code_sha256())

    def _same_for_all(self) -> Row:
        device = None if self.engine is None else self.engine.choice.device
        base = provenance(seed=self.spec.seed, device=device, trace_key=None, trace_sha256=None)
        if self.engine is not None:
            base |= {"model": self.spec.measurement.model, "dtype": self.engine.choice.dtype}
        if self.spec.measure:
            base["runner"] = self.spec.measurement.runner
        return base

    def _row(self, index: int, measured: Mapping[str, Any]) -> Row:
        """The whole row of one point, `measured` (a run's columns) included."""
        one = self.priced[index]
        policy, trace, requests = one.point.policy(), one.traffic.trace, len(one.traffic.workload)
        row = self._base | {
            "trace_key": trace and trace.key,
            "trace_sha256": one.trace_sha256,
            "config_hash": self.identities[index][0],
            "workload": one.workload,
            "policy": policy.render(),
            **one.point.settings(),
            **cost_columns(one.cost),
            "requests": requests,
            "finished": requests,
            **dict.fromkeys(("rejected", "failed", "preemptions"), 0),
            **self._plan_columns(one.point),
            **{name: value for name, value in measured.items() if value is not None},
        }
        if self.engine is not None:
            row |= self.engine.columns(policy, one.cost)
        return {name: row.get(name) for name in RUN_COLUMNS}

    def _plan_columns(self, point: Point) -> Row:
        """Host time to plan a step under the point's policy; empty where its slot table would be more than 64 MiB."""
        limits = point.max_batch_size, point.max_model_len
        if limits[0] * limits[1] > PLANNED_TABLE_CELLS:
            return {}
        policy, rows, steps = point.policy(), min(3, limits[0]), min(PLANNED_STEPS, limits[1] - 1)
        if limits not in self._plan_us:
            self._plan_us[limits] = time_plans(rows, steps, policy, BLOCK_SIZE, bucketed=False)
        bucketed = time_plans(rows, steps, policy, BLOCK_SIZE, bucketed=True)
        return {"plan_us_open": self._plan_us[limits], "plan_us_bucketed": bucketed}


def _shapes_used(priced: Iterable[Priced]) -> set[Shape]:
    return {shape for one in priced for shape, _ in one.cost.steps_per_shape}


def _engine_of(spec: SweepSpec) -> SweepEngine | None:
    """What measures: None where that is not asked for, or is by default and there is no torch."""
    if spec.host_only or not (has_engine() or spec.measure or spec.measure_compiles):
        return None
    engine: SweepEngine = import_engine("nanoserve_cli.sweep_engine", "measuring").SweepEngine(
        spec.measurement, spec.seed, runs=spec.measure
    )
    return engine


def reusable_rows(path: Path) -> dict[Identity, Row]:
    """The whole rows of an earlier file by their identity. Raises RecordsError."""
    rows = [parse_row(row, path) for row in read_rows(path)[0]]
    return {
        (row["config_hash"] or "", row["trace_sha256"] or "", row["schema_version"], row["code_sha256"] or ""): row
        for row in rows
    }


def write_as_finished(path: Path, outcomes: Iterable[Outcome], sweep: Sweep, *, anew: bool) -> Iterator[Outcome]:
    """Adds each row to the file the moment it is there, and puts the file in the grid's order at the end.

    The first row replaces a file that is to be made `anew`. Else rows of other sweeps stay, behind this sweep's.
    """
    rows = dict(sweep.kept)
    for outcome in outcomes:
        if outcome.row is not None:
            rows[outcome.index] = outcome.row
            if anew and len(rows) == 1:
                write_rows(path, [outcome.row])
            else:
                append_row(path, outcome.row)
        yield outcome
    if rows:
        mine = {sweep.identities[index][0] for index in rows}
        others = [row for row in read_rows(path)[0] if row["config_hash"] not in mine]
        write_rows(path, [*(rows[index] for index in sorted(rows)), *others])
