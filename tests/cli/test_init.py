"""`nanoserve init`: a first budget file that passes, is commented, and never takes a file's place."""

from __future__ import annotations

from pathlib import Path

import pytest
from budgets import document, run, verdicts

from nanoserve_cli.check.budget_file import load_budgets
from nanoserve_cli.check.starter import METRICS

TRACE = "arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,3\n0.1,9,40\n0.2,100,200\n0.3,40,70\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_whole_file(here: Path) -> None:
    (here / "t.csv").write_text(TRACE)
    made = run("init", "--from", "t.csv", "--max-batch", 4, "--max-model-len", 512)
    assert (made.exit_code, made.stdout, made.stderr) == (0, "nanoserve.budget.yaml\n", "next: nanoserve check\n")
    assert (
        (here / "nanoserve.budget.yaml").read_text()
        == """\
# What the decode shapes here may cost: `nanoserve check` fails where a figure is beyond its limit.
# The figures are counts, the same on every machine: no GPU, no torch.
# After a change that is meant: nanoserve check --update t
schema_version: 1
# defaults:
#   soft: 2%    # up to 2 % beyond a limit is a warning
budgets:
  - name: t
    workload:
      sweep:    # any option of `nanoserve sweep`; under `bench:`, of `nanoserve bench`
        traffic: {from: "t.csv"}
        max_batch: 4
        max_model_len: 512
        rows_ladder: pow2
        width_multiple: 128
        host_only: true
    # The trace that the limits are of: of another one nothing is compared.
    trace_sha256: "8f9a3a4b3deacc8c56c904a7aabcae7b3ccffd767a40d6e6f605031dec8bdf82"
    limits:
      shapes_available: {at_most: 12}           # the whole closed set: graphs to capture
      shapes_used: {at_most: 7}                 # distinct shapes that ran on the list
      padded_cells: {at_most: 78464}            # graph rows x graph width
      waste: {at_most: 0.31714}                 # 1 - open / padded cells
      off_list_steps: {at_most: 0}              # steps no shape covers: eager, unpadded
    # Other limits: {at_least: 1}, {exactly: 0}, and {reported: true}, which is shown and is none.
    # Of a model that runs, `bench: {runner: compiled}`, there are more figures: recompiles_bucketed is one.
    # A time is a limit only where it is named.
    # Or by comparison with a results file, as `nanoserve sweep ... --out before.csv` writes it:
    # baseline: before.csv
    # regress: {padded_cells: +1%}
"""
    )
    assert verdicts() == [(metric, "pass") for metric in METRICS]


def test_without_a_trace_it_is_the_lockstep_run(here: Path) -> None:
    made = run("init", "--out", "b.yaml", "-q")
    assert (made.exit_code, made.stdout, made.stderr) == (0, "b.yaml\n", "")
    assert (
        (here / "b.yaml")
        .read_text()
        .startswith("# What the decode shapes here may cost: `nanoserve check b.yaml` fails")
    )
    found = document("b.yaml")["counts"]
    assert {entry["metric"]: entry["measured"] for entry in found}["padded_cells"] == 688_128


@pytest.mark.parametrize(
    "flags",
    [
        ("--rows-ladder", "tgi", "--max-batch", 48),
        ("--rows-ladder", "list:1,3,8"),
        ("--width-multiple", 100, "--max-model-len", 1000),
    ],
)
def test_whatever_the_policy_the_first_check_passes_and_nothing_is_loose(flags: tuple[object, ...], here: Path) -> None:
    assert run("init", *flags).exit_code == 0
    assert run("check", "--strict").exit_code == 0


def test_a_trace_that_changed_is_not_compared(here: Path) -> None:
    (here / "t.csv").write_text(TRACE)
    run("init", "--from", "t.csv", "--max-model-len", 512)
    (here / "t.csv").write_text(TRACE.replace("200", "201"))
    assert run("check").exit_code == 4


@pytest.mark.parametrize("name", ["a b", "yes", "12", "größe", "x: y # z", 'quo"te', "-dash"])
def test_any_name_of_a_trace_is_read_back(name: str, here: Path) -> None:
    (here / f"{name}.csv").write_text(TRACE)
    assert run("init", "--from", here / f"{name}.csv", "--max-model-len", 512).exit_code == 0
    (made,) = load_budgets(Path("nanoserve.budget.yaml")).budgets
    assert made.name == name
    assert run("check").exit_code == 0


def test_a_file_that_is_there_stays(here: Path) -> None:
    (here / "nanoserve.budget.yaml").write_text("mine")
    made = run("init")
    assert (made.exit_code, made.stdout) == (2, "")
    assert made.stderr == (
        "error: nanoserve.budget.yaml exists: choose another --out, or edit it; it was not changed\n"
    )
    assert (here / "nanoserve.budget.yaml").read_text() == "mine"


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (("--limit", 3), "error: --limit is of a recorded trace: add --from\n"),
        (("--from", "no.csv"), "error: no.csv: no such file, and no trace key: "),
        (("--rows-ladder", "vlm"), "error: "),
        (("--out", "no/such/folder/b.yaml"), "error: "),
    ],
)
def test_what_cannot_be_leaves_no_file(flags: tuple[object, ...], line: str, here: Path) -> None:
    made = run("init", *flags)
    assert (made.exit_code, made.stdout) == (2, "")
    assert made.stderr.startswith(line)
    assert made.stderr.count("\n") == 1
    assert list(here.iterdir()) == []


def test_a_trace_without_a_step_has_nothing_to_limit(here: Path) -> None:
    (here / "t.csv").write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,1\n")
    made = run("init", "--from", "t.csv")
    assert (made.exit_code, made.stderr) == (2, "error: t takes no decode step: there is nothing to limit\n")
