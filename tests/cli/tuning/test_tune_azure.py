"""The Azure conversation trace of 2023, fitted on its first 70 %, judged on the rest: 25 ms steps, 256 rows, 8192."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from nanoserve.buckets import DecodeBuckets
from nanoserve_cli.traffic import TrafficOptions
from nanoserve_cli.tuning.candidates import default, default_within, pruned_default
from nanoserve_cli.tuning.evidence import Evidence, Load
from nanoserve_cli.tuning.gather import gather
from nanoserve_cli.tuning.report import LoadReport
from nanoserve_cli.tuning.run import TuneSettings, tune
from nanoserve_cli.tuning.scoring import CELLS, ROWS
from nanoserve_cli.workload.errors import TraceError
from nanoserve_cli.workload.resolve import resolve_trace

KEY = "azure2023-conv"
LIMITS = (256, 8192)
LOADS = (1.0, 4.0)


def trace() -> Path:
    try:
        return resolve_trace(KEY)
    except TraceError:
        pytest.skip(f"the trace {KEY} is not here: nanoserve fetch {KEY}, or NANOSERVE_TRACES")


@cache
def evidence() -> Evidence:
    options = TrafficOptions(source=str(trace()))
    return gather(options, max_batch_size=256, max_model_len=8192, loads=LOADS)


def load(factor: float) -> Load:
    return evidence().loads[LOADS.index(factor)]


@cache
def reports() -> tuple[LoadReport, ...]:
    found = tune(TuneSettings(TrafficOptions(source=str(trace())), loads=LOADS))
    return found.report.loads


class TestDefaults:
    """Counts: the same on every machine."""

    def test_the_run_is_the_trace_at_two_rates(self) -> None:
        assert evidence().size == (19_365, "requests")
        totals = [sum(part.histogram.total for part in load(factor).parts) for factor in LOADS]
        assert totals == [140_346, 35_570]
        assert [load(factor).most_rows for factor in LOADS] == [56, 175]

    @pytest.mark.parametrize(("factor", "used", "waste"), [(1.0, 115, 0.299), (4.0, 75, 0.201)])
    def test_the_default_of_576_uses_some_of_its_shapes(self, factor: float, used: int, waste: float) -> None:
        found = CELLS.scorer(load(factor).judged).score(default("cells", *LIMITS).policy)
        assert (found.available, found.used) == (576, used)
        assert found.waste == pytest.approx(waste, abs=5e-4)

    @pytest.mark.parametrize(("factor", "waste"), [(1.0, 0.451), (4.0, 0.333)])
    def test_the_default_of_36(self, factor: float, waste: float) -> None:
        coarse = default_within("cells", *LIMITS, 36)
        assert coarse.policy == DecodeBuckets(*LIMITS, width_multiple=2048)
        assert CELLS.scorer(load(factor).judged).score(coarse.policy).waste == pytest.approx(waste, abs=5e-4)

    def test_pruned_it_has_what_the_fit_part_used_and_the_maxima(self) -> None:
        counts = [pruned_default("cells", *LIMITS, load(factor).fit).policy.count for factor in LOADS]
        assert counts == [137, 105]

    def test_held_out_the_widths_beyond_the_fit_part_are_seen(self) -> None:
        """What makes the two parts two: the shapes of the fit part are not those of the rest."""
        for factor in LOADS:
            sizes = [
                set(zip(part.histogram.rows.tolist(), part.histogram.width.tolist(), strict=True))
                for part in load(factor).parts
            ]
            assert sizes[1] - sizes[0]
            assert sizes[0] - sizes[1]

    def test_rows_alone(self) -> None:
        waste = [ROWS.scorer(load(factor).judged).score(default("rows", *LIMITS).policy).waste for factor in LOADS]
        assert waste == pytest.approx([0.284, 0.182], abs=5e-4)


@pytest.mark.slow
class TestFitted:
    @pytest.mark.parametrize("factor", LOADS)
    def test_36_fitted_shapes_waste_no_more_than_576_and_at_most_065_of_36(self, factor: float) -> None:
        one = reports()[LOADS.index(factor)]
        wastes = {entry.candidate.name: entry.judged.waste for entry in one.others}
        assert one.best.judged.available <= 36
        assert one.best.judged.waste <= wastes["default"]
        assert one.best.judged.waste <= 0.65 * wastes["default of 36"]
        assert "default pruned" in wastes

    @pytest.mark.parametrize("factor", LOADS)
    def test_in_sample_the_staircase_is_never_worse_than_the_product(self, factor: float) -> None:
        one = reports()[LOADS.index(factor)]
        staircase, product = one.proposals
        assert staircase.fit.cost <= product.fit.cost * 1.001, "the prior is part of what the staircase is the best of"
        assert one.fit.gap is not None
        assert one.fit.gap >= 0
        assert one.best.judged.cost == min(staircase.judged.cost, product.judged.cost)

    def test_without_a_prior_it_is_so_to_the_cell(self) -> None:
        found = tune(TuneSettings(TrafficOptions(source=str(trace())), prior=0.0)).report
        staircase, product = found.loads[0].proposals
        assert staircase.fit.cost <= product.fit.cost

    def test_one_list_serves_both_rates(self) -> None:
        found = tune(TuneSettings(TrafficOptions(source=str(trace())), loads=LOADS, prior=1e-2)).report
        best, default_of_36 = found.decision.best, found.across[0]
        shared = next(one for one in found.shared if one.candidate == best)
        assert found.decision.recommended is best
        for ours, theirs in zip(shared.scores, default_of_36.scores, strict=True):
            assert ours.waste < theirs.waste
        for own in found.across[1:]:
            assert max(score.waste for score in own.scores) > max(score.waste for score in shared.scores)
