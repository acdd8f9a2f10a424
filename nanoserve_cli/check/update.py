"""Measured figures written down as the new limits: only those characters of the file change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from nanoserve_cli.check.budget_file import Budget, BudgetFile
from nanoserve_cli.check.checking import Found
from nanoserve_cli.check.results import ResultsFile
from nanoserve_cli.check.verdicts import Figure, Kind, Limit, Verdict, written
from nanoserve_cli.csv_file import write_atomically
from nanoserve_cli.workload.errors import did_you_mean


@dataclass(frozen=True)
class Edit:
    """One limit that gets a new value, as text."""

    budget: str
    limit: Limit
    before: str
    after: str

    def render(self, path: Path) -> str:
        """What was changed and where, in a line."""
        limit = self.limit
        return (
            f"{path}:{limit.place.line}: {self.budget}: {limit.column.name} {limit.kind} {self.before} -> {self.after}"
        )


def check_names(file: BudgetFile, names: Iterable[str]) -> None:
    """ValueError for a name that no budget of the file has."""
    known = [budget.name for budget in file.budgets]
    for name in names:
        if name not in known:
            raise ValueError(f"{file.path} has no budget {name!r}: {did_you_mean(name, known)}")


def new_limits(file: BudgetFile, verdicts: Sequence[Verdict], names: Sequence[str], *, strict: bool) -> list[Edit]:
    """The edits that accept what the budgets of those `names` measured, where that is beyond a limit.

    With `strict`, which fails on them, improvements too. What stopped, is missing, or cannot be compared is no new
    limit. Raises ValueError for one that has to be edited by hand: shared by an anchor, or exact for rows that differ.
    """
    edits: list[Edit] = []
    for budget in file.budgets:
        for limit in budget.limits if budget.name in names else ():
            mine = [verdict for verdict in verdicts if verdict.budget == budget.name and verdict.limit == limit]
            if limit.value is not None and _is_accepted(mine, strict=strict):
                edits += _edit(file, budget, limit, [verdict.measured for verdict in mine])  # type: ignore[misc]
    return edits


def _is_accepted(verdicts: Sequence[Verdict], *, strict: bool) -> bool:
    return all(verdict.acceptable for verdict in verdicts) and any(_is_taken(verdict, strict) for verdict in verdicts)


def _is_taken(verdict: Verdict, strict: bool) -> bool:
    """Whether there is anything to accept in it."""
    return verdict.acceptable and verdict.status in ({"fail", "soft", "improved"} if strict else {"fail", "soft"})


def _edit(file: BudgetFile, budget: Budget, limit: Limit, measured: Sequence[Figure]) -> Iterator[Edit]:
    where = f"{file.path}:{limit.place.line}: {limit.column.name}"
    if limit.place.start in file.shared:
        raise ValueError(f"{where} is shared through an anchor: edit it by hand")
    if limit.kind == "exactly" and len(set(measured)) > 1:
        raise ValueError(f"{where} is exact and its rows differ, {min(measured)} to {max(measured)}: add `where`")
    before = file.text[limit.place.start : limit.place.end].split()[-1]
    new = min(measured) if limit.kind == "at_least" else max(measured)
    text = written_as(new, limit.kind, grouped="_" in before)
    if new != limit.value:
        yield Edit(budget.name, limit, before, text)


def written_as(value: Figure, kind: Kind, *, grouped: bool = False) -> str:
    """A limit's value as text, which `value` passes; `grouped` puts `_` between thousands."""
    if isinstance(value, int):
        return f"{value:_}" if grouped else str(value)
    exact = value if kind == "exactly" else written(value, up=kind == "at_most")
    return format(Decimal(repr(exact)), "f")


def write_limits(file: BudgetFile, edits: Sequence[Edit]) -> None:
    """Writes the file with those edits, every other byte as it was. Raises OSError."""
    text = file.text
    for edit in sorted(edits, key=lambda edit: edit.limit.place.end, reverse=True):
        end = edit.limit.place.end
        text = text[: end - len(edit.before)] + edit.after + text[end:]
    write_atomically(file.path, text)


def new_baselines(
    file: BudgetFile, found: Mapping[str, Found], verdicts: Sequence[Verdict], names: Sequence[str], *, strict: bool
) -> tuple[ResultsFile, ...]:
    """The baselines of the budgets of those `names` with the whole rows that regressed put in, not yet written.

    Raises ValueError for one that was made on another model or runner, RecordsError where it cannot be read.
    """
    made: dict[Path, ResultsFile] = {}
    for budget in file.budgets:
        mine = [verdict for verdict in verdicts if verdict.budget == budget.name and verdict.limit.kind == "regress"]
        taken = {verdict.row for verdict in mine if _is_taken(verdict, strict)}
        if budget.name in names and taken and budget.baseline is not None:
            baseline = made.setdefault(budget.baseline, ResultsFile(budget.baseline))
            for point, sample in zip(found[budget.name].points, found[budget.name].samples, strict=True):
                if point.label in taken:
                    baseline.replace(sample.row)
    return tuple(made.values())
