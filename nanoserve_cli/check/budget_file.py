"""The budget file: what it may say, checked key by key, every fault one line with the line of the file.

    schema_version: 1
    defaults:                          # what a budget takes that does not say otherwise
      soft: 2%
      baseline: results/before.csv
      workload: {sweep: {...}}         # options of the same kind are merged, the budget's own over these
    budgets:
      - name: conversation
        workload:                      # one of `kinds.KINDS`, and its options
          sweep: {traffic: {from: azure2023-conv}, max_batch: 256, host_only: true}
        where: {width_ladder: "multiple:512"}    # rows with these settings; without it, every row
        trace_sha256: 2f1e5b66...      # the trace that its limits are of
        limits:
          padded_cells: {at_most: 680960, soft: 2%}
          replay_share: {at_least: 1}
          shapes_used: {exactly: 5}
          step_ms_bucketed: {reported: true}
        baseline: results/before.csv
        regress: {waste: +1%}

A limit says which way it holds: there is no bare number. `at_most` and `at_least` may stand together. Paths are as seen
from where the command runs, as in a sweep's spec.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn

from nanoserve_cli.check.kinds import KINDS, Kind
from nanoserve_cli.check.located import Address, Located, read_located
from nanoserve_cli.check.percent import parse_percent, render_percent
from nanoserve_cli.check.verdicts import Limit, Place
from nanoserve_cli.check.workloads import BudgetError, Workload
from nanoserve_cli.columns import SETTING_COLUMNS, Column
from nanoserve_cli.workload.errors import did_you_mean
from nanoserve_cli.yaml_file import check_version

SCHEMA_VERSION = 1
KEYS = ("schema_version", "defaults", "budgets")
DEFAULT_KEYS = ("soft", "workload", "baseline")
BUDGET_KEYS = ("name", "workload", "where", "trace_sha256", "limits", "baseline", "regress")
BOUNDS = ("at_most", "at_least", "exactly")
LIMIT_KEYS = (*BOUNDS, "reported", "soft")


@dataclass(frozen=True)
class Budget:
    """One budget. `limits` are those of `limits` and `regress` together, in the file's order.

    `identity` is the workload as it is written: budgets that have the same run it once.
    """

    name: str
    workload: Workload
    identity: str
    where: Mapping[str, Any]
    trace_sha256: str | None
    limits: tuple[Limit, ...]
    baseline: Path | None


@dataclass(frozen=True)
class BudgetFile:
    """A whole file; `text` is what lies on disk, for edits; `shared` is where values start that an anchor repeats."""

    path: Path
    text: str
    budgets: tuple[Budget, ...]
    shared: frozenset[int]


def load_budgets(path: Path, trace_dir: Path | None = None) -> BudgetFile:
    """The budgets in `path`. Raises BudgetError, with the line, for what cannot be read or is no budget."""
    located = read_located(path, "a budget file", KEYS, BudgetError)
    check_version(located.document, SCHEMA_VERSION, path, BudgetError)
    starts = Counter(place.start for place in located.places.values())
    shared = frozenset(start for start, times in starts.items() if times > 1)
    return BudgetFile(path, located.text, tuple(_Reader(path, located, trace_dir).budgets()), shared)


class _Reader:
    """Reads one document; knows where in it each value is written."""

    def __init__(self, path: Path, located: Located, trace_dir: Path | None) -> None:
        self._path = path
        self._places = located.places
        self._document = located.document
        self._trace_dir = trace_dir
        self._defaults = self._mapping(("defaults",), DEFAULT_KEYS) if "defaults" in self._document else {}
        self._soft = self._percent(("defaults", "soft")) if "soft" in self._defaults else Fraction(0)

    def budgets(self) -> Iterator[Budget]:
        """Every budget, in the file's order."""
        listed = self._document.get("budgets")
        if not isinstance(listed, list) or not listed:
            self._fail(("budgets",), "budgets must list at least one budget: a file without any checks nothing")
        names: set[str] = set()
        for index in range(len(listed)):
            budget = self._budget(("budgets", index))
            if budget.name in names:
                self._fail(("budgets", index, "name"), f"there are two budgets of the name {budget.name!r}")
            names.add(budget.name)
            yield budget

    def _budget(self, at: Address) -> Budget:
        entry = self._mapping(at, BUDGET_KEYS)
        name = self._text((*at, "name")) if "name" in entry else self._fail(at, "a budget has a name")
        kind, options, written_at = self._workload(at, entry)
        workload = self._guarded(written_at, lambda: KINDS[kind].build(options, self._trace_dir))
        limits = (*self._limits(at, entry, KINDS[kind]), *self._regress(at, entry, KINDS[kind]))
        if not limits:
            self._fail(at, f"{name} has no limits: it would pass whatever happens")
        return Budget(
            name=name,
            workload=workload,
            identity=repr((kind, sorted(options.items(), key=lambda pair: str(pair[0])))),
            where=self._where(at, entry),
            trace_sha256=self._sha256((*at, "trace_sha256")) if "trace_sha256" in entry else None,
            limits=limits,
            baseline=self._baseline(at, entry),
        )

    def _workload(self, at: Address, entry: Mapping[str, Any]) -> tuple[str, dict[str, Any], Address]:
        """The kind, the options with the default ones of that kind under them, and where that is written."""
        default = self._kind(("defaults", "workload")) if "workload" in self._defaults else None
        if "workload" not in entry:
            if default is None:
                self._fail(at, f"a budget has a workload, one of {', '.join(KINDS)}")
            return (*default, ("defaults", "workload"))
        kind, options = self._kind((*at, "workload"))
        under = default[1] if default is not None and default[0] == kind else {}
        return kind, under | options, (*at, "workload")

    def _kind(self, at: Address) -> tuple[str, dict[str, Any]]:
        given = self._mapping(at, KINDS)
        if len(given) != 1:
            self._fail(at, f"a workload is one of {', '.join(KINDS)}, got {len(given)} of them")
        kind = next(iter(given))
        return kind, {} if given[kind] is None else dict(self._mapping((*at, kind)))

    def _where(self, at: Address, entry: Mapping[str, Any]) -> Mapping[str, Any]:
        if "where" not in entry:
            return {}
        where = self._mapping((*at, "where"), SETTING_COLUMNS)
        for column, value in where.items():
            if not isinstance(value, str | int | float):
                self._fail((*at, "where", column), f"where: {column} takes one value, got {value!r}")
        return where

    def _limits(self, at: Address, entry: Mapping[str, Any], kind: Kind) -> Iterator[Limit]:
        if "limits" not in entry:
            return
        for metric in self._mapping((*at, "limits")):
            address = (*at, "limits", metric)
            yield from self._limit(address, self._metric(address, str(metric), kind))

    def _limit(self, at: Address, column: Column) -> Iterator[Limit]:
        """The limits on one metric: `at_most` and `at_least` are one each."""
        given = self._value(at)
        if not isinstance(given, Mapping):
            self._fail(at, f"{column.name} must say how it holds, {{at_most: {given}}} or the like, got {given!r}")
        self._mapping(at, LIMIT_KEYS)
        kinds = [kind for kind in (*BOUNDS, "reported") if kind in given]
        if len(kinds) != 1 and kinds != ["at_most", "at_least"]:
            self._fail(at, f"{column.name} takes at_most, at_least or both, or exactly, or reported; got {list(given)}")
        margin = self._percent((*at, "soft")) if "soft" in given else self._soft
        if kinds == ["reported"]:
            if given["reported"] is not True or "soft" in given:
                self._fail(at, f"{column.name}: reported takes true and nothing beside it")
            yield Limit(column, "reported", None, Fraction(0), self._place((*at, "reported")))
            return
        for kind in kinds:
            address = (*at, kind)
            value = given[kind]
            if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0:
                self._fail(address, f"{column.name}: {kind} takes a number of at least 0, got {value!r}")
            yield Limit(column, kind, value, margin, self._place(address))  # type: ignore[arg-type]

    def _regress(self, at: Address, entry: Mapping[str, Any], kind: Kind) -> Iterator[Limit]:
        if "regress" not in entry:
            if "baseline" in entry:
                self._fail((*at, "baseline"), "baseline is what regress compares with: add regress, {metric: +1%}")
            return
        if self._baseline(at, entry) is None:
            self._fail((*at, "regress"), "regress compares with a baseline: add baseline: FILE.csv")
        for metric in self._mapping((*at, "regress")):
            address = (*at, "regress", metric)
            column = self._metric(address, str(metric), kind)
            if not column.better:
                self._fail(address, f"{metric} says which run it was: no change of it is good or bad; use limits")
            share = abs(self._percent(address, signed=True))
            way, right, wrong = ("rise", "+", "-") if column.better == "lower" else ("fall", "-", "+")
            if str(self._value(address)).strip().startswith(wrong):
                wanted = f"{right}{render_percent(share)}"
                self._fail(address, f"{metric} is better {column.better}: say how far it may {way}, {wanted}")
            yield Limit(column, "regress", None, share, self._place(address))

    def _baseline(self, at: Address, entry: Mapping[str, Any]) -> Path | None:
        if "baseline" in entry:
            return Path(self._text((*at, "baseline")))
        return Path(self._text(("defaults", "baseline"))) if "baseline" in self._defaults else None

    def _metric(self, at: Address, name: str, kind: Kind) -> Column:
        metrics = kind.metrics
        if name not in metrics:
            self._fail(at, f"there is no metric {name!r}: {did_you_mean(name, metrics)}")
        return metrics[name]

    def _mapping(self, at: Address, keys: Any = None) -> Mapping[Any, Any]:
        """The mapping at `at`, of `keys` only. An empty one is a slip of indentation and not what was meant."""
        value = self._value(at)
        if not isinstance(value, Mapping) or not value:
            self._fail(at, f"{at[-1] if isinstance(at[-1], str) else 'a budget'} must be a mapping, got {value!r}")
        for key in value if keys is not None else ():
            if key not in keys:
                self._fail((*at, str(key)), f"unknown key {key!r}: {did_you_mean(str(key), keys)}")
        return value

    def _text(self, at: Address) -> str:
        value = self._value(at)
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            self._fail(at, f"{at[-1]} takes text, got {value!r}")
        return value

    def _sha256(self, at: Address) -> str:
        text = self._text(at)
        if not re.fullmatch("[0-9a-f]{64}", text):
            self._fail(at, f"{at[-1]} takes the 64 digits that sha256sum prints, got {text!r}")
        return text

    def _percent(self, at: Address, *, signed: bool = False) -> Fraction:
        share: Fraction = self._guarded(at, lambda: parse_percent(self._value(at)), f"{at[-1]} ")
        if share < 0 and not signed:
            self._fail(at, f"{at[-1]} is how far beyond its limit a figure may be: it is not negative")
        return share

    def _guarded(self, at: Address, make: Callable[[], Any], before: str = "") -> Any:
        """What `make` returns; a ValueError of it gets the place."""
        try:
            return make()
        except ValueError as error:
            self._fail(at, f"{before}{error}")

    def _value(self, at: Address) -> Any:
        value: Any = self._document
        for part in at:
            value = value[part]
        return value

    def _place(self, at: Address) -> Place:
        """Where the value is written; of what is missing, where it would be."""
        while at not in self._places:
            at = at[:-1]
        return self._places[at]

    def _fail(self, at: Address, message: str) -> NoReturn:
        raise BudgetError(f"{self._path}:{self._place(at).line}: {message}")
