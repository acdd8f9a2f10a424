"""`nanoserve check` as a process: its exit codes, its streams, no torch, and the same counts everywhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from budgets import GRID, LOCKSTEP, budget, run

from nanoserve_cli import console

CODE = "import sys; sys.argv[0] = 'nanoserve'; from nanoserve_cli.app import main; main()"
WITHOUT_TORCH = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "safetensors", "gguf", "tokenizers", "jinja2", "transformers"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
"""
PLANNED = """\
schema_version: 1
budgets:
  - name: planned
    workload: {bench: {steps: [64, 512], host_only: true}}
    limits: {padded_cells: {at_most: 680960}, waste: {at_most: 0.546}, plan_us_open: {reported: true}}
  - name: crowd
    workload: {bench: {num_requests: 200, request_rate: 20, output_len: "uniform:2,90", max_batch: 7, host_only: true}}
    limits: {padded_cells: {at_most: 1}, total_waste: {at_most: 1}}
  - name: grid
    workload:
      sweep:
        traffic: {num_requests: 500, request_rate: 9}
        max_batch: [8, 64]
        rows_ladder: [pow2, tgi]
        width_multiple: [128, 512]
        host_only: true
    limits: {waste: {at_most: 1}, off_list_steps: {at_most: 0}}
"""
RUN = """\
schema_version: 1
budgets:
  - name: crowd
    workload:
      bench:
        num_requests: 4
        prompt_len: "uniform:2,9"
        output_len: "uniform:2,9"
        max_batch: 2
        max_model_len: 32
        width_multiple: 16
        audit: true
    limits: {padded_cells: {at_most: 1}, compiles_bucketed: {at_most: 99}, new_storage: {exactly: 0}}
  - name: grid
    workload: {sweep: {traffic: {rows: 2, steps: 24}, max_batch: [2, 4], max_model_len: 64}}
    limits: {capture_mib: {at_most: 1}, compiles_bucketed: {at_most: 1}, recompiles_bucketed: {exactly: 0}}
"""


def process(*arguments: object, before: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", before + CODE, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
        timeout=300,
    )


def counts(path: Path, threads: str) -> str:
    """The JSON of a check up to its times, from a process with so many threads."""
    done = process("check", path, "--format", "json", "-q", OMP_NUM_THREADS=threads)
    assert (done.returncode, done.stderr) == (3, "")
    return done.stdout.partition('\n  "times": ')[0]


@pytest.mark.parametrize(
    ("text", "figures"),
    [(PLANNED, 4 + 2 + 20), pytest.param(RUN, 3 + 6, marks=pytest.mark.slow)],
    ids=["planned", "run"],
)
def test_the_same_budget_gives_the_same_bytes_with_one_thread_and_two(text: str, figures: int, tmp_path: Path) -> None:
    path = tmp_path / "b.yaml"
    path.write_text(text)
    one = counts(path, "1")
    assert counts(path, "2") == one
    found = json.loads(one.rstrip(",\n") + "}")["counts"]
    assert len([entry for entry in found if entry["measured"] is not None]) == len(found) == figures


class TestWithoutTorch:
    def test_host_only_budgets_run(self, tmp_path: Path) -> None:
        path = budget(tmp_path / "b.yaml", "{padded_cells: {exactly: 20480}, waste: {at_most: 0.6}}")
        done = process("check", path, before=WITHOUT_TORCH)
        assert (done.returncode, done.stderr) == (0, "running one\n")

    def test_so_does_a_sweep_that_does_not_say_so(self, tmp_path: Path) -> None:
        path = budget(
            tmp_path / "b.yaml", "{padded_cells: {at_most: 4096}}", workload=GRID.replace(", host_only: true", "")
        )
        assert process("check", path, before=WITHOUT_TORCH).returncode == 0

    @pytest.mark.parametrize(
        ("workload", "metric", "why"),
        [
            (
                "bench: {steps: 8}",
                "padded_cells",
                "running a model needs torch: pip install 'nanoserve[engine]'",
            ),
            (
                GRID.replace(", host_only: true", ""),
                "compiles_bucketed",
                "not measured: no torch here: compiles and MiB are not measured (pip install 'nanoserve[engine]')",
            ),
        ],
    )
    def test_a_figure_that_needs_it_fails_and_says_what_to_install(
        self, workload: str, metric: str, why: str, tmp_path: Path
    ) -> None:
        path = budget(tmp_path / "b.yaml", f"{{{metric}: {{at_most: 9999}}}}", workload=workload)
        done = process("check", path, before=WITHOUT_TORCH)
        assert done.returncode == 3
        assert f"limit at most 9,999, {why}; {path}:5; nothing to accept\n" in done.stdout


class TestHowItEnds:
    def test_interrupted_is_130_and_no_traceback(self, tmp_path: Path) -> None:
        path = budget(
            tmp_path / "b.yaml",
            "{padded_cells: {at_most: 1}}",
            workload="bench: {num_requests: 400000, prompt_len: 'uniform:1,600', max_model_len: 8192, host_only: true}",
        )
        command = [sys.executable, "-c", CODE, "check", str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
            assert started.stderr is not None
            assert started.stderr.readline() == "running one\n"
            started.send_signal(signal.SIGINT)
            shown, said = started.communicate(timeout=60)
        assert (started.returncode, shown, said) == (console.EXIT_INTERRUPTED, "", "interrupted\n")

    def test_an_error_of_ours_is_1(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(*_: object, **__: object) -> None:
            raise KeyError("a bug")

        monkeypatch.setattr("nanoserve_cli.check.bench_rows.bench_lockstep", broken)
        found = run("check", budget(tmp_path / "b.yaml", "{padded_cells: {at_most: 1}}"), "-q")
        assert (found.exit_code, found.stdout) == (console.EXIT_UNEXPECTED, "")
        assert found.stderr.startswith("unexpected KeyError: 'a bug'")

    @pytest.mark.parametrize("face", ["table", "json", "junit", "markdown", "github"])
    def test_a_reader_that_has_gone_makes_nothing_pass(self, face: str, tmp_path: Path) -> None:
        path = budget(tmp_path / "b.yaml", "{padded_cells: {at_most: 1}}")
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(
            [sys.executable, "-c", CODE, "check", str(path), "-q", "--format", face],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
        os.close(writer)
        assert (done.returncode, done.stderr) == (3, "")

    @pytest.mark.parametrize("face", ["table", "json", "junit", "markdown", "github"])
    def test_every_face_ends_alike(self, face: str, tmp_path: Path) -> None:
        for limits, code in (("{padded_cells: {at_most: 20480}}", 0), ("{padded_cells: {at_most: 1}}", 3)):
            assert run("check", budget(tmp_path / "b.yaml", limits), "--format", face).exit_code == code

    def test_messages_are_on_stderr_and_quiet_leaves_them_out(self, tmp_path: Path) -> None:
        path = budget(tmp_path / "b.yaml", "{padded_cells: {at_most: 20480}}", workload=LOCKSTEP)
        loud, quiet = run("check", path), run("check", path, "-q")
        assert (loud.stderr, quiet.stderr) == ("running one\n", "")
        assert loud.stdout == quiet.stdout

    @pytest.mark.parametrize("arguments", [("--format", "xml"), ("--bogus",), ("a.yaml", "b.yaml")])
    def test_bad_usage_is_2(self, arguments: tuple[str, ...]) -> None:
        found = run("check", *arguments)
        assert (found.exit_code, found.stdout) == (2, "")

    def test_the_help_names_the_codes(self) -> None:
        shown = " ".join(run("check", "--help").stdout.split())
        assert console.EXIT_CODES in shown
        assert "(exit code 3)" in shown
        assert "(exit code 4)" in shown
