"""Evidence: what is read, how it is cut by time, what is refused and in which words."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tune_cases import STEP, drawn, gathered, run_of, steady, write, write_trace

from nanoserve.fitting import StepsHistogram
from nanoserve.simulate import simulate
from nanoserve.step_time import LinearStepTime
from nanoserve.steps import Steps
from nanoserve_cli.observed.model import Sample
from nanoserve_cli.records import steps_csv
from nanoserve_cli.traffic import TrafficOptions
from nanoserve_cli.tuning.evidence import Load, Part
from nanoserve_cli.tuning.gather import NoHoldout, cut, cut_samples, gather, scaled, simulated

TABLE = "INFO 09-02 08:46:{second:02d} [cuda_graph.py:123] | {rows} | {rows} | 0 | FULL | {count} |\n"
DECODE = "[2026-04-05 20:02:{second:02d}] Decode batch, #running-req: {rows}, #token: {tokens}, cuda graph: True\n"


def histogram(part: Part) -> dict[tuple[int, int], float]:
    columns = (part.histogram.rows, part.histogram.width, part.histogram.weight)
    return {(rows, width): weight for rows, width, weight in zip(*(c.tolist() for c in columns), strict=True)}


def added(*parts: Part) -> StepsHistogram:
    return StepsHistogram.mixture([(part.histogram, 1) for part in parts])


def refusal(path: Path, **changes: Any) -> str:
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        gathered(path, **changes)
    assert "\n" not in str(refused.value)
    return str(refused.value)


class TestRequests:
    @given(st.integers(0, 2**32 - 1), st.sampled_from((0.1, 0.3, 0.5, 0.9)))
    def test_the_two_parts_are_the_whole_run(self, seed: int, holdout: float) -> None:
        workload = drawn(60, seed=seed)
        load = simulated(workload, 1.0, 8, STEP, holdout)
        whole = simulate(workload, 8, step_time=STEP)
        assert load.held is not None
        assert added(load.fit, load.held) == StepsHistogram.of(whole.steps)
        assert load.fit.live_cells is not None
        assert load.held.live_cells is not None
        assert load.fit.live_cells + load.held.live_cells == int(whole.steps.live_cells.sum())

    def test_a_step_is_on_the_side_on_which_it_starts(self) -> None:
        run = simulate(steady(40, every_ms=100), 8, step_time=STEP)
        before, after, moment = cut(run, 0.25)
        assert after is not None
        assert moment == int(0.75 * run.span_ns)
        last = int(before.start_step[-1] + before.steps[-1]) - 1
        assert last * STEP.step_ns < moment <= int(after.start_step[0]) * STEP.step_ns

    def test_the_fit_part_is_cut_once_more_at_the_same_share(self) -> None:
        load = simulated(drawn(200), 1.0, 8, STEP, 0.3)
        assert load.inner is not None
        assert added(*load.inner) == load.fit.histogram
        share = load.inner[1].histogram.total / load.fit.histogram.total
        assert share == pytest.approx(0.3, abs=0.05)

    def test_nothing_held_out_is_the_whole_run_and_still_has_an_inner_cut(self) -> None:
        load = simulated(drawn(60), 1.0, 8, STEP, 0.0)
        assert load.held is None
        assert load.judged is load.fit
        assert load.inner is not None

    def test_a_load_divides_the_gaps_between_arrivals(self) -> None:
        workload = drawn(50)
        doubled = scaled(workload, 2.0)
        assert np.abs(doubled.arrival_ns * 2 - workload.arrival_ns).max() <= 1
        assert (doubled.prompt_len == workload.prompt_len).all()

    def test_more_load_is_more_rows(self, tmp_path: Path) -> None:
        found = gathered(write_trace(tmp_path / "t.csv", steady(200, every_ms=100)), loads=(0.5, 1.0, 2.0))
        assert [load.factor for load in found.loads] == [0.5, 1.0, 2.0]
        # 12 decode steps of 25 ms each, a request every 200, 100 and 50 ms: 1.5, 3 and 6 rows.
        assert [load.most_rows for load in found.loads] == [2, 3, 6]
        assert found.size == (200, "requests")
        assert found.has_widths

    def test_a_step_time_that_depends_on_the_shape_drives_the_simulation(self, tmp_path: Path) -> None:
        path = write_trace(tmp_path / "t.csv", steady(100, every_ms=100))
        slow = gathered(path, step_time=LinearStepTime(5e7, 0.0, 0.0))
        assert slow.loads[0].most_rows == 6, "twice the 25 ms of a step, twice the rows"

    def test_too_few_requests_for_a_held_out_part(self, tmp_path: Path) -> None:
        path = write_trace(tmp_path / "t.csv", steady(1, every_ms=1, outputs=2))
        assert refusal(path) == "load 1: 1 requests are too few to hold some out: give --holdout 0"
        assert gathered(path, holdout=0.0).loads[0].held is None

    def test_requests_that_never_decode(self, tmp_path: Path) -> None:
        path = write_trace(tmp_path / "t.csv", steady(5, every_ms=1, outputs=1))
        assert refusal(path, holdout=0.0) == "load 1: none of the 5 requests takes a decode step"

    def test_all_at_once_has_no_rate_to_scale(self) -> None:
        options = TrafficOptions(num_requests=20, prompt_len="5", output_len="4")
        with pytest.raises(ValueError, match="--loads changes nothing where all requests arrive at once: add"):
            gather(options, max_batch_size=4, max_model_len=64, loads=(1.0, 2.0))

    def test_requests_over_the_length_are_told(self, tmp_path: Path) -> None:
        path = write_trace(tmp_path / "t.csv", drawn(50))
        found = gathered(path, max_model_len=100)
        assert any("requests over max_model_len 100 left out" in note for note in found.notes)


class TestRecordedSteps:
    STEPS = run_of((3, 10, 40), (5, 20, 60))

    def path(self, folder: Path, steps: Steps = STEPS) -> Path:
        return write(folder / "steps.csv", [steps_csv(steps)])

    def test_it_is_cut_by_the_number_of_its_steps(self, tmp_path: Path) -> None:
        (load,) = gathered(self.path(tmp_path)).loads
        assert load.held is not None
        assert histogram(load.fit) == {**{(3, 10 + i): 1 for i in range(40)}, **{(5, 20 + i): 1 for i in range(30)}}
        assert histogram(load.held) == {(5, 50 + i): 1 for i in range(30)}
        assert added(load.fit, load.held) == StepsHistogram.of(self.STEPS)

    def test_idle_time_counts(self, tmp_path: Path) -> None:
        gap = Steps(
            np.array([0, 90]), np.array([1, 2]), np.array([5, 5]), np.array([10, 10]), np.array([95, 190], np.int64)
        )
        (load,) = gathered(self.path(tmp_path, gap)).loads
        assert load.held is not None
        assert set(histogram(load.fit)) == {(1, 5 + i) for i in range(10)}

    def test_one_step_cannot_be_divided(self, tmp_path: Path) -> None:
        path = self.path(tmp_path, run_of((1, 5, 1)))
        with pytest.raises(NoHoldout, match=r"1 steps are too few to hold 0\.3 of them out: give --holdout 0"):
            gathered(path)
        assert gathered(path, holdout=0.0).loads[0].held is None

    def test_steps_beyond_a_limit_name_the_flag(self, tmp_path: Path) -> None:
        path = self.path(tmp_path)
        assert refusal(path, max_batch_size=4).endswith("has steps of 5 rows, above 4: give the server's --max-batch")
        assert refusal(path, max_model_len=64).endswith(
            "has steps of 79 columns, above 64: give the server's --max-model-len"
        )

    @pytest.mark.parametrize(
        ("options", "flag"),
        [
            ({"limit": 3}, "--limit"),
            ({"strict": True}, "--strict"),
            ({"request_rate": 2.0}, "--request-rate"),
            ({"max_len": "clip"}, "--max-len"),
        ],
    )
    def test_what_is_of_requests_is_refused(self, options: dict[str, Any], flag: str, tmp_path: Path) -> None:
        path = self.path(tmp_path)
        with pytest.raises(ValueError, match=f"^{flag} is of requests, and .*steps.csv holds none: it was read as"):
            gather(TrafficOptions(source=str(path), **options), max_batch_size=None, max_model_len=256)

    def test_loads_are_of_requests(self, tmp_path: Path) -> None:
        assert refusal(self.path(tmp_path), loads=(1.0, 2.0)).startswith("--loads is of requests")


class TestSamples:
    @given(
        st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9), st.floats(0.5, 20)), min_size=1, max_size=30),
        st.floats(0, 60),
        st.booleans(),
    )
    def test_the_sides_of_a_cut_add_up(self, drawn_samples: Any, moment: float, lasting: bool) -> None:
        samples = [Sample(float(at), rows, weight) for at, rows, weight in drawn_samples]
        before, after = cut_samples(samples, moment, lasting=lasting)
        for rows in range(1, 10):
            whole = sum(one.weight for one in samples if one.rows == rows)
            assert before.get(rows, 0) + after.get(rows, 0) == pytest.approx(whole)
        assert 0 not in before | after, "idle time is no step"

    def test_a_lasting_sample_is_divided_at_the_moment(self) -> None:
        samples = [Sample(0.0, 2, 10.0), Sample(10.0, 4, 10.0)]
        assert cut_samples(samples, 14.0, lasting=True) == ({2: 10.0, 4: 4.0}, {4: 6.0})
        assert cut_samples(samples, 14.0, lasting=False) == ({2: 10.0, 4: 10.0}, {})

    def running(self, folder: Path, rows: list[int]) -> Path:
        return write(folder / "running.csv", ["t,running\n", *(f"{at},{count}\n" for at, count in enumerate(rows))])

    def test_rows_over_time_are_held_out_by_time(self, tmp_path: Path) -> None:
        found = gathered(self.running(tmp_path, [1, 1, 1, 1, 2, 2, 2, 8, 8, 8]))
        (load,) = found.loads
        assert load.held is not None
        assert histogram(load.fit) == {(1, 1): 4.0, (2, 1): 3.0}
        assert histogram(load.held) == {(8, 1): 3.0}
        assert load.inner is not None
        assert histogram(load.inner[0]) == pytest.approx({(1, 1): 4.0, (2, 1): 0.9})
        assert histogram(load.inner[1]) == pytest.approx({(2, 1): 2.1})
        assert not found.has_widths
        assert found.size == (10, "samples")
        assert found.loads[0].fit.live_cells is None

    def test_the_steps_of_one_second_cannot_be_divided(self, tmp_path: Path) -> None:
        path = write(tmp_path / "server.log", [TABLE.format(second=5, rows=rows, count=10) for rows in (3, 4)])
        (load,) = gathered(path).loads
        assert load.held is None
        assert refusal(path, holdout=0.5).endswith("too few samples to hold 0.5 of them out: give --holdout 0")

    def test_without_time_a_hold_out_is_refused_and_says_why(self, tmp_path: Path) -> None:
        path = write(tmp_path / "running.csv", ["running,other\n", "3,0\n", "4,0\n"])
        assert refusal(path, holdout=0.3).startswith(f"{path}: --holdout 0.3 needs time: no column of times: looked")
        found = gathered(path)
        assert found.loads[0].held is None
        assert any(note.startswith("nothing is held out: no column of times") for note in found.notes)

    def test_tables_of_a_log_count_steps_and_show_what_is_not_fitted(self, tmp_path: Path) -> None:
        lines = [TABLE.format(second=second, rows=4 + second % 2, count=10) for second in range(20)]
        lines.append("INFO 09-02 08:46:30 [cuda_graph.py:123] | 900 | 900 | 0 | PIECEWISE | 7 |\n")
        found = gathered(write(tmp_path / "server.log", lines))
        (load,) = found.loads
        assert load.held is not None
        assert histogram(load.fit) == {(4, 1): 70, (5, 1): 70}
        assert histogram(load.held) == {(4, 1): 30, (5, 1): 30}
        assert "counted and not fitted, steps with prefill or off the graphs: 7 of mode PIECEWISE" in found.notes
        assert "the largest batch is not in the file: 256 is assumed; give the server's --max-batch" in found.notes

    def test_a_line_of_many_steps_is_one_sample(self, tmp_path: Path) -> None:
        lines = [DECODE.format(second=second, rows=4, tokens=400) for second in range(3)]
        found = gathered(write(tmp_path / "server.log", lines))
        assert found.size == (3, "samples")
        assert "mean context of a row: 100 tokens" in found.notes

    def test_the_servers_own_batch_is_taken_and_another_one_told(self, tmp_path: Path) -> None:
        lines = ["max_num_seqs=24\n", *(TABLE.format(second=second, rows=4, count=10) for second in range(9))]
        path = write(tmp_path / "server.log", lines)
        assert gathered(path).max_batch_size == 24
        asked = gathered(path, max_batch_size=32)
        assert asked.max_batch_size == 32
        assert "the server's own largest batch is 24: the list is for 32, as asked" in asked.notes

    def test_broken_lines_are_told(self, tmp_path: Path) -> None:
        lines = [TABLE.format(second=second, rows=4, count=10) for second in range(9)]
        lines.insert(3, "INFO 09-02 08:46:03 [cuda_graph.py:123] | 41 | 4\n")
        lines.insert(3, "INFO 09-02 08:46:03 [cuda_graph.py:123] | 41 | FULL | 4\n")
        found = gathered(write(tmp_path / "server.log", lines))
        assert "1 lines skipped: table row cut short or garbled (first at line 4)" in found.notes


def test_a_packed_file_is_read_and_its_sum_is_of_the_file_as_stored(tmp_path: Path) -> None:
    path = tmp_path / "running.csv.gz"
    path.write_bytes(gzip.compress(b"t,running\n0,2\n1,3\n2,4\n3,5\n"))
    found = gathered(path)
    assert found.loads[0].most_rows <= 5
    assert found.source_sha256 is not None
    assert len(found.source_sha256) == 64


def test_lifecycle_records_are_rows_until_their_lengths_are_asked_for(tmp_path: Path) -> None:
    records = [
        {
            "request_id": str(i),
            "input_toks": 40,
            "output_toks": 20,
            "arrival_time": 1000.0 + i,
            "first_token_ts": 5.0 + i,
            "last_token_ts": 9.5 + i,
        }
        for i in range(30)
    ]
    path = write(tmp_path / "run.jsonl", [json.dumps(record) + "\n" for record in records])
    assert not gathered(path).has_widths
    options = TrafficOptions(source=str(path), format="vllm-requests")
    assert gather(options, max_batch_size=8, max_model_len=256).has_widths


def test_the_judged_part_is_the_one_held_out() -> None:
    fit, held = Part.of(run_of((1, 5, 4))), Part.of(run_of((9, 8, 4)))
    load = Load(1.0, fit, held)
    assert load.judged is held
    assert load.parts == (fit, held)
    assert (load.most_rows, load.most_width) == (9, 11)
