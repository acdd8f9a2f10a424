"""A budget's limits held against the rows that were found: one verdict a limit and row, and none that passes unseen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import isfinite

from nanoserve_cli.check.budget_file import Budget
from nanoserve_cli.check.checking import Found
from nanoserve_cli.check.results import ResultsFile
from nanoserve_cli.check.verdicts import Figure, Limit, Status, Verdict, judge
from nanoserve_cli.check.workloads import Point, Sample
from nanoserve_cli.console import NotComparable
from nanoserve_cli.csv_file import RecordsError


class _Unjudged(Exception):
    """There is nothing to compare: which verdict that is, and why."""

    def __init__(self, status: Status, reason: str, measured: Figure | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.measured = measured


def judge_all(budgets: Sequence[Budget], found: Mapping[str, Found]) -> tuple[Verdict, ...]:
    """A verdict for every limit and row, in the file's order."""
    return tuple(verdict for budget in budgets for verdict in _Judge(budget).verdicts(found[budget.name]))


class _Judge:
    """Holds one budget's limits against what was found."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    @cached_property
    def _baseline(self) -> ResultsFile:
        assert self._budget.baseline is not None
        return ResultsFile(self._budget.baseline)

    def verdicts(self, found: Found) -> Iterator[Verdict]:
        """Every limit on every selected row; where there is no row, every limit with the reason."""
        pairs = [pair for pair in zip(found.points, found.samples, strict=True) if self._selects(*pair)]
        if not pairs:
            wanted = ", ".join(f"{column} {value}" for column, value in self._budget.where.items())
            reason = found.problem or f"no row of the workload has {wanted}"
            for limit in self._budget.limits:
                yield Verdict(
                    self._budget.name, "", limit, "missing" if found.comparable else "not comparable", reason=reason
                )
        by_row = [[self._verdict(limit, *pair) for limit in self._budget.limits] for pair in pairs]
        tight = {verdict.limit for verdicts in by_row for verdict in verdicts if verdict.status != "improved"}
        tight |= self._bands
        for verdict in (verdict for verdicts in by_row for verdict in verdicts):
            # A limit on several rows is as tight as its worst row lets it be: better is what all of them are.
            loosely = verdict.status == "improved" and verdict.limit in tight and verdict.limit.kind != "regress"
            yield replace(verdict, status="pass") if loosely else verdict

    @property
    def _bands(self) -> set[Limit]:
        """Limits of metrics that are bounded on both sides: inside a band nothing has improved."""
        kinds: dict[str, set[str]] = {}
        for limit in self._budget.limits:
            kinds.setdefault(limit.column.name, set()).add(limit.kind)
        return {limit for limit in self._budget.limits if {"at_most", "at_least"} <= kinds[limit.column.name]}

    def _selects(self, point: Point, sample: Sample) -> bool:
        row = {**point.columns, **sample.row}
        return all(str(row.get(column)) == str(wanted) for column, wanted in self._budget.where.items())

    def _verdict(self, limit: Limit, point: Point, sample: Sample) -> Verdict:
        about = Verdict(self._budget.name, point.label, limit, "missing")
        try:
            measured = self._measured(limit, point, sample)
            bound = limit.value if limit.kind != "regress" else self._before(limit, sample, measured)
        except _Unjudged as fact:
            bound = limit.value if fact.status == "fail" else None
            return replace(about, status=fact.status, reason=fact.reason, measured=fact.measured, bound=bound)
        return replace(about, status=judge(limit, measured, bound), measured=measured, bound=bound, acceptable=True)

    def _measured(self, limit: Limit, point: Point, sample: Sample) -> Figure:
        """The row's figure. Raises _Unjudged where there is none that counts."""
        figure: Figure | None = sample.row.get(limit.column.name)
        if sample.stopped:
            # What the run said before it ended is no reason to pass, and one to fail.
            exceeded = figure is not None and judge(limit, figure, limit.value) == "fail"
            raise _Unjudged("fail" if exceeded else "missing", sample.stopped, figure)
        expected, actual = self._budget.trace_sha256 or point.trace_sha256, sample.row.get("trace_sha256")
        if expected is not None and actual != expected:
            known = f"the budget is of {_short(expected)}"
            raise _Unjudged("not comparable", f"another trace: sha256 {_short(actual)}, {known}")
        if "steps" in sample.row and not sample.row["steps"]:
            raise _Unjudged("missing", "the run took no step: there is nothing to measure")
        if figure is None:
            why = sample.absent.get(limit.column.name) or sample.absent.get("")
            raise _Unjudged("missing", f"not measured: {why}" if why else "not measured")
        if not isfinite(figure) or figure < 0:
            raise _Unjudged("missing", f"measured {figure}, which is no figure")
        padded, opened = sample.row.get("padded_cells"), sample.row.get("open_cells")
        if padded is not None and opened is not None and padded < opened:
            raise _Unjudged("missing", f"the row has {padded} padded cells for {opened} open ones, which no run has")
        return figure

    def _before(self, limit: Limit, sample: Sample, measured: Figure) -> Figure:
        """The baseline's figure. Raises _Unjudged where there is none of the same thing."""
        path = self._budget.baseline
        try:
            row = self._baseline.same_point(sample.row)
        except NotComparable as error:
            raise _Unjudged("not comparable", str(error), measured) from None
        except RecordsError as error:
            raise _Unjudged("missing", str(error), measured) from None
        if row is None:
            raise _Unjudged("not comparable", f"{path} has no row of this point", measured)
        mine, other = sample.row.get("trace_sha256"), row["trace_sha256"]
        if mine != other:
            reason = f"{path} is of another trace: sha256 {_short(other)}, this one is {_short(mine)}"
            raise _Unjudged("not comparable", reason, measured)
        if "steps" in row and not row["steps"]:
            raise _Unjudged("missing", f"{path}: its run took no step: there is nothing to compare with", measured)
        before: Figure | None = row.get(limit.column.name)
        if before is None or not isfinite(before):
            raise _Unjudged("not comparable", f"{path} has no {limit.column.name}", measured)
        return before


def _short(sha256: str | None) -> str:
    return "none" if sha256 is None else sha256[:12]
