"""Workloads of a budget: what a sweep and a bench give, named before they run, and found again in their own files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from budgets import rewrite
from typer.testing import CliRunner

from nanoserve_cli.app import app
from nanoserve_cli.assets import TRACES
from nanoserve_cli.check.bench_rows import NEW_STORAGE, NOT_OPTIONS
from nanoserve_cli.check.budget_file import Budget
from nanoserve_cli.check.checking import Found, run_all
from nanoserve_cli.check.command_options import parsed
from nanoserve_cli.check.kinds import KINDS
from nanoserve_cli.check.results import ResultsFile
from nanoserve_cli.check.workloads import Workload, trace_identity
from nanoserve_cli.columns import RUN_COLUMNS
from nanoserve_cli.commands.bench import bench
from nanoserve_cli.csv_file import write_rows
from nanoserve_cli.workload.errors import TraceError

TRACE = "arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,3\n0.1,9,4\n0.1,12,20\n"


def made(kind: str, trace_dir: Path | None = None, **options: Any) -> Workload:
    return KINDS[kind].build(options, trace_dir)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "t.csv"
    path.write_text(TRACE)
    return path


OPTIONS: dict[str, Callable[[Path], tuple[str, Mapping[str, Any]]]] = {
    "lockstep bench": lambda _: ("bench", {"host_only": True, "steps": [8, 64]}),
    "drawn bench": lambda _: ("bench", {"host_only": True, "num_requests": 5, "max_model_len": 400, "seed": 3}),
    "recorded bench": lambda path: ("bench", {"host_only": True, "from": str(path), "max_model_len": 64}),
    "bench of the tiny model": lambda _: ("bench", {"steps": 8}),
    "bench with a policy": lambda path: ("bench", {"host_only": True, "steps": 8, "policy": str(policy(path))}),
    "bench on another grid": lambda path: ("bench", {"host_only": True, "from": str(path), "step_ms": 12.5}),
    "grid of lists that lack maxima": lambda _: (
        "sweep",
        {"rows_ladder": ["tgi", "pow2"], "max_batch": 48, "host_only": True, "traffic": {"steps": 20}},
    ),
    "drawn sweep": lambda _: ("sweep", {"traffic": {"num_requests": 5, "request_rate": 9}, "host_only": True}),
    "recorded sweep": lambda path: ("sweep", {"traffic": {"from": str(path)}, "host_only": True, "step_time": 12.5}),
    "sweep with the tiny model": lambda _: ("sweep", {"traffic": {"steps": 20}, "max_model_len": 64}),
}


def policy(trace: Path) -> Path:
    path = trace.with_name("p.yaml")
    path.write_text("schema_version: 1\nmax_batch_size: 4\nmax_model_len: 32\nrows: [4]\nwidths: [16, 32]\n")
    return path


@pytest.mark.parametrize("case", OPTIONS)
def test_every_row_is_the_point_that_was_named_before_it_ran(case: str, trace: Path, tmp_path: Path) -> None:
    """A results file of what ran has each point, and the point has the trace."""
    kind, options = OPTIONS[case](trace)
    workload = made(kind, **options)
    points, samples = workload.points(), workload.run()
    assert len(points) == len(samples) > 0
    write_rows(tmp_path / "r.csv", [sample.row for sample in samples])
    results = ResultsFile(tmp_path / "r.csv")
    for point, sample in zip(points, samples, strict=True):
        assert results.has(point)
        found = results.sample(point)
        assert {name: found.row[name] for name in RUN_COLUMNS} == {name: sample.row.get(name) for name in RUN_COLUMNS}
        assert point.trace_sha256 == sample.row["trace_sha256"]
        assert all(sample.row.get(column) == value for column, value in point.columns.items())


@pytest.mark.parametrize(
    ("kind", "options", "command"),
    [
        ("bench", {"host_only": True, "steps": "8,64"}, ("bench", "--host-only", "--steps", "8,64")),
        (
            "bench",
            {"host_only": True, "num_requests": 9, "max_model_len": 400, "width_multiple": 64},
            ("bench", "--host-only", "--num-requests", 9, "--max-model-len", 400, "--width-multiple", 64),
        ),
        (
            "sweep",
            {"host_only": True, "traffic": {"steps": 20}, "max_batch": [4, 8], "width_multiple": 64},
            ("sweep", "--host-only", "--steps", 20, "--max-batch", "4,8", "--width-multiple", 64),
        ),
    ],
)
def test_a_file_that_the_command_wrote_has_every_point(
    kind: str, options: Mapping[str, Any], command: tuple[object, ...], tmp_path: Path
) -> None:
    out = tmp_path / ("o" if kind == "bench" else "r.csv")
    done = CliRunner().invoke(app, [*map(str, command), "--out", str(out), "-q"])
    assert done.exit_code == 0, done.stderr
    results = ResultsFile(out / "runs.csv" if kind == "bench" else out)
    workload = made(kind, **options)
    for point, sample in zip(workload.points(), workload.run(), strict=True):
        assert results.has(point)
        found = results.sample(point)
        assert found.row["padded_cells"] == sample.row["padded_cells"]


class TestBenchOptions:
    def test_they_are_the_commands_flags_but_for_what_becomes_of_the_result(self) -> None:
        for name in ("json", "out", "quiet", "trace_dir", "trace", "q"):
            with pytest.raises(ValueError, match=f"unknown key '{name}'"):
                parsed("bench", bench, {name: "x"}, NOT_OPTIONS)
        assert (
            parsed("bench", bench, {"from": "t.csv", "strict": True, "limit": 3}, NOT_OPTIONS).params["source"]
            == "t.csv"
        )
        assert set(parsed("bench", bench, {}, NOT_OPTIONS).params) >= NOT_OPTIONS

    def test_a_list_is_joined_and_false_is_not_said(self) -> None:
        context = parsed("bench", bench, {"steps": [8, 64], "audit": False, "num_blocks": 7}, NOT_OPTIONS)
        assert (context.params["steps"], context.params["audit"], context.params["num_blocks"]) == ("8,64", False, 7)


class TestAudit:
    def test_an_audited_run_that_ends_made_no_storage(self) -> None:
        (sample,) = made("bench", steps=4, audit=True).run()
        assert (sample.row[NEW_STORAGE.name], sample.stopped) == (0, "")

    def test_one_that_is_not_audited_does_not_say(self) -> None:
        (sample,) = made("bench", steps=4, host_only=True).run()
        assert NEW_STORAGE.name not in sample.row
        assert sample.absent == {"": "host_only runs no step", "new_storage": "add audit: true"}


class TestTraces:
    def test_a_registered_key_says_its_sum_whether_the_file_is_here_or_not(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("NANOSERVE_CACHE", str(tmp_path))
        monkeypatch.delenv("NANOSERVE_TRACES", raising=False)
        asset = TRACES[0]
        assert trace_identity(asset.key, None) == (asset.key, asset.sha256)

    def test_any_other_is_the_file_that_is_there(self, trace: Path) -> None:
        assert trace_identity(str(trace), None) == (str(trace), hashlib.sha256(TRACE.encode()).hexdigest())

    def test_one_that_is_not_there_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(TraceError, match="no such file, and no trace key"):
            trace_identity(str(tmp_path / "none.csv"), None)


class TestWhatCannotRun:
    @staticmethod
    def of(workload: Workload) -> Found:
        one = Budget("a", workload, "x", {}, None, (), None)
        return run_all([one], lambda _: None)["a"]

    def test_a_trace_that_is_absent_is_a_problem(self, tmp_path: Path) -> None:
        found = self.of(made("sweep", traffic={"from": str(tmp_path / "no.csv")}, host_only=True))
        assert found.problem.startswith(f"{tmp_path / 'no.csv'}: no such file, and no trace key")
        assert (found.samples, found.comparable) == ((), True)

    def test_a_policy_file_that_is_broken_is_a_problem(self, tmp_path: Path) -> None:
        (tmp_path / "p.yaml").write_text("schema_version: 1\nmax_batch_size: 4\nmax_model_len: 32\nrows: [2]\n")
        found = self.of(made("bench", policy=str(tmp_path / "p.yaml"), host_only=True))
        assert "p.yaml: " in found.problem

    def test_a_run_that_does_not_fit_is_a_problem(self) -> None:
        found = self.of(made("bench", rows=9, max_batch=8, steps=4, host_only=True))
        assert found.problem == "--rows 9 do not fit 8 rows of cache: raise --max-batch"

    def test_an_error_of_ours_is_none_and_comes_through(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(*_: object, **__: object) -> None:
            raise TypeError("a bug")

        monkeypatch.setattr("nanoserve_cli.check.bench_rows.bench_lockstep", broken)
        with pytest.raises(TypeError, match="a bug"):
            self.of(made("bench", steps=4, host_only=True))


class TestResultsFile:
    def test_a_row_that_stands_twice_must_say_the_same(self, tmp_path: Path) -> None:
        """The worse of two would pass unseen behind the better, or the better hide behind the worse."""
        workload = made("bench", steps=8, host_only=True)
        (sample,), (point,) = workload.run(), workload.points()
        path = tmp_path / "r.csv"
        write_rows(path, [sample.row, sample.row])
        assert ResultsFile(path).sample(point).row["padded_cells"] == 768
        write_rows(path, [sample.row | {"padded_cells": 99_999}, sample.row])
        found = ResultsFile(path).sample(point)
        assert (found.row, found.stopped) == ({}, f"{path} has this row 2 times, with other padded_cells")

    def test_a_row_of_a_model_is_the_same_point_as_one_of_none(self, tmp_path: Path) -> None:
        """A baseline may come from a machine with torch, and the check from a runner without."""
        options: dict[str, Any] = {"traffic": {"steps": 20}, "max_model_len": 64}
        (ran,), (planned,) = made("sweep", **options).run(), made("sweep", **options, host_only=True).run()
        assert (ran.row["model"], planned.row.get("model")) == ("tiny", None)
        write_rows(tmp_path / "r.csv", [ran.row])
        same = ResultsFile(tmp_path / "r.csv").same_point(planned.row)
        assert same is not None
        assert same["padded_cells"] == planned.row["padded_cells"]

    def test_of_several_models_none_is_guessed(self, tmp_path: Path) -> None:
        (planned,) = made("sweep", traffic={"steps": 20}, max_model_len=64, host_only=True).run()
        write_rows(tmp_path / "r.csv", [planned.row | {"model": name} for name in ("tiny", "small")])
        with pytest.raises(ValueError, match="more than once, by model or runner"):
            ResultsFile(tmp_path / "r.csv").same_point(planned.row)
        exact = ResultsFile(tmp_path / "r.csv").same_point(planned.row | {"model": "small"})
        assert exact is not None
        assert exact["model"] == "small"

    def test_an_empty_file_has_no_row(self, tmp_path: Path) -> None:
        assert ResultsFile(rewrite(tmp_path / "r.csv", [])).rows == []
        (tmp_path / "r.csv").write_text("")
        assert ResultsFile(tmp_path / "r.csv").rows == []
