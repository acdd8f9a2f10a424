"""A run's segments read back as they were written, with where they are from; every fault is one line."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from figure_samples import lockstep, steps_of
from hypothesis import given
from shape_strategies import MAX_ROWS, MAX_WIDTH, runs
from typer.testing import CliRunner

from nanoserve import Steps
from nanoserve_cli.app import app
from nanoserve_cli.records import steps_csv
from nanoserve_cli.steps_file import StepsFileError, read_recorded, read_steps

HEADER = "start_step,rows,width,steps,live_cells\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "steps.csv"
    path.write_text(text, encoding="utf-8")
    return path


class TestRoundTrip:
    def test_what_bench_writes_is_what_it_ran(self, tmp_path: Path) -> None:
        assert read_steps(written(tmp_path, steps_csv(steps_of()))) == steps_of()

    @given(runs(MAX_ROWS, MAX_WIDTH).filter(len))
    def test_any_run(self, tmp_path_factory: pytest.TempPathFactory, steps: Steps) -> None:
        assert read_steps(written(tmp_path_factory.mktemp("s"), steps_csv(steps))) == steps

    def test_a_byte_order_mark_and_windows_line_ends_are_read(self, tmp_path: Path) -> None:
        path = tmp_path / "steps.csv"
        path.write_bytes(b"\xef\xbb\xbf" + steps_csv(lockstep()).replace("\n", "\r\n").encode())
        assert read_steps(path) == lockstep()


class TestFaults:
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "is empty; a steps file begins with start_step,rows,width,steps,live_cells"),
            ("a,b\n1,2\n", "is no steps file: its first line is not start_step,rows,width,steps,live_cells"),
            (HEADER, "has a header and no segment: no step was decoded"),
            (HEADER + "0,1,4,1,4\n1,2\n", "line 3 is not five whole numbers: '1,2'"),
            (HEADER + "0,1,4.5,1,4\n", "line 2 is not five whole numbers: '0,1,4.5,1,4'"),
            (HEADER + "0,1,,1,4\n", "line 2 is not five whole numbers"),
            (HEADER + f"0,1,{10**30},1,4\n", "line 2 is not five whole numbers"),
            (HEADER + "0,0,4,1,4\n", "segment 0: rows must be at least 1, got 0"),
            (HEADER + "5,1,4,3,15\n6,1,4,1,4\n", "segment 1 starts before the one before it ends"),
            (HEADER + "0,2,4,1,9\n", "segment 0: 9 live cells do not fit 1 steps from 2x4"),
        ],
    )
    def test_one_line_with_the_file(self, text: str, words: str, tmp_path: Path) -> None:
        path = written(tmp_path, text)
        with pytest.raises(StepsFileError) as caught:
            read_steps(path)
        assert str(caught.value).startswith(f"{path}: {words}")
        assert "\n" not in str(caught.value)

    def test_no_file_and_no_text(self, tmp_path: Path) -> None:
        with pytest.raises(StepsFileError, match=r"gone\.csv: cannot be read: No such file"):
            read_steps(tmp_path / "gone.csv")
        (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(StepsFileError, match=r"b\.csv: cannot be read: "):
            read_steps(tmp_path / "b.csv")


class TestProvenance:
    def test_the_run_beside_it(self, tmp_path: Path) -> None:
        trace = tmp_path / "t.csv"
        trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,3\n0.1,9,4\n")
        limits = ("--max-batch", "2", "--max-model-len", "32")
        done = CliRunner().invoke(
            app, ["bench", "--from", str(trace), *limits, "--host-only", "--out", str(tmp_path / "o")]
        )
        assert done.exit_code == 0, done.stderr
        found = read_recorded(tmp_path / "o" / "steps.csv")
        run = json.loads((tmp_path / "o" / "run.json").read_text())
        digest = hashlib.sha256(trace.read_bytes()).hexdigest()
        assert found.traffic == "t.csv"
        assert found.source == f"t.csv {digest[:8]} · nanoserve {run['nanoserve_version']} · {run['started_utc'][:10]}"

    @pytest.mark.parametrize("beside", [None, "{", "[]", '{"runs": []}', '{"runs": [{}, {}]}'])
    def test_without_one_the_file_speaks_for_itself(self, beside: str | None, tmp_path: Path) -> None:
        path = written(tmp_path, steps_csv(lockstep()))
        if beside is not None:
            (tmp_path / "run.json").write_text(beside)
        found = read_recorded(path)
        assert found.source.startswith(f"steps.csv {hashlib.sha256(path.read_bytes()).hexdigest()[:8]} · nanoserve ")
        assert found.source.endswith(" · undated")
