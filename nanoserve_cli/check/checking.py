"""What a check is made of: the rows of every workload, run once or found in a file, and the report of its verdicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nanoserve.buckets import GateError
from nanoserve_cli.check.budget_file import Budget
from nanoserve_cli.check.results import ResultsFile
from nanoserve_cli.check.verdicts import STATUSES, Status, Verdict, exit_status
from nanoserve_cli.check.workloads import Point, Sample
from nanoserve_cli.console import EXIT_CHECK_FAILED, EXIT_NOT_COMPARABLE, EXIT_OK, NotComparable, is_expected

WITNESSES = {"StorageUnsound": "new_storage", "StepRecompiled": "recompiles_bucketed"}
"""Gates that stop a run at the first of what a metric counts. By name: the classes are of modules that need torch."""
EXIT_OF = {"passed": EXIT_OK, "failed": EXIT_CHECK_FAILED, "not comparable": EXIT_NOT_COMPARABLE}


@dataclass(frozen=True)
class Found:
    """What became of one workload: `samples`, one a point, or `problem`, why there is none."""

    points: tuple[Point, ...] = ()
    samples: tuple[Sample, ...] = ()
    problem: str = ""
    comparable: bool = True


@dataclass(frozen=True)
class Report:
    """Every verdict of a budget file, in its order. `strict` fails on what is only soft, or better than its limit."""

    path: Path
    verdicts: tuple[Verdict, ...]
    strict: bool

    @property
    def exit_code(self) -> int:
        """0, 3 where a limit is exceeded or a figure is missing, 4 where all that is wrong is not comparable."""
        return EXIT_OF[exit_status(self.verdicts, strict=self.strict)]

    def count(self, status: Status) -> int:
        """How many verdicts are of that status."""
        return sum(verdict.status == status for verdict in self.verdicts)

    @property
    def totals(self) -> dict[Status, int]:
        """The same of all statuses, worst first."""
        return {status: self.count(status) for status in STATUSES}

    def fails(self, verdict: Verdict) -> bool:
        """Whether this verdict is a reason to exit with anything but 0."""
        return exit_status([verdict], strict=self.strict) != "passed"


def run_all(budgets: Sequence[Budget], tell: Callable[[str], None]) -> dict[str, Found]:
    """What each budget's workload gives, by the budget's name; `tell` is told which is run. The same one runs once.

    A workload that cannot run, for a trace or torch that is absent or a limit of its own, is a `problem`, not an error.
    """
    found: dict[str, Found] = {}
    for budget in budgets:
        if budget.identity not in found:
            tell(f"running {budget.name}")
            found[budget.identity] = _run(budget)
    return {budget.name: found[budget.identity] for budget in budgets}


def _run(budget: Budget) -> Found:
    try:
        points = tuple(budget.workload.points())
        try:
            return Found(points, tuple(budget.workload.run()))
        except GateError as error:
            stopped = _stopped(error)
            return Found(points, tuple(replace(stopped, label=point.label) for point in points))
    except Exception as error:
        if not is_expected(error):
            raise
        return Found(problem=_one_line(error))


def _stopped(error: GateError) -> Sample:
    """What is known of a run that a gate ended: at most the one thing that the gate is for, once."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    row = {metric: 1 for kind, metric in WITNESSES.items() if kind in kinds}
    return Sample("", row, stopped=f"the run stopped: {_one_line(error)}")


def read_all(budgets: Sequence[Budget], path: Path) -> dict[str, Found]:
    """What a results file has of each budget's workload, by the budget's name.

    Not comparable is a file of another schema, and one of whose rows none is asked for by any budget. Raises
    RecordsError for what cannot be read or is no results file.
    """
    try:
        results = ResultsFile(path)
    except NotComparable as error:
        return {budget.name: Found(problem=str(error), comparable=False) for budget in budgets}
    if not results.rows:
        return {budget.name: Found(problem=f"{path} holds no whole row: nothing was measured") for budget in budgets}
    found = {budget.name: _read(budget, results) for budget in budgets}
    if any(results.has(point) for one in found.values() for point in one.points):
        return found
    other = f"{path} is of other runs: none of its {len(results.rows)} rows is one of this file's workloads"
    return {name: one if one.problem else Found(problem=other, comparable=False) for name, one in found.items()}


def _read(budget: Budget, results: ResultsFile) -> Found:
    try:
        points = tuple(budget.workload.points())
    except (ValueError, OSError) as error:
        return Found(problem=_one_line(error))
    return Found(points, tuple(results.sample(point) for point in points))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
