"""The workload `sweep`: the points of a grid, priced, and compiled or run where that is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nanoserve_cli.check.workloads import BudgetError, Point, Sample, trace_identity
from nanoserve_cli.console import warn
from nanoserve_cli.executors import InProcess
from nanoserve_cli.grid import Lockstep
from nanoserve_cli.grid import Point as GridPoint
from nanoserve_cli.pricer import price_grid
from nanoserve_cli.sweep import Sweep
from nanoserve_cli.sweep_spec import KEYS, spec_of
from nanoserve_cli.yaml_file import check_keys

OWN_KEYS = tuple(key for key in KEYS if key not in {"schema_version", "budget_graphs", "budget_mib"})
"""Keys of a sweep's spec but for its version and its budget: that is what limits are for."""


class SweepWorkload:
    """A sweep. Raises BudgetError, SpecError among them, for options that no sweep has."""

    def __init__(self, options: Mapping[str, Any], trace_dir: Path | None) -> None:
        check_keys(options, OWN_KEYS, "sweep", BudgetError)
        self._trace_dir = trace_dir
        self._spec = spec_of(options, trace_dir, "sweep")

    def points(self) -> list[Point]:
        """One a point of the grid."""
        return [self._point(point) for point in self._spec.points]

    def run(self) -> list[Sample]:
        """Every point, in the grid's order, in this process."""
        work = Sweep(self._spec, price_grid(self._spec, lambda _: None))
        absent = {"": "; ".join(work.notes()) or "not of a sweep that is not measured"}
        work.compile(lambda _: None)
        outcomes = sorted(work.run(InProcess(), warn), key=lambda outcome: outcome.index)
        return [
            Sample(outcome.point.label, outcome.row or {}, stopped=outcome.error or "", absent=absent)
            for outcome in outcomes
        ]

    def _point(self, point: GridPoint) -> Point:
        name, sha256 = self._traffic(point)
        columns = {
            "workload": point.workload(name),
            "seed": point.seed,
            "policy": point.policy().render(),
            **point.settings(),
        }
        del columns["repeats"]
        return Point(point.label, columns, sha256)

    def _traffic(self, point: GridPoint) -> tuple[str, str | None]:
        if isinstance(point.traffic, Lockstep):
            return point.traffic.label, None
        if point.traffic.source is None:
            return "synthetic", None
        return trace_identity(point.traffic.source, self._trace_dir)
