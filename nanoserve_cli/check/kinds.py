"""The kinds of workload that a budget may name. A new one is one class and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanoserve_cli.check.bench_rows import NEW_STORAGE, BenchWorkload
from nanoserve_cli.check.sweep_rows import SweepWorkload
from nanoserve_cli.check.tune_rows import WASTE_OF_DEFAULT, TuneWorkload
from nanoserve_cli.check.workloads import Workload
from nanoserve_cli.columns import COLUMNS, Column


@dataclass(frozen=True)
class Kind:
    """How a workload is made from its options, and the metrics it has beside the columns of results."""

    build: Callable[[Mapping[str, Any], Path | None], Workload]
    own_metrics: tuple[Column, ...] = ()

    @property
    def metrics(self) -> dict[str, Column]:
        """Every figure that a limit may be on: counts and times. Settings, texts and provenance are none."""
        figures = (column for column in COLUMNS if column.kind in {"count", "time"} and column.dtype != "string")
        return {column.name: column for column in (*figures, *self.own_metrics)}


KINDS = {
    "bench": Kind(BenchWorkload, (NEW_STORAGE,)),
    "sweep": Kind(SweepWorkload),
    "tune": Kind(TuneWorkload, (WASTE_OF_DEFAULT,)),
}
