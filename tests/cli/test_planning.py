"""What planning costs on the host: four times that were measured, of the run that was asked for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nanoserve.buckets import DecodeBuckets
from nanoserve_cli import planning
from nanoserve_cli.planning import PlanTimes, time_planning


def test_best_is_never_above_the_median_and_all_were_measured() -> None:
    times = time_planning(3, 16, 8, DecodeBuckets(8, 24), 16)
    assert 0 < times.open_best <= times.open_median
    assert 0 < times.bucketed_best <= times.bucketed_median


def test_both_modes_plan_every_step_three_times_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open first, then bucketed, so that neither profits from the other's warm caches; widths 17 to 24."""
    seen: list[tuple[int, int]] = []
    plan = planning.plan_decode

    def spy(cache: planning.BatchedPagedKVCache, rows: int) -> object:
        made = plan(cache, rows)
        seen.append((made.graph_rows, made.graph_width))
        return made

    monkeypatch.setattr(planning, "plan_decode", spy)
    time_planning(3, 16, 8, DecodeBuckets(8, 24), 16)
    assert seen == ([(3, width) for width in range(17, 25)] + [(4, 24)] * 8) * 3


def test_it_is_a_plain_value() -> None:
    assert PlanTimes(1.0, 2.0, 3.0, 4.0) == PlanTimes(
        open_best=1.0, open_median=2.0, bucketed_best=3.0, bucketed_median=4.0
    )


def test_it_needs_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; import nanoserve_cli.planning, nanoserve_cli.bench"
    subprocess.run([sys.executable, "-c", code], check=True)
