"""Every regression that a budget is for, planted: the exit code, the metric, the line of the file, and what accepts it.

Where the new figure is one that somebody may want, `--update` writes it, the next check passes, and no other byte of
the file is another.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from budgets import GRID, budget, document, failures, planted, results, rewrite, rows_of, run

from nanoserve.decode.compiled import StepRecompiled
from nanoserve.storage import StorageUnsound
from nanoserve_cli.check.update import written_as
from nanoserve_cli.columns import SCHEMA_VERSION

POLICY = """\
schema_version: 1
max_batch_size: 8
max_model_len: 256
rows: [1, 2, 4, 8]
widths: [64, 128, 192, 256]
"""
TRAFFIC = (
    "num_requests: 40, request_rate: 30, prompt_len: 'uniform:8,60', output_len: 'uniform:8,90', policy: {policy}, "
    "host_only: true"
)
FILE = """\
# The shapes of our server: see serving.yaml
schema_version: 1
budgets:
  - name: traffic   # forty requests
    workload:
      bench: {{{options}}}
    limits:
      # what capture takes
      shapes_available: {{at_most: 16}}     # graphs
      padded_cells:
        at_most: {padded_cells}   # cells
      waste: {{at_most: {waste}, soft: 0%}}
      off_list_steps:   {{ exactly: 0 }}
"""
LINES = {"shapes_available": 9, "padded_cells": 11, "waste": 12, "off_list_steps": 13}


@pytest.fixture
def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A budget file that passes, over a policy file beside it; what is run is in its folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "serving.yaml").write_text(POLICY)
    options = TRAFFIC.format(policy="serving.yaml")
    reported = budget(tmp_path / "r.yaml", "{padded_cells: {reported: true}, waste: {reported: true}}")
    reported.write_text(reported.read_text().replace("bench: {steps: 64, host_only: true}", f"bench: {{{options}}}"))
    found = {entry["metric"]: entry["measured"] for entry in document(reported)["counts"]}
    path = tmp_path / "b.yaml"
    cells, waste = found["padded_cells"], written_as(found["waste"], "at_most")
    path.write_text(FILE.format(options=options, padded_cells=cells, waste=waste))
    assert run("check", path, "-q").exit_code == 0
    return path


def widths_halved(policy: Path) -> None:
    policy.write_text(POLICY.replace("[64, 128, 192, 256]", "[32, 64, 96, 128, 160, 192, 224, 256]"))


def widths_doubled(policy: Path) -> None:
    policy.write_text(POLICY.replace("[64, 128, 192, 256]", "[128, 256]"))


def a_row_bucket_dropped(policy: Path) -> None:
    policy.write_text(POLICY.replace("[1, 2, 4, 8]", "[1, 2, 8]"))


def a_shape_outside_the_set(policy: Path) -> None:
    text = POLICY.replace("rows: [1, 2, 4, 8]\nwidths: [64, 128, 192, 256]\n", "captures:\n")
    policy.write_text(text + "".join(f"  {rows}: [64, 128, 192, 256]\n" for rows in (1, 2, 4)))


@pytest.mark.parametrize(
    ("plant", "failing"),
    [
        (widths_halved, {"shapes_available"}),
        (widths_doubled, {"padded_cells", "waste"}),
        (a_row_bucket_dropped, {"padded_cells", "waste"}),
        (a_shape_outside_the_set, {"off_list_steps"}),
    ],
)
def test_a_policy_that_became_worse_fails_with_its_metric_and_line_and_can_be_accepted(
    plant: Callable[[Path], None], failing: set[str], serving: Path
) -> None:
    plant(Path("serving.yaml"))
    found = run("check", "b.yaml", "-q")
    assert found.exit_code == 3
    lines = [line for line in found.stdout.splitlines() if line.startswith("FAIL")]
    assert {line.split()[1] for line in lines} == failing
    for line in lines:
        metric = line.split()[1]
        limit, after = re.search(r"limit (?:at most|exactly) ([\d.,]+)(?: .*)?, measured ([\d.,]+),", line).groups()  # type: ignore[union-attr]
        assert float(limit.replace(",", "")) < float(after.replace(",", ""))
        assert "of traffic, synthetic: limit" in line
        assert re.search(r" over \((\+[\d.,]+%|from 0)\); ", line)
        assert f"; b.yaml:{LINES[metric]}; accept: nanoserve check b.yaml --update traffic" in line

    before = serving.read_text()
    accepted = run("check", "b.yaml", "--update", "traffic")
    assert accepted.exit_code == 0, accepted.output
    assert run("check", "b.yaml", "-q").exit_code == 0
    assert_only_values_changed(before, serving.read_text(), {LINES[metric] for metric in failing})


def assert_only_values_changed(before: str, after: str, lines: set[int]) -> None:
    """Byte for byte, but for one number on each of those lines."""
    number = re.compile(r"(?<=at_most: )[\d._]+|(?<=exactly: )[\d._]+")
    pairs = list(zip(before.splitlines(keepends=True), after.splitlines(keepends=True), strict=True))
    changed = {index for index, (old, new) in enumerate(pairs, 1) if old != new}
    assert changed == lines
    assert all(number.sub("N", old, count=1) == number.sub("N", new, count=1) for old, new in pairs)


def test_a_better_policy_is_a_notice_and_fails_only_where_every_figure_must_be_as_written(serving: Path) -> None:
    a_row_bucket_dropped(Path("serving.yaml"))
    run("check", "b.yaml", "--update", "traffic", "-q")
    Path("serving.yaml").write_text(POLICY)
    found = run("check", "b.yaml", "-q")
    assert found.exit_code == 0
    improved = [line for line in found.stdout.splitlines() if line.startswith("improved")]
    assert {line.split()[1] for line in improved} == {"padded_cells", "waste"}
    assert all("accept: nanoserve check b.yaml --strict --update traffic" in line for line in improved)
    assert run("check", "b.yaml", "-q", "--strict").exit_code == 3

    before = serving.read_text()
    assert run("check", "b.yaml", "-q", "--update", "traffic").exit_code == 0
    assert serving.read_text() == before
    assert run("check", "b.yaml", "-q", "--strict", "--update", "traffic").exit_code == 0
    assert_only_values_changed(before, serving.read_text(), {LINES["padded_cells"], LINES["waste"]})


def test_a_width_multiple_halved_in_the_budget_itself(tmp_path: Path) -> None:
    path = budget(
        tmp_path / "b.yaml",
        "{shapes_available: {exactly: 12}}",
        workload=GRID,
        more="where: {width_ladder: 'multiple:16'}",
    )
    path.write_text(path.read_text().replace("[16, 32]", "16"))
    assert run("check", path, "-q").exit_code == 0
    path.write_text(path.read_text().replace("width_multiple: 16", "width_multiple: 8"))
    (line,) = failures(path)
    assert line.startswith(
        "MISSING shapes_available of one: limit exactly 12, no row of the workload has width_ladder "
    )
    path.write_text(path.read_text().replace("multiple:16", "multiple:8"))
    (line,) = failures(path)
    assert line.startswith(
        "FAIL shapes_available of one, lockstep-24 4x64 pow2 multiple:8: limit exactly 12, measured 24, 12 over "
        f"(+100.00%); {path}:5; accept: nanoserve check {path} --update one"
    )


class TestARunThatStops:
    """A gate ends the run at the first fault: its metric has failed, and no other figure of the run passes."""

    LIMITS = "{recompiles_bucketed: {exactly: 0}, new_storage: {exactly: 0}, steps: {at_least: 1}}"

    @pytest.mark.parametrize(
        ("error", "metric"),
        [
            (StepRecompiled("a step of shape 4x32 would compile after warm-up"), "recompiles_bucketed"),
            (StorageUnsound("aten.mul made new storage, (4,)"), "new_storage"),
        ],
    )
    def test_what_it_is_for_fails_with_its_own_message(
        self, error: Exception, metric: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def stop(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr("nanoserve_cli.check.bench_rows.bench_lockstep", stop)
        path = budget(tmp_path / "b.yaml", self.LIMITS)
        before = path.read_bytes()
        for arguments in ((), ("--update", "one"), ("--strict", "--update", "one")):
            found = run("check", path, "-q", *arguments)
            assert found.exit_code == 3
            lines = [line for line in found.stdout.splitlines() if line.startswith(("FAIL", "MISSING"))]
            assert lines[0] == (
                f"FAIL {metric} of one, lockstep-64: limit exactly 0, measured 1, 1 over (from 0), the run stopped: "
                f"{error}; {path}:5; nothing to accept"
            )
            assert [line.split()[0] for line in lines[1:]] == ["MISSING", "MISSING"]
            assert path.read_bytes() == before

    def test_even_under_a_limit_that_would_allow_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def stop(*_: object, **__: object) -> None:
            raise StorageUnsound("aten.mul made new storage, (4,)")

        monkeypatch.setattr("nanoserve_cli.check.bench_rows.bench_lockstep", stop)
        path = budget(tmp_path / "b.yaml", "{new_storage: {at_most: 5}}")
        assert [entry["verdict"] for entry in document(path)["counts"]] == ["missing"]

    def test_a_recompile_that_really_happens(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The arguments of a warm step are another dtype than at warm-up: dynamo would compile it again."""
        from nanoserve.decode.compiled import CompiledDecode

        close = CompiledDecode.close

        def close_and_forget(self: CompiledDecode) -> None:
            close(self)
            import torch

            torch._dynamo.reset()

        monkeypatch.setattr(CompiledDecode, "close", close_and_forget)
        path = budget(
            tmp_path / "b.yaml", "{recompiles_bucketed: {exactly: 0}}", workload="bench: {steps: 8, runner: compiled}"
        )
        (line,) = failures(path)
        assert line.startswith(
            "FAIL recompiles_bucketed of one, lockstep-8: limit exactly 0, measured 1, 1 over (from 0), "
        )
        assert "the run stopped: a step of shape 4x24 would compile after warm-up" in line

    def test_new_storage_that_is_really_made(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from nanoserve.model_worker import ModelWorker

        kept = ModelWorker.decode

        def decode(self: ModelWorker, *arguments: Any, **more: Any) -> Any:
            assert self._watch is not None
            with self._watch:
                next(iter(self.persistent().values())).clone()
            return kept(self, *arguments, **more)

        monkeypatch.setattr(ModelWorker, "decode", decode)
        path = budget(tmp_path / "b.yaml", "{new_storage: {exactly: 0}}", workload="bench: {steps: 8, audit: true}")
        (line,) = failures(path)
        assert line.startswith("FAIL new_storage of one, lockstep-8: limit exactly 0, measured 1, 1 over (from 0), ")
        assert "made new storage" in line


class TestResultsThatAreThere:
    """`--results`: a file that lost something, or is of something else."""

    LIMITS = "{padded_cells: {at_most: 4096}, waste: {at_most: 0.499024}}"

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return budget(tmp_path / "b.yaml", self.LIMITS, workload=GRID)

    @pytest.fixture
    def csv(self, tmp_path: Path) -> Path:
        return results(tmp_path / "r.csv")

    def test_what_the_run_would_have_said(self, path: Path, csv: Path) -> None:
        read, ran = document(path, "--results", csv), document(path)
        assert read["exit_code"] == 0
        assert read["counts"] == ran["counts"]

    def test_a_worse_figure(self, path: Path, csv: Path) -> None:
        planted(csv, 1, padded_cells="5000")
        assert run("check", path, "--results", csv).exit_code == 3
        assert failures(path, "--results", csv) == [
            "FAIL padded_cells of one, lockstep-24 4x64 pow2 multiple:32: limit at most 4,096, measured 5,000, 904 "
            f"over (+22.07%); {path}:5; accept: nanoserve check {path} --results {csv} --update one"
        ]
        assert run("check", path, "--results", csv, "--update", "one").exit_code == 0
        assert "{at_most: 5000}" in path.read_text()

    @pytest.mark.parametrize(("column", "value"), [("padded_cells", "-5"), ("padded_cells", "0")])
    def test_a_figure_that_no_run_has(self, column: str, value: str, path: Path, csv: Path) -> None:
        planted(csv, **{column: value})
        assert run("check", path, "--results", csv).exit_code == 3

    def test_a_blank_schema_version(self, path: Path, csv: Path) -> None:
        planted(csv, schema_version="")
        done = run("check", path, "--results", csv)
        assert done.exit_code == 4
        assert "holds rows of results schema none" in done.stdout + done.stderr

    @pytest.mark.parametrize("cell", ["nan", "inf", ""])
    def test_a_share_that_is_no_number(self, cell: str, path: Path, csv: Path) -> None:
        planted(csv, waste=cell)
        assert run("check", path, "--results", csv).exit_code == 3
        (line,) = failures(path, "--results", csv)
        why = f"measured {cell}, which is no figure" if cell else f"not measured: {csv} has none"
        assert line == (
            f"MISSING waste of one, lockstep-24 4x64 pow2 multiple:16: limit at most 0.499024, {why}; {path}:5; "
            "nothing to accept"
        )

    @pytest.mark.parametrize("cell", ["nan", "1e3", "many"])
    def test_a_count_that_is_no_number_takes_its_whole_row_with_it(self, cell: str, path: Path, csv: Path) -> None:
        planted(csv, padded_cells=cell)
        assert run("check", path, "--results", csv).exit_code == 3
        lines = failures(path, "--results", csv)
        assert [line.split()[:2] for line in lines] == [["MISSING", "padded_cells"], ["MISSING", "waste"]]
        assert all(f"{csv}: column padded_cells holds '{cell}', which is no Int64; {path}:5" in line for line in lines)

    def test_a_run_that_took_no_step(self, path: Path, csv: Path) -> None:
        planted(csv, steps="0")
        assert run("check", path, "--results", csv).exit_code == 3
        lines = failures(path, "--results", csv)
        assert len(lines) == 2
        assert all("the run took no step: there is nothing to measure" in line for line in lines)

    def test_a_deleted_row(self, path: Path, csv: Path) -> None:
        rewrite(csv, rows_of(csv)[:1])
        assert run("check", path, "--results", csv).exit_code == 3
        lines = failures(path, "--results", csv)
        assert len(lines) == 2
        assert all("pow2 multiple:32: limit at most" in line and f"{csv} has no such row" in line for line in lines)

    def test_a_row_cut_short_by_a_kill(self, path: Path, csv: Path) -> None:
        csv.write_bytes(csv.read_bytes()[:-30])
        assert run("check", path, "--results", csv).exit_code == 3
        lines = failures(path, "--results", csv)
        assert len(lines) == 2
        assert all(f"{csv} has no such row (rows cut short in it: 1); " in line for line in lines)

    @pytest.mark.parametrize("content", ["", "header"])
    def test_an_emptied_file(self, content: str, path: Path, csv: Path) -> None:
        rewrite(csv, [])
        if not content:
            csv.write_text("")
        assert run("check", path, "--results", csv).exit_code == 3
        lines = failures(path, "--results", csv)
        assert [line.split()[1] for line in lines] == ["padded_cells", "waste"]
        assert all(
            f"{csv} holds no whole row: nothing was measured; {path}:5; nothing to accept" in line for line in lines
        )

    def test_another_schema(self, path: Path, csv: Path) -> None:
        csv.write_text(csv.read_text().replace("padded_cells", "padding", 1).replace(f"\n{SCHEMA_VERSION},", "\n1,"))
        assert run("check", path, "--results", csv).exit_code == 4
        lines = failures(path, "--results", csv)
        assert [line.split()[:3] for line in lines] == [
            ["NOT", "COMPARABLE", "padded_cells"],
            ["NOT", "COMPARABLE", "waste"],
        ]
        assert all(
            f"is of results schema 1, this nanoserve reads {SCHEMA_VERSION}: make it again" in line for line in lines
        )

    def test_another_set_of_rows(self, path: Path, csv: Path) -> None:
        for row in (0, 1):
            planted(csv, row, seed="7")
        assert run("check", path, "--results", csv).exit_code == 4
        assert all(
            f"{csv} is of other runs: none of its 2 rows is one of this file's workloads" in line
            for line in failures(path, "--results", csv)
        )

    def test_another_trace(self, path: Path, csv: Path, tmp_path: Path) -> None:
        trace = tmp_path / "t.csv"
        trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,3\n0.1,9,4\n")
        options = f"traffic: {{from: {trace}}}, max_batch: 4, max_model_len: 64, width_multiple: 16, host_only: true"
        budget(path, "{padded_cells: {reported: true}}", workload=f"sweep: {{{options}}}")
        csv.unlink()
        more = ("--from", trace, "--max-batch", 4, "--max-model-len", 64, "--width-multiple", 16, "--host-only")
        run("sweep", *more, "--out", csv, "-q")
        assert run("check", path, "--results", csv).exit_code == 0
        trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,3\n0.1,9,5\n")
        assert run("check", path, "--results", csv).exit_code == 4
        (line,) = failures(path, "--results", csv)
        assert re.search("another trace: sha256 [0-9a-f]{12}, the budget is of [0-9a-f]{12}; ", line)

    def test_not_a_results_file_and_none_at_all(self, path: Path, csv: Path) -> None:
        csv.write_text("a,b\n1,2\n")
        found = run("check", path, "--results", csv)
        assert (found.exit_code, found.stdout) == (2, "")
        assert "is no results file" in found.stderr
        csv.unlink()
        found = run("check", path, "--results", csv)
        assert (found.exit_code, found.stderr) == (2, f"error: {csv}: cannot be read: No such file or directory\n")


class TestATraceOfItsOwn:
    @pytest.fixture
    def trace(self, tmp_path: Path) -> Path:
        path = tmp_path / "t.csv"
        path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,3\n0.1,9,4\n")
        return path

    def test_a_pinned_trace_that_changed_is_not_compared(self, trace: Path, tmp_path: Path) -> None:
        options = f"traffic: {{from: {trace}}}, max_model_len: 64, host_only: true"
        path = budget(
            tmp_path / "b.yaml",
            "{padded_cells: {at_most: 9999}}",
            workload=f"sweep: {{{options}}}",
            more=f"trace_sha256: {'ab' * 32}",
        )
        assert run("check", path).exit_code == 4
        (line,) = failures(path)
        assert "another trace: sha256 " in line
        assert "the budget is of abababababab" in line

    def test_a_file_under_a_registered_key_that_is_another(self, tmp_path: Path) -> None:
        (tmp_path / "azure2023").mkdir()
        fake = tmp_path / "azure2023" / "AzureLLMInferenceTrace_conv.csv"
        fake.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n")
        path = budget(
            tmp_path / "b.yaml",
            "{padded_cells: {at_most: 9999999}}",
            workload="sweep: {traffic: {from: azure2023-conv}, host_only: true}",
        )
        assert run("check", path, "--trace-dir", tmp_path).exit_code == 4
        (line,) = failures(path, "--trace-dir", tmp_path)
        assert "the budget is of 2f1e5b666d4e" in line

    @pytest.mark.parametrize("source", ["azure2023-conv", "no-such-file.csv"])
    def test_a_trace_that_is_absent_is_not_skipped(
        self, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("NANOSERVE_CACHE", str(tmp_path))
        monkeypatch.delenv("NANOSERVE_TRACES", raising=False)
        path = budget(
            tmp_path / "b.yaml",
            "{padded_cells: {at_most: 9999999}}",
            workload=f"sweep: {{traffic: {{from: {source}}}, host_only: true}}",
        )
        assert run("check", path).exit_code == 3
        (line,) = failures(path)
        assert line.startswith("MISSING padded_cells of one: limit at most 9,999,999, ")
        assert ("run `nanoserve fetch azure2023-conv`" in line) == (source == "azure2023-conv")

    def test_a_trace_without_a_decode_step(self, trace: Path, tmp_path: Path) -> None:
        trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,1\n0.1,9,1\n")
        for workload in (
            f"sweep: {{traffic: {{from: {trace}}}, host_only: true}}",
            f"bench: {{from: {trace}, host_only: true}}",
        ):
            path = budget(
                tmp_path / "b.yaml", "{padded_cells: {at_most: 9999}, failed: {exactly: 0}}", workload=workload
            )
            assert run("check", path).exit_code == 3
            lines = failures(path)
            assert [line.split()[:2] for line in lines] == [["MISSING", "padded_cells"], ["MISSING", "failed"]]
            assert all("the run took no step" in line for line in lines)


class TestBaselines:
    REGRESS = "regress: {padded_cells: +1%, waste: 0%}"

    @pytest.fixture
    def csv(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.chdir(tmp_path)
        return results(Path("before.csv"))

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return budget(
            tmp_path / "b.yaml", "{steps: {exactly: 24}}", workload=GRID, more=f"baseline: before.csv\n{self.REGRESS}"
        )

    def test_the_same_again(self, path: Path, csv: Path) -> None:
        assert run("check", path).exit_code == 0

    def test_within_what_is_allowed_and_beyond_it(self, path: Path, csv: Path) -> None:
        planted(csv, 0, padded_cells="3549")  # 3,584 is 0.99 % more
        planted(csv, 1, padded_cells="4055")  # 4,096 is 1.01 % more
        assert run("check", "b.yaml").exit_code == 3
        assert failures("b.yaml") == [
            "FAIL padded_cells of one, lockstep-24 4x64 pow2 multiple:32: limit +1% on the baseline's 4,055, measured "
            "4,096, 41 over (+1.01%); b.yaml:7; accept: nanoserve check b.yaml --update one"
        ]
        before, rows = path.read_bytes(), rows_of(csv)
        assert run("check", "b.yaml", "--update", "one").exit_code == 0
        assert path.read_bytes() == before
        after = rows_of(csv)
        assert after[0] == rows[0]
        assert (after[1]["padded_cells"], after[1]["waste"]) == ("4096", rows[1]["waste"])
        assert after[1]["config_hash"] == rows[1]["config_hash"]

    def test_two_budgets_put_their_rows_into_one_baseline(self, path: Path, csv: Path) -> None:
        for row in (0, 1):
            planted(csv, row, padded_cells="1000")
        entry = f"workload: {{{GRID}}}, baseline: before.csv, regress: {{padded_cells: 0%}}"
        names = {"a": "16", "b": "32"}
        budgets = [f"  - {{name: {n}, where: {{width_ladder: 'multiple:{w}'}}, {entry}}}" for n, w in names.items()]
        path.write_text("\n".join(["schema_version: 1", "budgets:", *budgets, ""]))
        found = run("check", path, "--update", "a", "--update", "b", "-q")
        assert found.exit_code == 0
        assert [row["padded_cells"] for row in rows_of(csv)] == ["3584", "4096"]

    def test_a_baseline_that_was_worse_is_an_improvement(self, path: Path, csv: Path) -> None:
        planted(csv, 0, waste="0.6")
        found = document(path)
        assert (found["exit_code"], found["totals"]["improved"]) == (0, 1)
        assert run("check", path, "--strict").exit_code == 3
        assert run("check", path, "--strict", "--update", "one").exit_code == 0
        assert document(path)["totals"]["improved"] == 0

    def test_a_row_that_the_baseline_lacks(self, path: Path, csv: Path) -> None:
        rewrite(csv, rows_of(csv)[:1])
        assert run("check", path).exit_code == 4
        lines = failures(path)
        assert [line.split()[2] for line in lines] == ["padded_cells", "waste"]
        assert all("before.csv has no row of this point" in line for line in lines)

    def test_a_baseline_of_another_trace(self, path: Path, csv: Path) -> None:
        planted(csv, trace_sha256="cd" * 32)
        assert run("check", path).exit_code == 4
        assert all(
            "before.csv is of another trace: sha256 cdcdcdcdcdcd, this one is none" in line for line in failures(path)
        )

    def test_a_baseline_of_another_schema(self, path: Path, csv: Path) -> None:
        csv.write_text(csv.read_text().replace("padded_cells", "padding", 1).replace(f"\n{SCHEMA_VERSION},", "\n1,"))
        assert run("check", path).exit_code == 4

    def test_a_baseline_without_the_figure(self, path: Path, csv: Path) -> None:
        planted(csv, waste="")
        assert run("check", path).exit_code == 4
        assert [line.split(";")[0] for line in failures(path)] == [
            "NOT COMPARABLE waste of one, lockstep-24 4x64 pow2 multiple:16: limit no worse than the baseline, "
            "measured 0.427455, before.csv has no waste"
        ]

    def test_no_baseline_at_all_is_missing(self, path: Path, csv: Path) -> None:
        csv.unlink()
        assert run("check", path).exit_code == 3
        assert all("before.csv: cannot be read: No such file or directory" in line for line in failures(path))

    def test_a_baseline_that_torch_measured_is_no_place_for_a_row_without(self, path: Path, csv: Path) -> None:
        planted(csv, 1, padded_cells="4000", model="tiny", dtype="float32")
        assert run("check", path).exit_code == 3
        found = run("check", path, "--update", "one")
        assert (found.exit_code, found.stdout) == (2, "")
        assert "before.csv: was made with another model or runner: make it again with its own command" in found.stderr


def test_inside_a_band_nothing_has_improved(tmp_path: Path) -> None:
    path = budget(
        tmp_path / "b.yaml",
        "{padded_cells: {at_most: 700000, at_least: 600000}}",
        workload="bench: {steps: 512, host_only: true}",
    )
    assert run("check", path, "--strict").exit_code == 0


@pytest.mark.parametrize(("bound", "code"), [(680_960, 0), (680_959, 3)])
def test_a_summary_that_cannot_be_written_changes_no_verdict(
    bound: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "/nosuch/s.md")
    path = budget(
        tmp_path / "b.yaml", f"{{padded_cells: {{at_most: {bound}}}}}", workload="bench: {steps: 512, host_only: true}"
    )
    done = run("check", path, "--format", "github")
    assert done.exit_code == code
    assert "GITHUB_STEP_SUMMARY=/nosuch/s.md: cannot be written: No such file or directory" in done.stderr
