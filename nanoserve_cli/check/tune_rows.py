"""The workload `tune`: the recommended list, a row a load, on the part of the traffic that it was not fitted to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nanoserve_cli import options as opt
from nanoserve_cli.check.command_options import parsed
from nanoserve_cli.check.workloads import BudgetError, Point, Sample, trace_identity
from nanoserve_cli.columns import Column
from nanoserve_cli.commands.tune import tune
from nanoserve_cli.tuning.flags import settings_of
from nanoserve_cli.tuning.run import tune as tuned

WASTE_OF_DEFAULT = Column(
    "waste_of_default", "count", "Float64", "waste of the default list of at most as many graphs, same steps", ""
)
NOT_OPTIONS = frozenset(
    {"json_", "out_file", "policy_out", "quiet", "trace_dir", "verify", "verify_steps", "model", "device"}
)


class TuneWorkload:
    """A tune. Raises BudgetError for options that it has not, or that do nothing together."""

    def __init__(self, options: Mapping[str, Any], trace_dir: Path | None) -> None:
        context = parsed("tune", tune, options, NOT_OPTIONS)
        context.params["trace_dir"] = trace_dir
        try:
            self._settings = settings_of(context.params, opt.flags_given(context))
        except ValueError as error:
            raise BudgetError(f"tune: {error}") from None
        self._trace_dir = trace_dir

    def points(self) -> list[Point]:
        """One a load."""
        sha256 = None
        if self._settings.traffic.source is not None:
            _, sha256 = trace_identity(self._settings.traffic.source, self._trace_dir)
        return [Point(f"load {factor:g}", {}, sha256) for factor in self._settings.loads]

    def run(self) -> list[Sample]:
        """The recommended list on every load, where it is judged."""
        report = tuned(self._settings).report
        absent = {"": "tune prices lists and runs none"}
        samples = []
        for load in report.evidence.loads:
            scorer = report.objective.scorer(load.judged)
            found = scorer.score(report.decision.recommended.policy)
            row = {
                "steps": load.judged.histogram.total,
                "shapes_available": found.available,
                "shapes_used": found.used,
                "waste": found.waste,
                "total_waste": found.total_waste,
                "off_list_steps": round(found.off_list * load.judged.histogram.total),
                "open_cells": found.open_cells,
                "padded_cells": found.padded_cells,
                "live_cells": found.live_cells,
                WASTE_OF_DEFAULT.name: scorer.score(report.decision.baseline.policy).waste,
            }
            samples.append(Sample(f"load {load.factor:g}", row, absent=absent))
        return samples
