"""A sweep's file: what is reused and what is not, what a kill costs, and that what others wrote stays."""

from __future__ import annotations

import csv
import io
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sweeping import SMALL, TINY, VARYING, invoke, lasting, rows_of, swept, vidur
from test_console import SCRIPT

from nanoserve_cli import provenance as provenance_module
from nanoserve_cli import sweep as sweep_module
from nanoserve_cli.columns import RUN_COLUMNS
from nanoserve_cli.csv_file import append_row, csv_text, read_results, read_rows
from nanoserve_cli.executors import InProcess
from nanoserve_cli.grid import SweepSpec
from nanoserve_cli.sweep import Outcome, Sweep, write_as_finished

TWO = (*SMALL, "--width-multiple", "16,64")
MANY = (
    *("--host-only", "--max-batch", "64,256", "--max-model-len", "8192", "--steps", "512"),
    *("--rows-ladder", "pow2,vllm,sglang", "--width-multiple", ",".join(map(str, range(128, 768, 64)))),
)
"""60 points of a few milliseconds each: enough to be killed in."""


def masked(path: Path) -> str:
    """The file with the cells emptied in which two runs of one sweep may differ."""
    rows, cut = read_rows(path)
    assert cut == 0
    return csv_text([row | dict.fromkeys(VARYING, "") for row in rows])


def computed(result: Any) -> list[str]:
    """The points that a run says it has computed, not reused."""
    assert result.exit_code == 0, result.output
    return re.findall(r"^\d+/\d+ (.*)$", result.stderr, re.MULTILINE)


def started(*arguments: object) -> subprocess.Popen[bytes]:
    """The console script, its messages thrown away, in a process group of its own."""
    command = [str(SCRIPT), "sweep", *map(str, arguments), "-q", "--format", "csv"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)


def wait_for_lines(path: Path, lines: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while process.poll() is None and (not path.exists() or path.read_bytes().count(b"\n") < lines):
        assert time.monotonic() < deadline
        time.sleep(0.001)


class TestReuse:
    def test_an_identical_sweep_computes_nothing_and_changes_no_byte(self, tmp_path: Path) -> None:
        path = tmp_path / "o.csv"
        assert len(computed(invoke(*TWO, "--out", path))) == 2
        before = path.read_bytes()
        again = invoke(*TWO, "--out", path, "--resume")
        assert computed(again) == []
        assert again.stderr.splitlines()[0] == f"2 of 2 rows reused from {path}"
        assert path.read_bytes() == before
        assert again.stdout == invoke(*TWO).stdout

    def test_a_larger_grid_computes_only_what_is_new_and_puts_it_in_order(self, tmp_path: Path) -> None:
        path, whole = tmp_path / "o.csv", tmp_path / "whole.csv"
        invoke(*SMALL, "--width-multiple", "32", "--out", path)
        wider = (*SMALL, "--width-multiple", "16,32,64")
        assert computed(invoke(*wider, "--out", path, "--resume")) == [
            "lockstep-24 4x64 pow2 multiple:16",
            "lockstep-24 4x64 pow2 multiple:64",
        ]
        invoke(*wider, "--out", whole)
        assert masked(path) == masked(whole)

    @pytest.mark.parametrize(
        "more",
        [
            ("--seed", "1"),
            ("--steps", "25"),
            ("--max-batch", "8"),
            ("--step-time", "30"),
            ("--rows-ladder", "vllm"),
        ],
        ids=" ".join,
    )
    def test_another_configuration_is_computed(self, more: tuple[str, ...], tmp_path: Path) -> None:
        path = tmp_path / "o.csv"
        invoke(*TWO, "--out", path)
        assert len(computed(invoke(*TWO, *more, "--out", path, "--resume"))) == 2
        assert len(rows_of(path)) == 4

    @pytest.mark.parametrize("more", [("--budget-graphs", "9"), ("--budget-mib", "2"), ("--format", "json")], ids=str)
    def test_what_moves_no_figure_reuses(self, more: tuple[str, ...], tmp_path: Path) -> None:
        path = tmp_path / "o.csv"
        invoke(*TWO, "--out", path)
        assert computed(invoke(*TWO, *more, "--out", path, "--resume")) == []

    def test_another_trace_under_the_same_name_is_computed(self, tmp_path: Path) -> None:
        """Even one that gives the same figures: the row says which file it is of."""
        path, trace = tmp_path / "o.csv", vidur(tmp_path / "t.csv", [(0, 5, 3)])
        flags = ("--from", trace, "--max-model-len", "64", "--host-only", "--out", path)
        assert len(computed(invoke(*flags))) == 1
        assert computed(invoke(*flags, "--resume")) == []
        (before,) = rows_of(path)
        trace.write_text(trace.read_text() + "\n")
        assert len(computed(invoke(*flags, "--resume"))) == 1
        (after,) = rows_of(path)
        assert before["trace_sha256"] != after["trace_sha256"]
        assert before["padded_cells"] == after["padded_cells"]

    def test_the_same_trace_in_another_folder_is_the_same(self, tmp_path: Path) -> None:
        """Where a key is found is no part of a configuration."""
        from nanoserve_cli.assets import TRACES

        flags = ("--from", TRACES[0].key, "--max-model-len", "64", "--host-only", "--out", tmp_path / "o.csv")
        for folder, new in ((tmp_path / "one", 1), (tmp_path / "other", 0)):
            folder.mkdir()
            vidur(folder / TRACES[0].filename, [(0, 5, 3)])
            assert len(computed(invoke(*flags, "--trace-dir", folder, "--resume"))) == new

    def test_rows_of_other_code_are_computed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "o.csv"
        invoke(*TWO, "--out", path)
        for module in (sweep_module, provenance_module):
            monkeypatch.setattr(module, "code_sha256", lambda: "another")
        assert len(computed(invoke(*TWO, "--out", path, "--resume"))) == 2
        assert [row["code_sha256"] for row in rows_of(path)] == ["another"] * 2

    def test_rows_of_another_schema_are_neither_reused_nor_dropped(self, tmp_path: Path) -> None:
        path = tmp_path / "o.csv"
        invoke(*TWO, "--out", path)
        path.write_text(path.read_text().replace("\n2,", "\n1,", 1))
        before = path.read_bytes()
        done = invoke(*TWO, "--out", path, "--resume")
        assert done.exit_code == 2
        assert "holds rows of results schema 1, this nanoserve reads 2: move it away" in done.stderr
        assert path.read_bytes() == before

    def test_rows_that_were_not_measured_are_no_rows_of_a_sweep_that_measures(self, tmp_path: Path) -> None:
        """Without torch, without compiles, with them, in another dtype: what fills a column is part of the identity."""
        path = tmp_path / "o.csv"
        for more in (
            ("--host-only",),
            ("--no-measure-compiles",),
            ("--no-measure-compiles", "--dtype", "bfloat16"),
            ("--no-measure-compiles", "--model", "small"),
        ):
            assert len(computed(invoke(*TINY, *more, "--out", path, "--resume"))) == 1, more
            assert computed(invoke(*TINY, *more, "--out", path, "--resume")) == []
        assert len({row["config_hash"] for row in rows_of(path)}) == 4

    def test_a_cell_that_is_no_figure_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "o.csv"
        invoke(*TWO, "--out", path)
        path.write_text(path.read_text().replace(",true,virtual,", ",perhaps,virtual,", 1))
        result = invoke(*TWO, "--out", path, "--resume")
        assert result.exit_code == 2
        assert result.stderr == f"error: {path}: column completed holds 'perhaps', which is no boolean\n"


class TestOthersRows:
    def test_stay_behind_this_sweeps(self, tmp_path: Path) -> None:
        path = tmp_path / "o.csv"
        invoke(*SMALL, "--width-multiple", "8,32", "--out", path)
        others = rows_of(path)
        invoke(*TWO, "--out", path, "--resume")
        found = rows_of(path)
        assert [row["width_ladder"] for row in found] == ["multiple:16", "multiple:64", "multiple:8", "multiple:32"]
        assert found[2:] == others

    def test_go_where_the_file_is_to_start_anew(self, tmp_path: Path) -> None:
        path = tmp_path / "o.csv"
        invoke(*SMALL, "--width-multiple", "8,32", "--out", path)
        invoke(*TWO, "--out", path, "--overwrite")
        assert [row["width_ladder"] for row in rows_of(path)] == ["multiple:16", "multiple:64"]

    def test_stay_too_if_they_came_while_this_sweep_ran(self, tmp_path: Path) -> None:
        """Two sweeps into one file at the same time."""
        path, work = tmp_path / "o.csv", self.work()

        def outcomes() -> Iterator[Outcome]:
            for outcome in work.run(InProcess(), print):
                yield outcome
                append_row(path, {"schema_version": 2, "config_hash": "another", "steps": 5})

        assert len(list(write_as_finished(path, outcomes(), work, anew=False))) == 2
        assert [row["config_hash"] for row in rows_of(path)][2:] == ["another"] * 2

    def test_the_old_row_of_a_point_that_fails_stays(self, tmp_path: Path) -> None:
        path, work = tmp_path / "o.csv", self.work()
        mine = work.identities[0][0]
        append_row(path, {"schema_version": 2, "config_hash": mine, "code_sha256": "old", "steps": 5})
        outcomes = iter(
            [Outcome(0, work.priced[0].point, None, "RunUnsound: no"), *list(work.run(InProcess(), print))[1:]]
        )
        list(write_as_finished(path, outcomes, work, anew=False))
        assert [row["code_sha256"] == "old" for row in rows_of(path)] == [False, True]

    @staticmethod
    def work() -> Sweep:
        return swept(SweepSpec(width_ladder=("multiple:128", "multiple:512"), host_only=True))


class TestAFileThatWasCut:
    def test_wherever_it_was_the_sweep_is_completed_to_the_same_rows(self, tmp_path: Path) -> None:
        """At every end of a line, in the header, and at many bytes between."""
        path = tmp_path / "o.csv"
        invoke(*TWO, "--out", path)
        whole, expected = path.read_bytes(), masked(path)
        ends = [match.end() for match in re.finditer(b"\n", whole)]
        near = {end + by for end in ends for by in (-2, -1, 0, 1)}
        for cut in sorted({0, 1, 700, *near, *range(ends[0], len(whole), 97)} - {len(whole) + 1}):
            path.write_bytes(whole[:cut])
            result = invoke(*TWO, "--out", path, "--resume", "-q")
            assert result.exit_code == 0, (cut, result.output)
            assert masked(path) == expected, cut


def killed_and_resumed(kills: int, tmp_path: Path) -> None:
    """Kills a sweep of 60 points `kills` times, each time resuming what the last one left."""
    undisturbed = tmp_path / "undisturbed.csv"
    assert invoke(*MANY, "--out", undisturbed, "-q").exit_code == 0
    expected = masked(undisturbed)
    assert expected.count("\n") == 61
    moments = random.Random(5)
    for number in range(kills):
        path = tmp_path / f"{number}.csv"
        process = started(*MANY, "--out", path)
        wait_for_lines(path, moments.randrange(62), process)
        time.sleep(moments.uniform(0, 0.004))
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
        survivors = [] if not path.exists() else read_rows(path)[0]
        if survivors:
            assert len(read_results(path)) == len(survivors)
        assert invoke(*MANY, "--out", path, "--resume", "-q").exit_code == 0
        assert masked(path) == expected
        finished = rows_of(path)
        assert all(row in finished for row in survivors), "a finished row was computed again"


class TestKilled:
    def test_no_finished_row_is_lost_and_no_file_is_corrupt(self, tmp_path: Path) -> None:
        killed_and_resumed(2, tmp_path)

    @pytest.mark.slow
    def test_so_it_is_at_fifteen_moments(self, tmp_path: Path) -> None:
        killed_and_resumed(15, tmp_path)

    def test_ctrl_c_exits_130_and_leaves_what_was_finished(self, tmp_path: Path) -> None:
        path = tmp_path / "o.csv"
        process = started(*MANY, "--out", path)
        wait_for_lines(path, 6, process)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert (process.returncode, said) == (130, b"interrupted\n")
        assert 5 <= len(read_results(path)) < 60
        assert read_rows(path)[1] == 0

    @pytest.mark.slow
    def test_ctrl_c_ends_the_processes_of_jobs_too(self, tmp_path: Path) -> None:
        """The terminal sends it to the whole group."""
        path = tmp_path / "o.csv"
        widths = ",".join(map(str, range(1, 33)))
        flags = ("--rows", 2, "--prompt", 4, "--steps", 20, "--max-batch", 2, "--max-model-len", 32)
        more = ("--width-multiple", widths, "--measure", "--no-measure-compiles", "--jobs", 2)
        process = started(*flags, *more, "--out", path)
        wait_for_lines(path, 3, process)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert (process.returncode, said) == (130, b"interrupted\n")
        assert 2 <= len(read_results(path)) < 32
        assert ends(process.pid), "a worker is still there"


def ends(group: int) -> bool:
    """Whether within seconds nothing of a process group runs: multiprocessing's tracker leaves after its process."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        listed = subprocess.run(["ps", "-A", "-o", "pgid=,stat="], capture_output=True, text=True, check=True).stdout
        if not any(line.split()[0] == str(group) and "Z" not in line for line in listed.splitlines()):
            return True
        time.sleep(0.05)
    return False


def test_rows_are_the_same_in_another_process(tmp_path: Path) -> None:
    """The identity depends on no order of a set and no address: another interpreter reuses every row."""
    path = tmp_path / "o.csv"
    process = started(*TWO, "--out", path)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert computed(invoke(*TWO, "--out", path, "--resume")) == []
    assert list(csv.DictReader(io.StringIO(path.read_text()))) == rows_of(path)
    assert tuple(rows_of(path)[0]) == RUN_COLUMNS
    assert len(lasting(path)) == 2
