"""The proof on the engine: stretches of the held-out part, the very steps that were priced, the same tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tune_cases import STEP, drawn, evidence, run_of, steady

from nanoserve.buckets import CaptureList, DecodeBuckets, Shape
from nanoserve.pricing import price_run
from nanoserve.simulate import simulate
from nanoserve.workload import Workload
from nanoserve_cli.compare import ClockSettings, RunUnsound
from nanoserve_cli.tuning.candidates import Candidate
from nanoserve_cli.tuning.stretches import Stretch, stretch, stretches

torch = pytest.importorskip("torch")

from nanoserve_cli.tuning import verify as proof  # noqa: E402

CLOCK = ClockSettings(step_ns=STEP.step_ns)


def a_list(name: str, policy: Any) -> Candidate:
    return Candidate(name, "fitted", policy, "list", "list")


FINE = a_list("fine", DecodeBuckets(16, 256, rows=range(1, 17), widths=[64, 128, 192, 256]))
COARSE = a_list("coarse", DecodeBuckets(16, 256, rows=[16], widths=[192, 256]))


class TestStretches:
    @given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(1, 40))
    def test_replayed_it_is_the_same_steps(self, seed: int, start: int, length: int) -> None:
        """The simulator again, on the stretch alone: rows, widths and live cells of every step, from step 1 on."""
        workload = drawn(40, seed=seed)
        whole = simulate(workload, 16, step_time=STEP)
        part = stretch(workload, whole, step_ns=STEP.step_ns, start=start, stop=start + length)
        expected = whole.steps.between(start, start + length)
        if part is None:
            assert len(expected) == 0
            return
        alone = simulate(part.workload, 16, step_time=STEP).steps
        assert alone == part.steps
        for ours, theirs in zip(alone.columns[1:], expected.columns[1:], strict=True):
            assert ours.tolist() == theirs.tolist()

    def test_they_are_spread_over_the_run(self) -> None:
        workload = steady(200, every_ms=100)
        run = simulate(workload, 16, step_time=STEP)
        found = stretches(workload, run, step_ns=STEP.step_ns, first_step=400, steps=40, count=4)
        assert len(found) == 4
        assert [one.steps.total_steps for one in found] == [10] * 4
        # In the steady state a request comes every 4 steps and decodes 12: each stretch has 3 rows.
        assert {rows for one in found for rows in one.steps.rows.tolist()} == {3}

    def test_a_short_run_is_one_stretch_with_all_of_it(self) -> None:
        workload = steady(5, every_ms=100)
        run = simulate(workload, 16, step_time=STEP)
        (one,) = stretches(workload, run, step_ns=STEP.step_ns, first_step=0, steps=10_000, count=4)
        assert one.steps.total_steps == run.steps.total_steps

    def test_it_needs_a_step_to_prefill_in(self) -> None:
        workload = steady(5, every_ms=100)
        with pytest.raises(ValueError, match="a stretch needs a step before it to prefill in, got a start at step 0"):
            stretch(workload, simulate(workload, 16, step_time=STEP), step_ns=STEP.step_ns, start=0, stop=4)


class TestProof:
    def verified(self, decoder: Any, candidate: Candidate = FINE, baseline: Candidate = COARSE) -> proof.Proof:
        load = evidence(drawn(60)).loads[0]
        return proof.verify(candidate, baseline, load, decoder, CLOCK, steps=16)

    def test_both_lists_run_the_held_out_steps_with_equal_tokens(self, decoder: Any) -> None:
        load = evidence(drawn(60)).loads[0]
        assert load.workload is not None
        run = simulate(load.workload, 16, step_time=STEP)
        parts = stretches(
            load.workload, run, step_ns=STEP.step_ns, first_step=run.cut_at(load.cut_ns), steps=16, count=4
        )
        found = self.verified(decoder)
        assert found.stretches == 4
        assert found.steps == sum(part.steps.total_steps for part in parts) == 16
        assert found.requests == sum(len(part.workload) for part in parts)
        assert found.cells == tuple(
            sum(price_run(part.steps, one.policy).padded_cells for part in parts) for one in (FINE, COARSE)
        )
        assert found.cells[0] < found.cells[1]
        assert found.partings.requests == 0
        assert found.ratio.samples == 16
        assert min(found.tokens_per_s) > 0

    def test_a_list_that_is_not_complete_runs_eager_off_it(self, decoder: Any) -> None:
        gaps = a_list("gaps", CaptureList([Shape(2, 64)], max_batch_size=16, max_model_len=256))
        assert self.verified(decoder, candidate=gaps).partings.requests == 0

    def test_cells_that_were_not_priced_are_no_proof(self, decoder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        def wrong(steps: Any, policy: Any) -> Any:
            cost = price_run(steps, policy)
            return type(cost)(**{**vars(cost), "padded_cells": cost.padded_cells + 1})

        monkeypatch.setattr(proof, "price_run", wrong)
        with pytest.raises(RunUnsound, match=r"fine ran \d+ cells, the arithmetic says \d+"):
            self.verified(decoder)

    def test_other_steps_than_were_simulated_are_no_proof(self, decoder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        def shorter(*args: Any, **settings: Any) -> list[Stretch]:
            cut = []
            for one in stretches(*args, **settings):
                outputs = np.maximum(one.workload.output_len - 1, 1)
                cut.append(Stretch(Workload(one.workload.arrival_ns, one.workload.prompt_len, outputs), one.steps))
            return cut

        monkeypatch.setattr(proof, "stretches", shorter)
        with pytest.raises(RunUnsound, match="fine: the engine took other steps than the simulation"):
            self.verified(decoder)

    def test_where_nobody_decodes_there_is_nothing_to_run(self, decoder: Any) -> None:
        load = replace(evidence(drawn(60)).loads[0], cut_ns=10**15)
        with pytest.raises(ValueError, match="--verify: no request decodes in the part that was held out"):
            proof.verify(FINE, COARSE, load, decoder, CLOCK, steps=8)

    def test_a_list_of_rows_runs_at_the_width_that_is_needed(self) -> None:
        rows = a_list("rows", DecodeBuckets(16, 256, rows=[4, 16], widths=[256]))
        part = Stretch(steady(1, every_ms=1), run_of((3, 50, 20)))
        assert proof.for_engine(rows, part).policy == DecodeBuckets(16, 80, rows=[4, 16], widths=[80])

    def test_by_rows_both_lists_have_one_width(self, decoder: Any) -> None:
        load = evidence(drawn(60)).loads[0]
        found = proof.verify(FINE, COARSE, load, decoder, CLOCK, steps=16, by_rows=True)
        assert found.cells[0] < found.cells[1] <= 16 * 16 * 192
        assert found.partings.requests == 0
