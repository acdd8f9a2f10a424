"""The rows of a sweep against other ways to the same figures: the engine's replay, `nanoserve capture`, dynamo."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweeping import DRAWN, SMALL, TINY, invoke, rows_of, spec, sweep, swept, vidur
from typer.testing import CliRunner

from nanoserve.buckets import Shape
from nanoserve.ladders import ROW_LADDERS
from nanoserve_cli import pricer as pricer_module
from nanoserve_cli import sweep as sweep_module
from nanoserve_cli.app import app
from nanoserve_cli.columns import COUNT_COLUMNS, TIME_COLUMNS
from nanoserve_cli.compare import ClockSettings, EngineSettings, compare
from nanoserve_cli.executors import InProcess
from nanoserve_cli.grid import Lockstep, SweepSpec
from nanoserve_cli.pricer import load
from nanoserve_cli.records import count_columns
from nanoserve_cli.traffic import TrafficOptions

EVERY_LADDER = (
    "pow2,vllm,vllm-interactive,sglang,trtllm,nano-vllm,mini-sglang,lmdeploy,tgi,gaudi-exp,gaudi-pad,list:1,3"
)


class TestAgainstTheEngine:
    """The engine plans every step under its scheduler; the sweep never visits one."""

    @pytest.mark.parametrize("traffic", [DRAWN, ("--steps", 40, "--rows", 3), ("--steps", 1, "--prompt", 63)], ids=str)
    @pytest.mark.parametrize("multiple", [1, 7, 16, 64])
    def test_every_count_is_that_of_a_bench_of_the_same_policy_and_traffic(
        self, traffic: Sequence[object], multiple: int, tmp_path: Path
    ) -> None:
        flags = (*traffic, "--max-batch", 5, "--max-model-len", 64, "--width-multiple", multiple, "--host-only", "-q")
        done = CliRunner().invoke(app, ["bench", *map(str, flags), "--out", str(tmp_path)])
        assert done.exit_code == 0, done.stderr
        (benched,) = rows_of(tmp_path / "runs.csv")
        assert invoke(*flags, "--out", tmp_path / "sweep.csv").exit_code == 0
        (row,) = rows_of(tmp_path / "sweep.csv")
        assert {name: row[name] for name in COUNT_COLUMNS} == {name: benched[name] for name in COUNT_COLUMNS}
        for name in ("max_batch_size", "max_model_len", "policy", "clock", "step_time", "seed"):
            assert row[name] == benched[name]

    def test_so_it_is_under_every_ladder_complete_or_not(self, tmp_path: Path) -> None:
        """A bursty trace of 60 requests over at most 50 rows: lists that lack their maxima run steps eager."""
        burst = [(n // 20 * 0.4, 3 + n * 7 % 40, 1 + n * 5 % 30) for n in range(60)]
        traffic = TrafficOptions(str(vidur(tmp_path / "t.csv", burst)))
        asked = SweepSpec(
            traffic=(traffic,),
            max_batch=(50,),
            max_model_len=(72,),
            rows_ladder=(*ROW_LADDERS, "list:1,3"),
            width_ladder=("multiple:10", "pow2:8", "list:20,40"),
            host_only=True,
        )
        work = swept(asked)
        workload = load(traffic, 72).workload
        off_list = set()
        for outcome in work.run(InProcess(), print):
            ran = compare(workload, EngineSettings(outcome.point.policy(), None), ClockSettings())
            expected = count_columns(ran)
            assert outcome.row is not None
            assert {name: outcome.row[name] for name in expected} == expected, outcome.point.label
            off_list.add(outcome.row["off_list_steps"] > 0)
        assert off_list == {True, False}

    def test_a_trace_that_is_clipped_or_cut_short_is_the_benchs_too(self, tmp_path: Path) -> None:
        path = vidur(tmp_path / "t.csv", [(0, 50, 9), (0.1, 9, 60), (0.2, 70, 3), (0.3, 5, 5)])
        for more in (("--max-len", "clip"), ("--limit", "2", "--max-len", "clip"), ("--request-rate", "3"), ()):
            flags = ("--from", path, *more, "--max-batch", 3, "--max-model-len", 64, "--host-only", "-q")
            out = tmp_path / "_".join(map(str, more or ("none",)))
            assert CliRunner().invoke(app, ["bench", *map(str, flags), "--out", str(out)]).exit_code == 0
            assert invoke(*flags, "--out", out / "sweep.csv").exit_code == 0
            (benched,), (row,) = rows_of(out / "runs.csv"), rows_of(out / "sweep.csv")
            assert {name: row[name] for name in COUNT_COLUMNS} == {name: benched[name] for name in COUNT_COLUMNS}
            assert (row["trace_sha256"], row["trace_key"]) == (benched["trace_sha256"], "")


class TestSharing:
    def test_a_traffic_is_read_once_and_simulated_once_for_each_pair_of_limits(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls = {"read_requests": 0, "simulate": 0}
        for name in calls:
            own = getattr(pricer_module, name)

            def spy(*arguments: Any, own: Any = own, name: str = name, **more: Any) -> Any:
                calls[name] += 1
                return own(*arguments, **more)

            monkeypatch.setattr(pricer_module, name, spy)
        points = sweep(
            *DRAWN,
            *("--max-batch", "2,4", "--max-model-len", "48,64,80", "--rows-ladder", "pow2,vllm"),
            *("--width-multiple", "8,16", "--host-only"),
        )
        assert len(points) == 24
        assert calls == {"read_requests": 1, "simulate": 6}

    def test_two_traffics_are_two(self, tmp_path: Path) -> None:
        one, other = (vidur(tmp_path / f"{n}.csv", [(0, 5, n)]) for n in (3, 4))
        points = sweep("--from", one, "--from", other, "--max-model-len", 64, "--host-only")
        assert [(point["workload"], point["live_cells"]) for point in points] == [(str(one), 6 + 7), (str(other), 21)]
        assert len({point["trace_sha256"] for point in points}) == 2


class TestStepTime:
    def test_padding_makes_steps_longer_and_longer_steps_meet_more_arrivals(self, tmp_path: Path) -> None:
        """1 ms and 1 ms a cell. A: prompt 2, output 4, at 0. B: prompt 2, output 2, at 8 ms.

        Exact widths: the steps of A last 4, 5 and 6 ms; B waits for 10 ms, A ends at 16 ms, B decodes alone: 4 steps of
        one row, 3 + 4 + 5 + 3 cells. All 16 wide: the first step of A ends at 18 ms, B prefills in the second and
        decodes beside the third, which has 2 rows of 5: 3 steps, 3 + 4 + 10 cells, and 16 + 16 + 32 padded.
        """
        path = vidur(tmp_path / "t.csv", [(0, 2, 4), (0.008, 2, 2)])
        flags = ("--from", path, "--max-batch", 2, "--max-model-len", 16, "--width-multiple", "1,16", "--host-only")
        fine, coarse = sweep(*flags, "--step-time", "linear:1,0,1")
        counts = ("steps", "open_cells", "live_cells", "padded_cells", "open_shapes")
        assert [fine[name] for name in counts] == [4, 15, 15, 15, 3]
        assert [coarse[name] for name in counts] == [3, 17, 15, 64, 3]
        assert (fine["step_time"], fine["clock"]) == ("linear:1,0,1", "virtual")

    def test_on_a_grid_it_is_the_same_run_under_both(self, tmp_path: Path) -> None:
        """25 ms a step: B prefills beside A's first decode, so 3 + (4 + 3 as 2 x 4) + 5 cells whatever the policy."""
        path = vidur(tmp_path / "t.csv", [(0, 2, 4), (0.008, 2, 2)])
        points = sweep(
            "--from", path, "--max-batch", 2, "--max-model-len", 16, "--width-multiple", "1,16", "--host-only"
        )
        assert [(point["steps"], point["open_cells"]) for point in points] == [(3, 16), (3, 16)]

    def test_a_shorter_grid_moves_the_counts(self) -> None:
        """40 requests a second: at 1 ms a step hardly two of them meet."""
        long, short = (sweep(*DRAWN, *SMALL[:5], "--step-time", ms)[0] for ms in ("25", "1"))
        assert long["steps"] < short["steps"]
        assert long["live_cells"] == short["live_cells"]


class TestCompiles:
    def test_each_distinct_shape_is_compiled_once_for_the_whole_sweep(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Two policies that share a shape, dynamo's own counter: as many compiles in all as there are shapes."""
        from nanoserve_cli import sweep_engine

        asked: list[tuple[Shape, ...]] = []
        own = sweep_engine.count_compiles_each

        def spy(worker: Any, captures: Any, **more: Any) -> Any:
            asked.append(captures.shapes)
            found = own(worker, captures, **more)
            assert set(found.values()) == {(1, 0)}
            return found

        monkeypatch.setattr(sweep_engine, "count_compiles_each", spy)
        points = sweep(*TINY, "--width-ladder", "multiple:8,list:8,24,32,multiple:32")
        assert asked == [(Shape(2, 8), Shape(2, 16), Shape(2, 24), Shape(2, 32))]
        assert [point["shapes_used"] for point in points] == [2, 2, 1]
        assert [point["compiles_bucketed"] for point in points] == [2, 2, 1]
        assert [point["recompiles_bucketed"] for point in points] == [0, 0, 0]
        assert [point["compiles_open"] for point in points] == [None] * 3

    @pytest.mark.parametrize(("steps", "shapes", "counted"), [(512, 64, True), (513, 65, False)])
    def test_are_counted_by_default_up_to_64_distinct_shapes(self, steps: int, shapes: int, counted: bool) -> None:
        """Widths 17 to 16 + steps in multiples of 8."""
        asked = SweepSpec(traffic=(Lockstep(steps=steps),), max_model_len=(1024,), width_ladder=("multiple:8",))
        work = swept(asked)
        assert len({shape for one in work.priced for shape, _ in one.cost.steps_per_shape}) == shapes
        assert (work.counts_compiles, len(work.to_compile)) == (counted, shapes * counted)
        note = "compiles are not counted: 65 distinct shapes (--measure-compiles does)"
        assert list(work.notes()) == ([] if counted else [note])

    def test_a_step_that_no_laptop_holds_is_not_run_for_them_unless_it_is_asked_for(self) -> None:
        """Compiling a shape runs it once: 1,024 rows of 16,384 columns are 6 GiB on the smallest model."""
        asked = SweepSpec(
            traffic=(Lockstep(600, 16, 8),), max_batch=(1024,), max_model_len=(16384,), width_ladder=("pow2:16384",)
        )
        work = swept(asked)
        assert (work.counts_compiles, work.to_compile) == (False, set())
        (note,) = work.notes()
        assert re.fullmatch(r"compiles are not counted: a step of 6,\d{3} MiB \(--measure-compiles does\)", note)
        assert swept(replace(asked, measure_compiles=True)).to_compile == {Shape(1024, 16384)}

    def test_a_context_that_the_model_does_not_have_is_priced_all_the_same(self) -> None:
        """The tiny model has 16,384 positions; the arithmetic has no such limit."""
        flags = ("--max-model-len", "16384,131072", "--steps", 8, "--width-multiple", 16384)
        short, long = sweep(*flags)
        assert (short["compiles_bucketed"], long["compiles_bucketed"]) == (1, 1)
        assert short["capture_mib"] > 0
        assert (long["capture_mib"], long["capture_s"], long["shapes_available"]) == (None, None, 32)
        refusal = "max_model_len 131072 is past the model's max_position_embeddings 16384: lower max_model_len to that"
        work = swept(spec(max_model_len=(8192, 131072), width_ladder=("pow2:131072",)))
        assert list(work.notes()) == [
            f"MiB are not predicted: {refusal} or less",
            f"compiles are not counted: {refusal} or less",
        ]

    @pytest.mark.parametrize(("limit", "flag", "counts"), [(1, True, [2, 2]), (64, False, [None, None])])
    def test_a_flag_decides_otherwise(
        self, limit: int, flag: bool, counts: list[int | None], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sweep_module, "COMPILE_LIMIT", limit)
        flags = ("--measure-compiles" if flag else "--no-measure-compiles",)
        points = sweep(*TINY, "--width-ladder", "multiple:8,list:8,24,32", *flags)
        assert [point["compiles_bucketed"] for point in points] == counts
        assert [point["recompiles_bucketed"] for point in points] == [0 if count else None for count in counts]

    def test_a_run_off_the_list_compiles_nothing(self) -> None:
        own, whole = sweep(*TINY, "--rows-ladder", "list:1")
        assert (own["shapes_used"], own["compiles_bucketed"], own["off_list_steps"]) == (0, 0, 6)
        assert (whole["shapes_used"], whole["compiles_bucketed"], whole["off_list_steps"]) == (1, 1, 0)


class TestTheBill:
    @pytest.mark.parametrize("multiple", ["64", "100"])
    def test_mib_are_the_pool_that_capture_predicts_for_the_policy(self, multiple: str) -> None:
        limits = ("--max-batch", "8", "--max-model-len", "256", "--width-multiple", multiple)
        result = CliRunner().invoke(app, ["capture", *limits, "--max-seconds", "0", "--json", "-q"])
        (bill,) = json.loads(result.stdout)
        (point,) = sweep(*limits, "--steps", "8", "--no-measure-compiles")
        assert point["capture_mib"] == bill["predicted_bytes"] / 2**20
        assert point["shapes_available"] == bill["shapes"]
        assert point["capture_s"] > 0

    def test_the_model_and_its_dtype_move_it(self) -> None:
        sizes = [
            sweep(*TINY, "--no-measure-compiles", *more)[0]["capture_mib"]
            for more in ((), ("--dtype", "bfloat16"), ("--model", "small"))
        ]
        assert len(set(sizes)) == 3

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_a_live_set_grows_with_rows_and_with_width(self, dtype: str) -> None:
        """So the largest is of a shape that no other covers, and only those are priced."""
        import torch

        from nanoserve.capture_bill import price_shapes
        from nanoserve.model.presets import preset_decoder

        config = preset_decoder("tiny", device="cpu", dtype=torch.float32, seed=0).config
        rows, widths = (1, 2, 3, 8, 17, 64), (1, 2, 15, 16, 130, 512)
        shapes = [Shape(r, w) for r in rows for w in widths]
        live = {price.shape: price.live_bytes for price in price_shapes(config, shapes, getattr(torch, dtype))}
        for one in shapes:
            for other in shapes:
                if one.rows <= other.rows and one.width <= other.width:
                    assert live[one] <= live[other], (one, other)

    @given(st.sets(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1), st.integers(0, 3), st.integers(0, 3))
    def test_the_largest_of_the_undominated_is_the_largest_of_all(
        self, pairs: set[tuple[int, int]], of_rows: int, of_width: int
    ) -> None:
        """Under anything that grows with both axes."""
        from nanoserve_cli.sweep_engine import undominated

        shapes = sorted(Shape(*pair) for pair in pairs)
        kept = undominated(shapes)
        assert set(kept) <= set(shapes)
        assert len({(a, b) for a in kept for b in kept if a != b and a.rows <= b.rows and a.width <= b.width}) == 0

        def size(shape: Shape) -> int:
            return shape.rows**of_rows * shape.width**of_width + of_rows * shape.rows

        assert max(map(size, kept)) == max(map(size, shapes))


class TestPlanning:
    def test_the_time_of_planning_one_step_is_in_every_row(self) -> None:
        (row,) = sweep(*SMALL)
        assert 0 < row["plan_us_open"] < 1e4
        assert 0 < row["plan_us_bucketed"] < 1e4
        assert {name for name in TIME_COLUMNS if row[name] is not None} == {"plan_us_open", "plan_us_bucketed"}

    def test_it_is_of_planning_alone_and_not_of_making_a_large_table(self) -> None:
        """A table of 64 MiB takes longer to fill than 32 steps to plan: the median step does not tell."""
        small, large = (
            sweep("--steps", 8, "--host-only", "--max-batch", batch, "--max-model-len", length)[0]["plan_us_bucketed"]
            for batch, length in ((4, 64), (1024, 8192))
        )
        assert large < 20 * small

    @pytest.mark.parametrize(("batch", "length"), [(1025, 8192), (4, 1)])
    def test_it_is_empty_where_there_is_no_step_or_too_large_a_table(self, batch: int, length: int) -> None:
        flags = ("--num-requests", 1, "--prompt-len", 1, "--output-len", 1, "--host-only")
        (row,) = sweep(*flags, "--max-batch", batch, "--max-model-len", length)
        assert (row["plan_us_open"], row["plan_us_bucketed"]) == (None, None)


@pytest.mark.slow
def test_a_thousand_policies_are_priced_in_seconds(tmp_path: Path) -> None:
    """Over 30,000 segments, host only, file included: seconds of processor time, whatever else the machine does."""
    requests = [(n * 0.01, 50 + n * 37 % 900, 20 + n * 53 % 200) for n in range(15_000)]
    path = vidur(tmp_path / "t.csv", requests)
    ladders = ",".join(name for name in ROW_LADDERS if name != "tgi")
    widths = ",".join(str(width) for width in range(64, 1664, 16))
    flags = ("--from", path, "--max-batch", 128, "--max-model-len", 4096, "--rows-ladder", ladders)
    start = time.process_time()
    points = sweep(*flags, "--width-multiple", widths, "--host-only", "--out", tmp_path / "o.csv")
    assert len(points) >= 1000
    assert time.process_time() - start < 20
