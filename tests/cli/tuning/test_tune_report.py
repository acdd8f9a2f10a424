"""Everything scored, and what is recommended: the best where it is judged, or what is there already."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tune_cases import STEP, drawn, evidence, recorded, rules, run_of, steady

from nanoserve.buckets import CaptureList, DecodeBuckets
from nanoserve.fitting import Axis, StepsHistogram
from nanoserve.steps import Steps
from nanoserve_cli.observed.model import Observed
from nanoserve_cli.tuning.candidates import Candidate, default_within
from nanoserve_cli.tuning.cautions import cautions
from nanoserve_cli.tuning.decision import Noise, decide
from nanoserve_cli.tuning.evidence import Evidence, Load, Part
from nanoserve_cli.tuning.fits import Rules
from nanoserve_cli.tuning.report import Entry, TuneReport, report
from nanoserve_cli.tuning.scoring import CELLS, ROWS, Objective


def reported(found: Evidence, objective: Objective = CELLS, *, rule: Rules | None = None, **changes: Any) -> TuneReport:
    settings: dict[str, Any] = {"prior": None, "how": "mean", "noise": Noise()} | changes
    return report(found, objective, rule or rules(), **settings)


def rows_only(fit: dict[int, float], held: dict[int, float], limit: int = 16, **changes: Any) -> Evidence:
    """Rows as a server's log has them, with what else the log says."""
    load = Load(1.0, *(Part(StepsHistogram.of_rows(side), None) for side in (fit, held)))
    observed = Observed("server.log", "running", "", rows=tuple(sorted(fit.items())), **changes)
    return Evidence(
        "server.log", "running", (load,), False, limit, 256, size=(5000, "samples"), notes=(), observed=observed
    )


def a_list(name: str, count: int, *, fitted: bool = True) -> Candidate:
    policy = DecodeBuckets(64, 64, rows=[*range(1, count), 64], widths=[64])
    return Candidate(name, "fitted" if fitted else "defaults", policy, "some", "multiple:64")


class TestDecision:
    BASE = a_list("default", 4, fitted=False)

    def decided(self, *fitted: tuple[Candidate, list[float]], base: list[float], **changes: Any) -> Any:
        settings: dict[str, Any] = {"budget": 8, "noise": Noise(), "unit": "cells", "where": "here"} | changes
        return decide(fitted, (self.BASE, base), **settings)

    def test_the_cheapest_fitted_list_is_recommended(self) -> None:
        one, other = a_list("one", 5), a_list("other", 6)
        found = self.decided((one, [90]), (other, [80]), base=[100])
        assert found.recommended is found.best is other
        assert found.gains == (pytest.approx(0.2),)
        assert found.reason == "20.0% fewer cells than the default (some, 4 graphs), here"

    @pytest.mark.parametrize(
        ("cost", "reason"),
        [
            (99.5, "takes 0.5% fewer cells, here: not over 1.0%, and a list of one's own is work"),
            (100, "takes 0.0% fewer cells, here"),
            (103, "takes 3.0% more cells, here"),
        ],
    )
    def test_a_gain_within_the_noise_is_none(self, cost: float, reason: str) -> None:
        found = self.decided((a_list("one", 5), [cost]), base=[100])
        assert found.recommended is found.baseline is self.BASE
        assert found.best.name == "one"
        assert found.reason == f"no gain worth having: the one (5 graphs) {reason}"

    def test_a_larger_noise_takes_a_larger_gain_and_is_said(self) -> None:
        noise = Noise(0.12, "by which the model of step times is off")
        found = self.decided((a_list("one", 5), [90]), base=[100], noise=noise, unit="time")
        assert found.recommended is self.BASE
        assert found.reason.endswith(
            "takes 10.0% less time, here: not over 12.0%, by which the model of step times is off"
        )
        assert self.decided((a_list("one", 5), [87]), base=[100], noise=noise).recommended.name == "one"

    def test_loads_weigh_the_same_each_in_units_of_the_baseline(self) -> None:
        one, other = a_list("one", 5), a_list("other", 6)
        found = self.decided((one, [50, 1000]), (other, [80, 800]), base=[100, 1000])
        assert found.best is one
        assert found.gains == (0.5, 0.0)
        assert found.gain == 0.25

    def test_a_baseline_over_the_budget_is_never_recommended(self) -> None:
        found = self.decided((a_list("one", 3), [150]), base=[100], budget=3)
        assert found.recommended.name == "one"
        assert found.reason == (
            "50.0% more cells than the default (some, 4 graphs), which is over the budget of 3, here"
        )


class TestScores:
    FOUND = reported(evidence(drawn(300, every_ms=12), limits=(64, 256)), rule=rules((64, 256)))

    def test_the_recommended_list_costs_least_where_it_is_judged(self) -> None:
        (load,) = self.FOUND.loads
        assert self.FOUND.decision.best == load.best.candidate
        assert load.best.judged.cost == min(entry.judged.cost for entry in load.proposals)

    def test_in_sample_the_staircase_is_never_worse_than_the_product(self) -> None:
        for seed in range(4):
            staircase, product = reported(evidence(drawn(120, seed=seed)), prior=0.0).loads[0].proposals
            assert staircase.fit.cost <= product.fit.cost

    def test_it_beats_the_default_of_its_size_on_traffic_that_stays(self) -> None:
        found = reported(evidence(steady(400, every_ms=50, prompt=116)))
        assert found.decision.recommended.is_fitted
        (load,) = found.loads
        within = next(entry for entry in load.others if entry.candidate.name == "default of 5")
        assert load.best.judged.waste < 0.1
        assert within.judged.waste > 0.4

    def test_scores_are_of_the_two_parts(self) -> None:
        (one,) = self.FOUND.loads
        assert one.load.held is not None
        for entry in (*one.others, *one.proposals):
            assert entry.judged == CELLS.scorer(one.load.held).score(entry.candidate.policy)
            assert entry.fit == CELLS.scorer(one.load.fit).score(entry.candidate.policy)

    def test_a_rival_is_the_fitted_list_of_the_same_size(self) -> None:
        (one,) = self.FOUND.loads
        judge = CELLS.scorer(one.load.judged)
        for entry in one.others:
            size = min(entry.candidate.policy.count, 64)
            assert entry.rival == judge.score(one.fit.curve.at(size).best)
            assert entry.rival.available <= size

    def test_matched_is_the_fewest_graphs_that_cost_no_more_where_it_is_judged(self) -> None:
        (one,) = self.FOUND.loads
        judge = CELLS.scorer(one.load.judged)
        costs = {graphs: judge.score(one.fit.curve.at(graphs).best).cost for graphs in range(1, 65)}

        def counted(entry: Entry) -> int | None:
            return next((graphs for graphs, cost in costs.items() if cost <= entry.judged.cost), None)

        entries = [entry for entry in one.others if not entry.judged.off_list]
        assert [entry.matched for entry in entries] == [counted(entry) for entry in entries]
        assert len({entry.matched for entry in entries}) > 1

    def test_a_list_that_sends_steps_to_eager_has_no_match(self) -> None:
        found = reported(rows_only({3: 10.0, 60: 10.0}, {3: 10.0, 60: 10.0}, limit=64), ROWS, rule=rules((64, 256)))
        tgi = next(entry for entry in found.loads[0].others if entry.candidate.name == "tgi")
        assert tgi.judged.off_list == 0.5
        assert tgi.matched is None

    def test_the_hardest_baseline_is_always_there(self) -> None:
        for objective in (CELLS, ROWS):
            found = reported(evidence(steady(60, every_ms=50), limits=(64, 256)), objective, rule=rules((64, 256)))
            names = [entry.candidate.name for entry in found.loads[0].others]
            assert names[:2] == ["default", "default pruned"]
            default, pruned = found.loads[0].others[:2]
            assert default.fit.cost == pruned.fit.cost, "it presents the same shapes to what it was pruned to"
            assert pruned.candidate.policy.count < default.candidate.policy.count

    def test_every_proposal_covers_the_maxima(self) -> None:
        for entry in self.FOUND.loads[0].proposals:
            assert str(entry.candidate.policy.shapes[-1]) == "64x256"

    @pytest.mark.parametrize("limits", [(1, 256), (16, 1), (2, 130)])
    def test_the_smallest_servers_have_a_report(self, limits: tuple[int, int]) -> None:
        steps = run_of((1, 1, 1), (limits[0], 1, 1))
        found = reported(recorded(steps, steps, limits=limits), rule=rules(limits, granularity=1))
        assert found.decision.recommended.policy.shapes[-1].rows == limits[0]


class TestRunnerUp:
    def test_it_is_the_cheapest_complete_list_of_others_within_the_budget(self) -> None:
        found = reported(evidence(drawn(300, every_ms=12), limits=(64, 256)), rule=rules((64, 256), budget=12))
        assert found.runner_up is not None
        other, ratio = found.runner_up
        (load,) = found.loads
        costs = {
            entry.candidate.name: entry.judged.cost
            for entry in load.others
            if entry.candidate.completed and entry.candidate.policy.count <= 12
        }
        assert other.name in costs
        assert costs[other.name] == min(costs.values())
        assert ratio == costs[other.name] / load.best.judged.cost

    def test_of_several_loads_it_is_the_mean_and_no_list_of_one_load(self) -> None:
        found = reported(evidence(drawn(200), loads=(0.5, 2.0)))
        assert found.runner_up is not None
        other, ratio = found.runner_up
        assert other.name != "default pruned"
        best = next(one for one in found.shared if one.candidate is found.decision.best)
        theirs = [CELLS.scorer(load.load.judged).score(other.policy).cost for load in found.loads]
        assert ratio == pytest.approx(sum(a / b for a, b in zip(theirs, best.costs, strict=True)) / 2)

    def test_where_none_is_within_the_budget_there_is_none(self) -> None:
        assert reported(evidence(drawn(60)), rule=rules(budget=2)).runner_up is None


class TestBaseline:
    def test_it_is_our_default_within_the_budget(self) -> None:
        found = reported(evidence(drawn(60)), rule=rules(budget=5))
        assert found.decision.baseline == default_within("cells", 16, 256, 5)

    def test_the_servers_own_list_where_its_log_holds_it(self) -> None:
        found = reported(rows_only({3: 1.0}, {3: 1.0}, capture_sizes=(1, 4, 8)), ROWS, engine="vllm")
        assert found.decision.baseline.name == "server's list*"
        assert [shape.rows for shape in found.decision.baseline.policy.shapes] == [1, 4, 8, 16]
        own, whole = found.loads[0].others[:2]
        assert isinstance(own.candidate.policy, CaptureList)
        assert (own.candidate.name, whole.candidate.name) == ("server's list", "server's list*")

    def test_a_server_that_captures_nothing_has_none(self) -> None:
        found = reported(rows_only({3: 1.0}, {3: 1.0}, capture_sizes=()), ROWS)
        assert found.decision.baseline.name == "default"

    def test_the_engines_own_where_rows_go_to_it(self) -> None:
        rows = rows_only({3: 1.0}, {3: 1.0})
        assert reported(rows, ROWS, engine="sglang").decision.baseline.name == "default of sglang"
        assert reported(rows, ROWS, engine="gaudi").decision.baseline.name == "default"
        assert reported(evidence(drawn(60)), CELLS, engine="vllm").decision.baseline.group == "defaults"

    def test_a_list_as_good_as_the_servers_is_not_recommended(self) -> None:
        rows = {count: 10.0 for count in (2, 4, 8)}
        found = reported(rows_only(rows, rows, capture_sizes=(2, 4, 8, 16)), ROWS, rule=rules(budget=4))
        assert found.decision.recommended.name == "server's list"
        assert found.decision.reason == (
            "no gain worth having: the fitted list (4 graphs) takes 0.0% fewer rows, on the part held out"
        )


class TestSeveralLoads:
    FOUND = reported(evidence(drawn(200), loads=(0.5, 2.0)))

    def test_lists_for_all_loads_are_scored_on_each(self) -> None:
        assert [one.candidate.name for one in self.FOUND.shared] == [
            "mean of loads, staircase",
            "mean of loads, product",
        ]
        for one in (*self.FOUND.shared, *self.FOUND.across):
            for load, found in zip(self.FOUND.loads, one.scores, strict=True):
                assert found == CELLS.scorer(load.load.judged).score(one.candidate.policy)

    def test_one_of_them_is_recommended(self) -> None:
        decision = self.FOUND.decision
        assert decision.best in [one.candidate for one in self.FOUND.shared]
        base = self.FOUND.across[0]
        assert base.candidate == decision.baseline
        best = next(one for one in self.FOUND.shared if one.candidate == decision.best)
        assert decision.gains == tuple(
            1 - ours.cost / theirs.cost for ours, theirs in zip(best.scores, base.scores, strict=True)
        )

    def test_each_loads_own_best_is_beside_them(self) -> None:
        own = [load.best.candidate for load in self.FOUND.loads]
        assert [one.candidate for one in self.FOUND.across[1:]] == own

    def test_the_minimax_is_one_list_with_its_regrets(self) -> None:
        found = reported(evidence(drawn(120), loads=(0.5, 2.0)), how="minimax")
        assert [one.candidate.name for one in found.shared] == ["minimax of loads"]
        assert found.search is not None
        assert len(found.search.regrets) == 2

    def test_progress_is_told(self) -> None:
        said: list[str] = []
        reported(evidence(drawn(60), loads=(0.5, 2.0)), progress=said.append)
        assert said == [
            "fitting lists of up to 64 graphs to load 0.5",
            "fitting lists of up to 64 graphs to load 2",
            "fitting one list to all 2 loads",
        ]


class TestCautions:
    def of(self, found: TuneReport) -> tuple[str, ...]:
        return cautions(found, STEP)

    def test_much_evidence_on_traffic_that_stays_has_none(self) -> None:
        rows = {count: 10.0 for count in range(1, 17)}
        assert self.of(reported(rows_only(rows, rows), ROWS)) == ()

    @pytest.mark.parametrize(
        ("count", "what", "line"),
        [
            (199, "requests", "thin evidence: 199 requests; 200 or more would tell a list from chance"),
            (3, "samples", "thin evidence: 3 samples; 200 or more would tell a list from chance"),
            (999, "steps", "thin evidence: 999 steps; 1,000 or more would tell a list from chance"),
            (1000, "steps", None),
        ],
    )
    def test_thin_evidence(self, count: int, what: str, line: str | None) -> None:
        rows = {count: 10.0 for count in range(1, 17)}
        found = reported(replace(rows_only(rows, rows), size=(count, what)), ROWS)
        assert self.of(found) == (() if line is None else (line,))

    def test_a_batch_between_buckets_that_was_never_seen(self) -> None:
        rows = {2: 50.0, 15: 50.0}
        found = reported(rows_only(rows, rows), ROWS, rule=rules(budget=5), prior=0.0)
        assert found.decision.recommended.is_fitted
        assert self.of(found) == (
            "a batch of 3 was never seen: it would run as 15 rows, where the default has 4; "
            "a larger --prior or --max-pad 0.5 guards against that",
        )

    def test_with_widths_its_shape_is_told_at_their_median(self) -> None:
        steps = run_of((2, 33, 500), (3, 10, 499))
        found = reported(recorded(steps, steps, limits=(16, 600)), rule=rules((16, 600)), prior=0.0)
        (line,) = [one for one in self.of(found) if one.startswith("a batch")]
        assert line.startswith("a batch of 4 was never seen: 4x271 would run as 16x600, where the default of ")

    def test_bounded_padding_has_none(self) -> None:
        rows = {2: 50.0, 15: 50.0}
        found = reported(rows_only(rows, rows), ROWS, rule=Rules(Axis(16, max_pad=0.5), Axis(256), 8), prior=0.0)
        assert found.decision.recommended.is_fitted
        assert self.of(found) == ()

    def test_other_rates_that_lose_are_told_with_the_flag(self) -> None:
        limits = (64, 256)
        found = reported(evidence(steady(600, every_ms=100), limits=limits), rule=rules(limits), prior=0.0)
        assert found.decision.recommended.is_fitted
        lines = [line for line in self.of(found) if line.startswith("at load")]
        assert [line.split(" it wastes")[0] for line in lines] == ["at load 2"]
        assert lines[0].endswith("if that may come, fit it too, --loads 1,2")

    def test_a_load_on_which_the_shared_list_loses_is_told(self) -> None:
        found = reported(evidence(drawn(200), loads=(0.5, 2.0)))
        worse = replace(found, decision=replace(found.decision, gains=(0.4, -0.031)))
        assert (
            "it costs more than the default of 5: 3.1% at load 2; --robust minimax looks at the worst load"
            in self.of(worse)
        )
        assert not [line for line in self.of(found) if line.startswith("it costs more")]

    def test_what_is_there_already_needs_none_of_them(self) -> None:
        rows = {count: 10.0 for count in (2, 4, 8)}
        found = reported(rows_only(rows, rows, capture_sizes=(2, 4, 8, 16)), ROWS, rule=rules(budget=4))
        assert self.of(found) == ()


def test_a_recorded_run_is_reported_without_requests() -> None:
    steps: Steps = run_of((3, 30, 100), (4, 10, 100))
    found = reported(recorded(steps, steps))
    assert found.evidence.traffic is None
    assert found.decision.recommended.is_fitted
    assert [line for line in cautions(found, STEP) if line.startswith("at load")] == []
