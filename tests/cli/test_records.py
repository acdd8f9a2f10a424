"""Results as evidence: whole files or none, one schema, and a row that survives whoever died before it."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from nanoserve.buckets import DecodeBuckets
from nanoserve.steps import Segment, Steps
from nanoserve.workload import Workload
from nanoserve_cli.app import app
from nanoserve_cli.columns import COUNT_COLUMNS, PROVENANCE_COLUMNS, RUN_COLUMNS
from nanoserve_cli.compare import ClockSettings, Comparison, EngineSettings, compare
from nanoserve_cli.csv_file import RecordsError, append_row, write_atomically
from nanoserve_cli.provenance import provenance
from nanoserve_cli.records import steps_csv, write_run

HEADER = ",".join(RUN_COLUMNS) + "\n"
DRAWN = ("--num-requests", 6, "--prompt-len", "uniform:4,20", "--output-len", "uniform:2,9", "--request-rate", 40)
SMALL = ("--max-batch", 3, "--max-model-len", 64, "--host-only", "-q")
REPOSITORY = Path(__file__).resolve().parents[2]


def bench(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


def write(folder: Path, *more: object) -> list[dict[str, str]]:
    """Runs a small drawn workload into `folder`; the rows of its `runs.csv`."""
    result = bench(*DRAWN, *SMALL, "--out", folder, *more)
    assert result.exit_code == 0, result.stderr
    return rows_of(folder / "runs.csv")


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def comparison() -> Comparison:
    load = Workload(np.array([0, 60_000_000], np.int64), np.array([5, 20], np.int64), np.array([9, 4], np.int64))
    return compare(load, EngineSettings(DecodeBuckets(2, 64, width_multiple=16), None), ClockSettings())


class TestFiles:
    def test_a_run_leaves_four_files_and_no_part_of_one(self, tmp_path: Path) -> None:
        write(tmp_path / "new" / "folder")
        names = sorted(path.name for path in (tmp_path / "new" / "folder").iterdir())
        assert names == ["requests.jsonl", "run.json", "runs.csv", "steps.csv"]

    def test_run_json_is_what_json_prints(self, tmp_path: Path) -> None:
        result = bench(*DRAWN, *SMALL, "--out", tmp_path, "--json")
        assert json.loads(result.stdout) == json.loads((tmp_path / "run.json").read_text())

    def test_requests_are_a_line_each_and_mode(self, tmp_path: Path) -> None:
        write(tmp_path)
        rows = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
        assert [(row["mode"], row["index"]) for row in rows] == [
            (mode, index) for mode in ("open", "bucketed") for index in range(6)
        ]
        for row in rows:
            assert row["outcome"] == "finished"
            assert row["queue_steps"] == row["admitted_step"] - row["arrival_step"]
            assert len(row["tokens"]) == row["made"] == row["output_len"]

    def test_steps_read_back_to_equal_steps(self, tmp_path: Path, comparison: Comparison) -> None:
        write_run(tmp_path, {}, comparison)
        back = rows_of(tmp_path / "steps.csv")
        segments = [Segment(*(int(row[name]) for name in Segment._fields)) for row in back]
        assert Steps.of(segments) == comparison.bucketed.replay.steps
        assert list(back[0]) == ["start_step", "rows", "width", "steps", "live_cells"]

    def test_no_steps_are_a_header_only(self) -> None:
        assert steps_csv(Steps.of([])) == "start_step,rows,width,steps,live_cells\n"

    def test_lockstep_runs_get_a_folder_each_and_one_table(self, tmp_path: Path) -> None:
        assert bench("--host-only", "--steps", "8,64", "--out", tmp_path, "-q").exit_code == 0
        assert sorted(path.name for path in tmp_path.iterdir()) == ["lockstep-64", "lockstep-8", "runs.csv"]
        assert [(row["workload"], row["padded_cells"]) for row in rows_of(tmp_path / "runs.csv")] == [
            ("lockstep-8", "768"),
            ("lockstep-64", "20480"),
        ]
        (run,) = json.loads((tmp_path / "lockstep-64" / "run.json").read_text())["runs"]
        assert run["padded_cells"] == 20480

    def test_a_message_says_where_they_are_on_stderr(self, tmp_path: Path) -> None:
        result = bench("--host-only", "--steps", 8, "--out", tmp_path, "--json")
        assert result.stderr == f"results in {tmp_path}\n"
        json.loads(result.stdout)


class TestAtomically:
    def test_a_reader_sees_the_old_file_until_the_new_one_is_whole(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What `os.fsync` is asked to store is never yet at the file's own name."""
        path = tmp_path / "run.json"
        path.write_text("old")
        seen: list[str] = []
        monkeypatch.setattr(os, "fsync", lambda _: seen.append(path.read_text()))
        write_atomically(path, "new")
        assert (seen, path.read_text()) == (["old"], "new")

    def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "run.json"
        path.write_text("old")

        def full(_: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            write_atomically(path, "new")
        assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("run.json", "old")]

    def test_a_killed_write_leaves_the_old_file(self, tmp_path: Path) -> None:
        path = tmp_path / "run.json"
        path.write_text("old")
        code = (
            "import os, signal, sys; from pathlib import Path; from nanoserve_cli.csv_file import write_atomically; "
            "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL); write_atomically(Path(sys.argv[1]), 'new' * 99)"
        )
        assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == -9
        assert path.read_text() == "old"

    def test_text_is_stored_as_it_is(self, tmp_path: Path) -> None:
        write_atomically(tmp_path / "a", "é\r\n\n")
        assert (tmp_path / "a").read_bytes() == "é\r\n\n".encode()


class TestTheTableOfRuns:
    def test_its_columns_are_the_schema_and_each_once(self, tmp_path: Path) -> None:
        write(tmp_path)
        assert (tmp_path / "runs.csv").read_text().splitlines()[0] == HEADER.rstrip("\n")
        assert len(set(RUN_COLUMNS)) == len(RUN_COLUMNS)

    def test_a_second_run_appends_and_its_counts_are_the_same(self, tmp_path: Path) -> None:
        write(tmp_path)
        first, second = write(tmp_path)
        for name in COUNT_COLUMNS:
            assert first[name] == second[name]
        assert len((tmp_path / "runs.csv").read_text().splitlines()) == 3

    def test_what_was_not_measured_is_empty(self, tmp_path: Path) -> None:
        (row,) = write(tmp_path)
        unmeasured = ("torch_version", "device", "driver", "trace_key", "trace_sha256", "compiles_open", "dtype")
        times = ("plan_ms_open", "step_ms_open", "step_ratio", "tokens_per_s_bucketed")
        assert {row[name] for name in (*unmeasured, *times)} == {""}
        assert float(row["plan_us_open"]) > 0

    def test_the_two_limits_are_in_the_row(self, tmp_path: Path) -> None:
        (row,) = write(tmp_path)
        assert (row["max_batch_size"], row["max_model_len"]) == ("3", "64")

    def test_the_settings_are_in_the_row(self, tmp_path: Path) -> None:
        (row,) = write(tmp_path)
        found = {name: row[name] for name in ("workload", "runner", "clock", "step_time", "policy", "seed")}
        assert found == {
            "workload": "synthetic",
            "runner": "host-only",
            "clock": "virtual",
            "step_time": "25",
            "policy": "3 row buckets x 1 width buckets = 3 shapes (rows 1,2,3; widths 64)",
            "seed": "0",
        }

    def test_pandas_reads_it_with_its_dtypes(self, tmp_path: Path) -> None:
        write(tmp_path)
        write(tmp_path)
        frame = pd.read_csv(tmp_path / "runs.csv", parse_dates=["started_utc"])
        assert tuple(frame.columns) == RUN_COLUMNS
        assert frame["steps"].dtype == np.int64
        assert str(frame["started_utc"].dt.tz) == "UTC"
        assert frame["padded_cells"].nunique() == 1

    @pytest.mark.parametrize("header", ["a,b\n", "schema_version\n", HEADER.replace("waste", "wast", 1), "\n"])
    def test_a_foreign_header_is_refused_and_nothing_is_changed(self, header: str, tmp_path: Path) -> None:
        path = tmp_path / "runs.csv"
        path.write_text(header + "1,2\n" if header.endswith("\n") else header)
        before = path.read_bytes()
        with pytest.raises(RecordsError, match=r"runs\.csv: has other columns than schema 2"):
            append_row(path, {})
        assert path.read_bytes() == before

    def test_the_command_changes_nothing_where_the_table_is_foreign(self, tmp_path: Path) -> None:
        (tmp_path / "runs.csv").write_text("a,b\n")
        result = bench(*DRAWN, *SMALL, "--out", tmp_path)
        assert result.exit_code == 2
        assert "has other columns than schema 2: move it away or choose another --out" in result.stderr
        assert [path.name for path in tmp_path.iterdir()] == ["runs.csv"]

    def test_an_empty_file_gets_its_header(self, tmp_path: Path) -> None:
        (tmp_path / "runs.csv").touch()
        append_row(tmp_path / "runs.csv", {"steps": 8})
        assert (tmp_path / "runs.csv").read_text().startswith(HEADER)

    def test_a_half_written_last_line_stays_and_the_next_row_is_whole(self, tmp_path: Path) -> None:
        path = tmp_path / "runs.csv"
        append_row(path, {"steps": 1})
        with path.open("a") as file:
            file.write("1,2026-01-01T00:00:00+00:00,nanos")
        append_row(path, {"steps": 3})
        assert [row["steps"] for row in rows_of(path)] == ["1", None, "3"]
        assert pd.read_csv(path)["steps"].tolist()[::2] == [1, 3]

    def test_a_row_cut_at_any_byte_does_not_swallow_the_next(self, tmp_path: Path) -> None:
        path = tmp_path / "runs.csv"
        append_row(
            path, {"command": "nanoserve bench --steps 8,64", "policy": "rows 1,2", "steps": 1, "clock": "virtual"}
        )
        whole = path.read_bytes()
        lost = []
        for cut in range(len(HEADER), len(whole)):
            path.write_bytes(whole[:cut])
            append_row(path, {"command": "second, row", "steps": 2})
            if rows_of(path)[-1]["command"] != "second, row":
                lost.append(cut)
        assert lost == []

    def test_a_half_written_header_is_not_for_ever(self, tmp_path: Path) -> None:
        path = tmp_path / "runs.csv"
        path.write_text(HEADER[:40])
        append_row(path, {"steps": 2})
        assert rows_of(path)[-1]["steps"] == "2"

    def test_values_are_quoted_and_booleans_are_lower_case(self, tmp_path: Path) -> None:
        path = tmp_path / "runs.csv"
        append_row(path, {"command": 'a "b", c', "git_dirty": True, "waste": 0.1, "seed": 0, "unknown": 5})
        (row,) = rows_of(path)
        assert (row["command"], row["git_dirty"], row["waste"], row["seed"]) == ('a "b", c', "true", "0.1", "0")
        assert set(row) == set(RUN_COLUMNS)

    def test_appends_of_several_processes_do_not_interleave(self, tmp_path: Path) -> None:
        path = tmp_path / "runs.csv"
        context = multiprocessing.get_context("spawn")
        processes = [context.Process(target=append_many, args=(str(path), worker, 40)) for worker in range(3)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        rows = rows_of(path)
        assert path.read_text().count(HEADER) == 1
        assert sorted((int(row["seed"]), int(row["steps"])) for row in rows) == [
            (w, n) for w in range(3) for n in range(40)
        ]
        assert {len(row["command"]) for row in rows} == {20_000}


def append_many(path: str, worker: int, rows: int) -> None:
    """Long rows, larger than a file's buffer and a pipe's atomic write."""
    for number in range(rows):
        append_row(Path(path), {"command": f"{worker}" * 20_000, "seed": worker, "steps": number})


class TestUnwritable:
    def test_a_folder_that_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        for folder in (tmp_path / "file", tmp_path / "file" / "below"):
            result = bench(*DRAWN, *SMALL, "--out", folder)
            assert result.exit_code == 2
            assert result.stderr.startswith(f"error: {folder}: cannot write the results: ")
            assert result.stderr.count("\n") == 1

    def test_a_table_that_is_a_folder(self, tmp_path: Path) -> None:
        (tmp_path / "runs.csv").mkdir()
        result = bench(*DRAWN, *SMALL, "--out", tmp_path)
        assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
        assert "runs.csv: cannot be added to" in result.stderr

    def test_it_is_said_before_the_run_and_not_after_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").write_text("")
        ran: list[int] = []
        monkeypatch.setattr("nanoserve_cli.bench.compare", lambda *_, **__: ran.append(1) or pytest.fail("it ran"))
        assert bench(*DRAWN, *SMALL, "--out", tmp_path / "file").exit_code == 2
        assert ran == []


class TestProvenance:
    def test_every_column_is_there_and_none_else(self) -> None:
        found = provenance(seed=7, device="cpu", trace_key="azure2023-conv", trace_sha256="00")
        assert tuple(found) == PROVENANCE_COLUMNS
        assert (found["schema_version"], found["seed"], found["trace_key"], found["trace_sha256"]) == (
            2,
            7,
            "azure2023-conv",
            "00",
        )
        assert found["python_version"] == ".".join(map(str, sys.version_info[:3]))
        assert found["torch_version"].startswith("2.")
        assert found["device"].endswith("cores)")
        assert found["driver"] is None

    def test_the_start_is_in_utc_and_says_so(self) -> None:
        started = datetime.fromisoformat(
            provenance(seed=0, device=None, trace_key=None, trace_sha256=None)["started_utc"]
        )
        assert started.utcoffset() == timedelta(0)
        assert abs(datetime.now(started.tzinfo) - started) < timedelta(seconds=30)

    def test_the_commit_is_this_checkouts_wherever_it_is_called_from(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        if not (REPOSITORY / ".git").exists():
            pytest.skip("the tests are not in a checkout")
        monkeypatch.chdir(tmp_path)
        head = subprocess.run(
            ["git", "-C", str(REPOSITORY), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        found = provenance(seed=0, device=None, trace_key=None, trace_sha256=None)
        assert found["git_sha"] == head
        assert isinstance(found["git_dirty"], bool)

    def test_outside_a_checkout_both_are_empty(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "")
        found = provenance(seed=0, device=None, trace_key=None, trace_sha256=None)
        assert (found["git_sha"], found["git_dirty"]) == (None, None)

    def test_a_trace_is_named_by_its_sum(self, tmp_path: Path) -> None:
        path = tmp_path / "t.csv"
        path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,3\n")
        bench("--from", path, *SMALL, "--out", tmp_path / "o")
        (row,) = rows_of(tmp_path / "o" / "runs.csv")
        assert row["trace_sha256"] == "{sum}".format(
            sum=subprocess.run(["sha256sum", str(path)], capture_output=True, text=True, check=True).stdout.split()[0]
        )
        assert row["trace_key"] == ""

    def test_the_command_can_be_pasted_into_a_shell(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "argv", ["/x/bin/nanoserve", "bench", "--goodput", "ttft:500 tpot:50"])
        command = provenance(seed=0, device=None, trace_key=None, trace_sha256=None)["command"]
        assert command == "nanoserve bench --goodput 'ttft:500 tpot:50'"
