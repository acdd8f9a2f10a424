"""`step_times.csv`: what a bench writes of the steps it timed, and what `tune --objective time` reads of it."""

from __future__ import annotations

import copy
import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tune_cases import drawn, tune_cli, write, write_trace
from typer.testing import CliRunner

from nanoserve.buckets import CaptureList, DecodeBuckets, Shape
from nanoserve.workload import Workload
from nanoserve_cli.app import app
from nanoserve_cli.compare import ClockSettings, Comparison, EngineSettings, compare
from nanoserve_cli.csv_file import RecordsError
from nanoserve_cli.records import write_run
from nanoserve_cli.step_times_file import COLUMNS, read_step_times, step_times_csv

LOAD = Workload(np.array([0, 60_000_000, 90_000_000]), np.array([5, 20, 9]), np.array([19, 14, 24]))
HEADER = ",".join(COLUMNS) + "\n"


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


POLICY = DecodeBuckets(4, 64, widths=[16, 32, 64])


@pytest.fixture(scope="module")
def found(shared_decoder: Any) -> Comparison:
    """A run that was timed."""
    return compare(LOAD, EngineSettings(POLICY, copy.deepcopy(shared_decoder)), ClockSettings())


class TestWriting:
    def test_a_line_a_shape_and_mode_with_the_median_of_its_steps(self, found: Comparison) -> None:
        text = step_times_csv(found)
        assert text is not None
        rows = rows_of(text)
        assert tuple(rows[0]) == COLUMNS
        for mode, run in (("open", found.open), ("bucketed", found.bucketed)):
            mine = [row for row in rows if row["mode"] == mode]
            counted = {Shape(int(row["graph_rows"]), int(row["graph_width"])): int(row["steps"]) for row in mine}
            assert counted == run.replay.presented
            assert len(mine) == len(counted)
        ran_as = [POLICY.shape_for(one.rows, one.width) for one in found.bucketed.replay.steps.open_shapes()]
        for row in (row for row in rows if row["mode"] == "bucketed"):
            shape = Shape(int(row["graph_rows"]), int(row["graph_width"]))
            times = zip(ran_as, found.bucketed.replay.decode_seconds, strict=True)
            ms = [seconds * 1e3 for ran, seconds in times if ran == shape]
            quartiles = np.percentile(ms, (50, 25, 75))
            assert [float(row[name]) for name in ("median_ms", "low_ms", "high_ms")] == pytest.approx(
                quartiles, rel=1e-5
            )

    def test_off_a_list_a_step_ran_at_its_own_shape(self, decoder: Any) -> None:
        listed = Shape(2, 32)
        settings = EngineSettings(CaptureList([listed], max_batch_size=4, max_model_len=64), decoder)
        ran = compare(LOAD, settings, ClockSettings())
        text = step_times_csv(ran)
        assert text is not None
        rows = [row for row in rows_of(text) if row["mode"] == "bucketed"]
        shapes = {Shape(int(row["graph_rows"]), int(row["graph_width"])) for row in rows}
        assert shapes == set(ran.bucketed.replay.presented)
        assert listed in shapes
        assert shapes - {listed} <= set(ran.open.replay.presented)

    def test_what_ran_is_written_and_what_did_not_is_not_left_from_before(
        self, found: Comparison, tmp_path: Path
    ) -> None:
        write_run(tmp_path, {}, found)
        assert (tmp_path / "step_times.csv").read_text().startswith(HEADER)
        planned = compare(LOAD, EngineSettings(POLICY, None), ClockSettings())
        assert step_times_csv(planned) is None
        write_run(tmp_path, {}, planned)
        assert not (tmp_path / "step_times.csv").exists()


class TestReading:
    GOOD = HEADER + "open,3,9,4,1,1,1\nbucketed,1,128,5,1.5,1,2\nbucketed,2,128,6,2.5,2,3\nbucketed,4,128,7,4,3,5\n"

    def test_the_bucketed_medians_are_taken(self, tmp_path: Path) -> None:
        found = read_step_times(write(tmp_path / "s.csv", [self.GOOD]))
        assert found.rows.tolist() == [1, 2, 4]
        assert found.width.tolist() == [128] * 3
        assert found.steps.tolist() == [5, 6, 7]
        assert found.ns.tolist() == [1.5e6, 2.5e6, 4e6]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "is no step_times.csv of `nanoserve bench --out`: its columns are mode,graph_rows"),
            ("a,b\n1,2\n", "is no step_times.csv of `nanoserve bench --out`"),
            (HEADER, "is no step_times.csv of `nanoserve bench --out`"),
            (HEADER + "open,3,9,4,1,1,1\n", "a model of step times needs at least 3 measured shapes, got 0"),
            (GOOD.replace("2.5", "x"), "could not convert string to float: 'x'"),
            (GOOD.replace("2.5", "-1"), "a step takes a finite time above 0"),
            (GOOD.replace("bucketed,2,128", "bucketed,0,128"), "a measured shape has at least one row"),
            (GOOD.replace("bucketed,2,128,6,2.5,2,3", "bucketed,2"), "int() argument must be"),
        ],
    )
    def test_what_is_no_such_file_is_one_line(self, text: str, message: str, tmp_path: Path) -> None:
        path = write(tmp_path / "s.csv", [text])
        with pytest.raises(RecordsError, match=f"^{re.escape(f'{path}: {message}')}") as refused:
            read_step_times(path)
        assert "\n" not in str(refused.value)


def test_from_a_bench_to_a_list_that_saves_time(tmp_path: Path) -> None:
    """The whole way: a policy, a bench that times its shapes, and the list that those times ask for."""
    pytest.importorskip("torch")
    trace = write_trace(tmp_path / "t.csv", drawn(60))
    policy = write(
        tmp_path / "policy.yaml",
        ["schema_version: 1\nmax_batch_size: 8\nmax_model_len: 256\nrows: [2, 4, 8]\nwidths: [64, 128, 256]\n"],
    )
    bench = CliRunner().invoke(
        app, ["bench", "--from", str(trace), "--policy", str(policy), "--out", str(tmp_path / "bench"), "-q"]
    )
    assert bench.exit_code == 0, bench.output
    options = ("--max-batch", 8, "--max-model-len", 256, "--width-granularity", 64, "--budget-graphs", 4, "--json")
    times = ("--objective", "time", "--step-times", tmp_path / "bench" / "step_times.csv")
    result = tune_cli("--from", trace, *options, *times)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["objective"] == "time"
    assert found["step_time"]["model"].startswith(("linear:", "table:"))
    assert set(found["step_time"]["errors"]) == {"linear", "table"}
    again = tune_cli("--from", tmp_path / "bench" / "steps.csv", *options, *times)
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["kind"] == "steps"


class TestObjectiveTime:
    LINE = "".join(f"bucketed,{r},{w},9,{5 + r + r * w / 1000:g},1,1\n" for r in (1, 2, 4, 8) for w in (64, 128, 256))

    def tuned(self, folder: Path, lines: str, *arguments: object) -> Any:
        times = write(folder / "s.csv", [HEADER, lines])
        trace = write_trace(folder / "t.csv", drawn(300))
        result = tune_cli(
            *("--from", trace, "--max-batch", 8, "--max-model-len", 256, "--budget-graphs", 4),
            *("--width-granularity", 64, "--objective", "time", "--step-times", times, *arguments),
        )
        assert result.exit_code == 0, result.output
        return result

    def test_the_model_is_printed_and_its_error(self, tmp_path: Path) -> None:
        text = " ".join(self.tuned(tmp_path, self.LINE).stdout.split())
        assert "step time, by shapes left out of the fit: off by linear 0.0%, table" in text
        assert "linear:5,1,0.001" in text
        assert "time on the part held out" in text

    def test_steps_beyond_what_was_measured_are_told(self, tmp_path: Path) -> None:
        few = "".join(f"bucketed,{r},64,9,{5 + r},1,1\n" for r in (1, 2, 4))
        told = "warning: step times were measured up to 4 rows and 64 columns, the traffic has 8 and "
        assert told in self.tuned(tmp_path, few).stderr
        assert told not in self.tuned(tmp_path, self.LINE).stderr

    def test_a_gain_within_the_models_error_is_none(self, tmp_path: Path) -> None:
        """The same line with every other time doubled: no model can say what a shape takes."""
        noisy = "".join(
            f"bucketed,{r},{w},9,{(5 + r) * (1 + 2 * (i % 2)):g},1,1\n"
            for i, (r, w) in enumerate((r, w) for r in (1, 2, 4, 8) for w in (64, 128, 256))
        )
        text = " ".join(self.tuned(tmp_path, noisy).stdout.split())
        assert "no gain worth having: the fitted" in text
        assert "by which the model of step times is off" in text

    def test_the_model_may_be_given_instead_and_then_drives_the_simulation_too(self, tmp_path: Path) -> None:
        trace = write_trace(tmp_path / "t.csv", drawn(300))
        result = tune_cli(
            *("--from", trace, "--max-batch", 8, "--max-model-len", 256, "--budget-graphs", 4, "--json"),
            *("--width-granularity", 64, "--objective", "time", "--step-time", "linear:5,1,0.001"),
        )
        assert result.exit_code == 0, result.output
        found = json.loads(result.stdout)
        assert found["step_time"] is None
        assert [one["list"] for one in found["settled"]] == [
            "fitted staircase",
            "fitted product",
            found["baseline"]["list"],
        ]
        assert "time a token" in found["recommended"]["reason"]
