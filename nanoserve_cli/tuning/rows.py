"""A tune report as rows of a results file: every list on every load, and the fitted list of every size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nanoserve_cli.provenance import provenance
from nanoserve_cli.tuning.candidates import FITTED, Candidate
from nanoserve_cli.tuning.report import LoadReport, TuneReport
from nanoserve_cli.tuning.scoring import Score

Row = dict[str, Any]


def rows(report: TuneReport, *, step_time: str, seed: int) -> Iterator[Row]:
    """One row a list, load and part. `waste` is of the objective; cells are empty where only rows are looked at."""
    evidence = report.evidence
    trace = None if evidence.traffic is None else evidence.traffic.trace
    base = provenance(
        seed=seed,
        device=None,
        trace_key=None if trace is None else trace.key,
        trace_sha256=evidence.source_sha256,
    ) | {
        "max_batch_size": evidence.max_batch_size,
        "max_model_len": report.rules.widths.maximum,
        "clock": None if evidence.traffic is None else "virtual",
        "step_time": None if evidence.traffic is None else step_time,
        "objective": report.objective.name,
    }
    for one in report.loads:
        for name, part in zip(("fitted part", "held out"), one.load.parts, strict=False):
            scorer = report.objective.scorer(part)
            total = scorer.part.histogram.total
            for candidate in _candidates(one, report):
                found = scorer.score(candidate.policy)
                workload = f"{evidence.label} load {one.load.factor:g}, {name}"
                yield base | {"workload": workload} | _row(candidate, found, total)


def _candidates(one: LoadReport, report: TuneReport) -> Iterator[Candidate]:
    """Each list once: the default of a budget may be a named ladder too."""
    listed = [entry.candidate for entry in (*one.others, *one.proposals)]
    listed += [shared.candidate for shared in report.shared]
    listed += [
        Candidate(f"fitted {point.graphs}", FITTED, point.best, "fitted", f"best of {point.graphs}")
        for point in one.fit.curve.points
    ]
    yield from {(each.policy, each.rows_ladder, each.width_ladder): each for each in listed}.values()


def _row(candidate: Candidate, found: Score, total: int | float) -> Row:
    row: Row = {
        "policy": candidate.policy.render(),
        "rows_ladder": candidate.rows_ladder,
        "width_ladder": candidate.width_ladder,
        "completed": candidate.completed,
        "shapes_available": found.available,
        "shapes_used": found.used,
        "waste": found.waste,
        "total_waste": found.total_waste,
    }
    if isinstance(total, int):  # seconds of samples are no count
        row |= {"steps": total, "off_list_steps": round(found.off_list * total)}
        row |= {"open_cells": found.open_cells, "padded_cells": found.padded_cells, "live_cells": found.live_cells}
    return row
