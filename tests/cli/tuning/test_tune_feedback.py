"""Lists under their own cost: what a token takes once padding has slowed the steps, and what that changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tune_cases import drawn, evidence, recorded, run_of, steady, write_trace

from nanoserve.buckets import DecodeBuckets
from nanoserve.simulate import simulate
from nanoserve.step_time import LinearStepTime, StepTime, TableStepTime
from nanoserve_cli.traffic import TrafficOptions
from nanoserve_cli.tuning.candidates import Candidate
from nanoserve_cli.tuning.evidence import Load
from nanoserve_cli.tuning.feedback import settle
from nanoserve_cli.tuning.run import Tuned, TuneSettings, tune

LINEAR = LinearStepTime(2e6, 3e6, 0.0)
"""2 ms and 3 ms a graph row."""


def a_list(*rows: int) -> Candidate:
    policy = DecodeBuckets(rows[-1], 256, rows=rows, widths=[256])
    return Candidate(f"rows {rows}", "fitted", policy, "list", "multiple:256")


def step_by_step(load: Load, candidate: Candidate, model: StepTime) -> tuple[int, float, float]:
    """Steps, ms a token and mean rows of the held-out part, each step visited."""
    assert load.workload is not None
    run = simulate(load.workload, 16, step_time=model, policy=candidate.policy)
    row_ns = tokens = steps = 0
    for first, rows, width, count, _ in run.steps:
        for i in range(count):
            if int(run.clock.start_of(np.array([first + i]))[0]) >= load.cut_ns:
                shape = candidate.policy.shape_for(rows, width + i)
                row_ns += rows * model.ns(shape.rows, shape.cells)
                tokens += rows
                steps += 1
    return steps, row_ns / tokens / 1e6, tokens / steps


@pytest.mark.parametrize("rows", [(16,), (4, 16), tuple(range(1, 17))])
@pytest.mark.parametrize("model", [LINEAR, LinearStepTime(1e6, 1e5, 2e3), TableStepTime((1, 8, 16), (1e7, 2e7, 9e7))])
def test_a_token_takes_what_its_steps_take_each_weighed_by_its_rows(model: StepTime, rows: tuple[int, ...]) -> None:
    found = evidence(drawn(80))
    (settled,) = settle(found, [a_list(*rows)], model)
    steps, ms, mean_rows = step_by_step(found.loads[0], a_list(*rows), model)
    assert settled.steps == steps
    assert settled.ms_per_token == pytest.approx(ms)
    assert settled.mean_rows == pytest.approx(mean_rows)


def test_a_fixed_length_is_what_a_token_takes() -> None:
    (settled,) = settle(evidence(drawn(80)), [a_list(16)], LinearStepTime(7e6, 0, 0))
    assert settled.ms_per_token == pytest.approx(7.0)


def test_padding_gathers_rows() -> None:
    """The slow state: at 16 graph rows a step takes 50 ms, so requests pile up that another list has at 2 or 3."""
    tight, padded = settle(evidence(steady(300, every_ms=100)), [a_list(*range(1, 17)), a_list(16)], LINEAR)
    assert tight.mean_rows < 2
    assert padded.mean_rows > 5
    assert padded.ms_per_token == pytest.approx(50.0)
    assert tight.ms_per_token < 10


def test_a_server_that_cannot_keep_up_is_told_by_its_wait() -> None:
    lists = [a_list(*range(1, 17)), a_list(16)]
    waits = [one.longest_wait for one in settle(evidence(steady(300, every_ms=39)), lists, LINEAR)]
    assert waits[0] == 0
    assert waits[1] >= 5


def test_every_load_has_every_list() -> None:
    lists = [a_list(16), a_list(4, 16)]
    found = settle(evidence(drawn(80), loads=(0.5, 2.0)), lists, LINEAR)
    assert [(one.factor, one.candidate) for one in found] == [(f, one) for f in (0.5, 2.0) for one in lists]


def test_recorded_steps_have_nothing_to_settle() -> None:
    steps = run_of((1, 1, 9))
    with pytest.raises(ValueError, match="needs requests to simulate: this source has none"):
        settle(recorded(steps, steps), [a_list(16)], LINEAR)


class TestRecommendation:
    def tuned(self, folder: Path, model: StepTime | None, **changes: object) -> Tuned:
        path = write_trace(folder / "t.csv", drawn(300, every_ms=25))
        settings = TuneSettings(
            TrafficOptions(source=str(path)), max_batch_size=16, max_model_len=256, graphs=6, width_granularity=32
        )
        return tune(replace(settings, step_time=model, **changes))  # type: ignore[arg-type]

    def test_the_finalists_are_simulated_anew_and_one_of_them_is_recommended(self, tmp_path: Path) -> None:
        found = self.tuned(tmp_path, LinearStepTime(5e6, 1e5, 5e3))
        names = [one.candidate.name for one in found.settled]
        assert names == ["fitted staircase", "fitted product", "default of 5"]
        by_name = {one.candidate.name: one.ms_per_token for one in found.settled}
        decision = found.report.decision
        assert by_name[decision.best.name] == min(by_name["fitted staircase"], by_name["fitted product"])
        assert decision.gain == pytest.approx(1 - by_name[decision.best.name] / by_name["default of 5"])
        assert "less time a token than the default of 5" in decision.reason
        assert decision.reason.endswith("under its own cost, on the part held out")

    def test_it_changes_what_is_recommended(self, tmp_path: Path) -> None:
        """The fit saves cells, mostly by widths; a server whose steps take 4 ms a row and nothing a cell wants rows."""
        model = LinearStepTime(1e6, 4e6, 0.0)
        found = self.tuned(tmp_path, model, objective="cells")
        by_cells = found.report.loads[0].best
        base = next(e for e in found.report.loads[0].others if e.candidate.name == "default of 5")
        assert by_cells.judged.cost < 0.9 * base.judged.cost, "in cells the fitted list is far better"
        assert found.report.decision.recommended.name == "default of 5"
        assert found.report.decision.reason.startswith("no gain worth having: the fitted ")

    def test_on_a_fixed_step_nothing_is_settled(self, tmp_path: Path) -> None:
        assert self.tuned(tmp_path, None).settled == ()
