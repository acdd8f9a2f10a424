"""What `nanoserve sweep` computes: every point of a grid priced, and compiled, billed and run where asked, as rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanoserve.buckets import Shape
from nanoserve.extras import has_engine
from nanoserve_cli.columns import SCHEMA_VERSION
from nanoserve_cli.csv_file import append_row, parse_row, read_rows, write_rows
from nanoserve_cli.executors import Executor
from nanoserve_cli.grid import Point, SweepSpec
from nanoserve_cli.planning import time_planning
from nanoserve_cli.pricer import Priced, Pricer
from nanoserve_cli.provenance import code_sha256, provenance
from nanoserve_cli.records import cost_columns

COMPILE_LIMIT = 64
"""So many distinct shapes are compiled without being asked for: a quarter of a minute on two cores."""
PLANNED_STEPS = 64
PLANNED_TABLE_CELLS = 2**23

Row = dict[str, Any]
Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Outcome:
    """What became of one point: its row, or why there is none. `reused` rows are an earlier run's."""

    index: int
    point: Point
    row: Row | None
    error: str | None = None
    reused: bool = False


def price_grid(spec: SweepSpec, report: Report) -> list[Priced]:
    """Every point of a sweep and its price, in the grid's order. Raises what loading the traffic raises."""
    pricer = Pricer()
    points = spec.points()
    priced = []
    for done, point in enumerate(points, 1):
        priced.append(pricer.price(point))
        report("pricing", done, len(points))
    return priced


class Sweep:
    """One sweep over priced points. Without torch the columns that need it stay empty."""

    def __init__(self, spec: SweepSpec, priced: Sequence[Priced], *, host_only: bool = False) -> None:
        self.spec = spec
        self.priced = priced
        self.host_only = host_only
        self.has_engine = not host_only and has_engine()
        self.shapes: set[Shape] = {shape for one in priced for shape, _ in one.cost.steps_per_shape}
        asked = spec.measure_compiles
        self.counts_compiles = self.has_engine and (len(self.shapes) <= COMPILE_LIMIT if asked is None else asked)
        self.identities = [self._identity(one) for one in priced]

    def notes(self) -> Iterator[str]:
        """What will not be measured, and why, a line each."""
        if not self.has_engine and not self.host_only:
            yield "no torch here: compiles and MiB are not measured (pip install 'nanoserve[engine]')"
        if self.has_engine and not self.counts_compiles and self.spec.measure_compiles is None:
            yield f"{len(self.shapes)} distinct shapes: compiles are not counted; --measure-compiles does"

    def run(
        self, executor: Executor, report: Report, tell: Callable[[str], None], reusable: Mapping[Identity, Row]
    ) -> Iterator[Outcome]:
        """The outcome of every point as it is finished; reusable rows first."""
        todo = []
        for index, (one, identity) in enumerate(zip(self.priced, self.identities, strict=True)):
            if identity in reusable:
                yield Outcome(index, one.point, reusable[identity], reused=True)
            else:
                todo.append(index)
        if not todo:
            return
        rows = _Rows(self, report)
        if not self.spec.measure:
            for index in todo:
                yield Outcome(index, self.priced[index].point, rows.row(index, {}))
            return
        from nanoserve_cli.sweep_engine import measure_point

        tasks = [(self.priced[index].point, self.priced[index].cost) for index in todo]
        for done in executor.run(measure_point, tasks, tell):
            index = todo[done.index]
            row = None if done.value is None else rows.row(index, done.value)
            yield Outcome(index, self.priced[index].point, row, done.error)

    def _identity(self, one: Priced) -> Identity:
        trace = one.traffic.trace
        config = one.point.config_hash(engine=self.has_engine, compiles=self.counts_compiles)
        return (config, "" if trace is None else trace.sha256, SCHEMA_VERSION, code_sha256())


Identity = tuple[str, str, int, str]
"""What makes a row of an earlier run this point's: its configuration, its trace, the columns, and the code."""


class _Rows:
    """Makes the rows of one sweep; what is the same for all of them is made once."""

    def __init__(self, sweep: Sweep, report: Report) -> None:
        self._sweep = sweep
        self._compiles = self._bills = None
        device = None
        if sweep.has_engine:
            from nanoserve_cli.sweep_engine import BillBook, CompileBook, chosen_model

            choice = chosen_model(sweep.spec.measurement, sweep.spec.seed)
            device = choice.device
            self._bills = BillBook(choice)
            if sweep.counts_compiles and sweep.shapes:
                report("compiling", 0, len(sweep.shapes))
                self._compiles = CompileBook.of(choice, sweep.shapes)
        self._base = provenance(seed=sweep.spec.seed, device=device, trace_key=None, trace_sha256=None)
        self._model = {"model": sweep.spec.measurement.model, "runner": None, "dtype": None}
        if sweep.has_engine:
            self._model["dtype"] = choice.dtype
        if sweep.spec.measure:
            self._model["runner"] = sweep.spec.measurement.runner

    def row(self, index: int, measured: Mapping[str, Any]) -> Row:
        """The whole row of one point, `measured` (a run's columns) included."""
        one = self._sweep.priced[index]
        policy = one.point.policy()
        trace = one.traffic.trace
        row = self._base | {
            "trace_key": trace and trace.key,
            "trace_sha256": trace and trace.sha256,
            "config_hash": self._sweep.identities[index][0],
            "workload": one.traffic.label,
            "policy": policy.render(),
            **(self._model if self._sweep.has_engine else {}),
            **one.point.settings(),
            **cost_columns(one.cost),
            "requests": one.requests,
            "finished": one.requests,
            "rejected": 0,
            "failed": 0,
            "preemptions": 0,
            **plan_columns(one.point),
        }
        row |= {name: value for name, value in measured.items() if value is not None}
        if self._compiles is not None:
            row |= self._compiles.columns(one.cost)
        if self._bills is not None:
            row |= self._bills.columns(policy.shapes)
        return row


def plan_columns(point: Point) -> Row:
    """Host time to plan a step under the point's policy; empty where its slot table would be more than 64 MiB."""
    if point.max_batch_size * point.max_model_len > PLANNED_TABLE_CELLS or point.max_model_len < 2:
        return {}
    steps = min(PLANNED_STEPS, point.max_model_len - 1)
    times = time_planning(min(3, point.max_batch_size), 1, steps, point.policy(), 16)
    return {
        "plan_us_open": times.open_median * 1e3 / steps,
        "plan_us_bucketed": times.bucketed_median * 1e3 / steps,
    }


def reusable_rows(path: Path) -> dict[Identity, Row]:
    """The whole rows of an earlier file by their identity. Raises RecordsError."""
    rows, _ = read_rows(path)
    return {
        (row["config_hash"], row["trace_sha256"], int(row["schema_version"]), row["code_sha256"]): parse_row(row)
        for row in rows
    }


def write_as_finished(path: Path, outcomes: Iterable[Outcome], sweep: Sweep) -> Iterator[Outcome]:
    """Adds each new row to the file the moment it is there, and puts the file in the grid's order at the end.

    Rows of other sweeps that the file holds stay, behind this sweep's.
    """
    mine = {identity[0] for identity in sweep.identities}
    others = [parse_row(row) for row in read_rows(path)[0] if row["config_hash"] not in mine] if path.exists() else []
    finished: dict[int, Row] = {}
    for outcome in outcomes:
        if outcome.row is not None:
            finished[outcome.index] = outcome.row
            if not outcome.reused:
                append_row(path, outcome.row)
        yield outcome
    write_rows(path, [*(finished[index] for index in sorted(finished)), *others])
