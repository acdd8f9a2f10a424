"""One result, many faces: each whole, as it is printed, and what GitHub would make of ours."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from budgets import GRID, LOCKSTEP, budget, limit, run
from hypothesis import given
from hypothesis import strategies as st

from nanoserve_cli.check import words
from nanoserve_cli.check.checking import Report
from nanoserve_cli.check.documents import junit
from nanoserve_cli.check.github import (
    SHOWN,
    SUMMARY_BYTES,
    append_summary,
    cut,
    escape_data,
    escape_property,
    workflow_commands,
)
from nanoserve_cli.check.tables import markdown
from nanoserve_cli.check.verdicts import Verdict
from nanoserve_cli.check.words import Command

MIXED = f"""schema_version: 1
defaults: {{soft: 1%}}
budgets:
  - name: seed
    workload: {{{LOCKSTEP}}}
    limits:
      shapes_used: {{at_most: 1}}
      padded_cells: {{at_most: 20400}}
      waste: {{at_most: 0.6}}
      open_cells: {{exactly: 9311, soft: 0%}}
      recompiles_bucketed: {{exactly: 0}}
      requests: {{reported: true}}
  - name: "grid | 50%: <a, b>"
    workload: {{{GRID}}}
    limits:
      padded_cells: {{at_most: 4000}}
"""


@pytest.fixture
def mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file with every verdict but one that is not comparable; what is run is in its folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    (tmp_path / "b.yaml").write_text(MIXED)
    return "b.yaml"


FAIL = (
    "FAIL padded_cells of grid | 50%: <a, b>, lockstep-24 4x64 pow2 multiple:32: limit at most 4,000 (1% soft), "
    "measured 4,096, 96 over (+2.40%); b.yaml:16; accept: nanoserve check b.yaml --update 'grid | 50%: <a, b>'"
)
EXACT = (
    "FAIL open_cells of seed, lockstep-64: limit exactly 9,311, measured 9,312, 1 over (+0.01%); b.yaml:10; accept: "
    "nanoserve check b.yaml --update seed"
)
MISSING = (
    "MISSING recompiles_bucketed of seed, lockstep-64: limit exactly 0 (1% soft), not measured: host_only runs no step"
    "; b.yaml:11; nothing to accept"
)
SOFT = (
    "soft padded_cells of seed, lockstep-64: limit at most 20,400 (1% soft), measured 20,480, 80 over (+0.39%)"
    "; b.yaml:8; accept: nanoserve check b.yaml --update seed"
)
IMPROVED = (
    "improved waste of seed, lockstep-64: limit at most 0.6 (1% soft), measured 0.545312, 0.0546875 under (-9.11%); "
    "b.yaml:9; accept: nanoserve check b.yaml --strict --update seed"
)


def test_the_table_and_a_line_for_everything_that_is_not_as_written(mixed: str) -> None:
    found = run("check", mixed, env={"COLUMNS": "80"})
    assert found.exit_code == 3
    assert found.stderr == "running seed\nrunning grid | 50%: <a, b>\n"
    assert (
        found.stdout
        == f"""\
Budgets of b.yaml

 budget
   metric                        limit  measured  off by  verdict
 ──────────────────────────────────────────────────────────────────────────
 seed
   shapes_used               at most 1         1          pass
   padded_cells         at most 20,400    20,480  +0.39%  soft
   waste                   at most 0.6  0.545312  -9.11%  improved
   open_cells            exactly 9,311     9,312  +0.01%  FAIL
   recompiles_bucketed       exactly 0         -          MISSING
   requests                                    3          reported
 grid | 50%: <a, b>
   padded_cells          at most 4,000     4,096  +2.40%  FAIL, 1 of 2 rows


{FAIL}
{EXACT}
{MISSING}
{SOFT}
{IMPROVED}
b.yaml: 2 fail, 1 missing, 1 soft, 1 improved, 1 reported, 2 pass: failed (exit 3)
"""
    )


def test_a_check_that_passes_is_its_table_and_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    budget(Path("b.yaml"), "{padded_cells: {at_most: 20480}}")
    found = run("check", "b.yaml", "-q")
    assert (found.exit_code, found.stderr) == (0, "")
    assert (
        found.stdout
        == """\
Budgets of b.yaml

 budget
   metric                 limit  measured  off by  verdict
 ─────────────────────────────────────────────────────────
 one
   padded_cells  at most 20,480    20,480          pass


b.yaml: 1 pass: passed
"""
    )


def test_of_many_failures_the_table_face_tells_the_worst(tmp_path: Path) -> None:
    grid = "sweep: {traffic: {steps: 24}, max_model_len: 64, max_batch: [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15], "
    path = budget(
        tmp_path / "b.yaml",
        "{padded_cells: {at_most: 1}}",
        workload=grid + "width_multiple: [16, 32], host_only: true}",
    )
    found = run("check", path, "-q")
    assert found.stdout.count("\nFAIL") == 20
    assert "\n6 more: --format json has them all\n" in found.stdout


class TestJson:
    def test_one_verdict_whole(self, mixed: str) -> None:
        found = json.loads(run("check", mixed, "--format", "json").stdout)
        assert {key: value for key, value in found.items() if key not in {"counts", "times"}} == {
            "schema_version": 1,
            "file": "b.yaml",
            "strict": False,
            "exit_code": 3,
            "totals": {
                "fail": 2,
                "missing": 1,
                "not comparable": 0,
                "soft": 1,
                "improved": 1,
                "reported": 1,
                "pass": 2,
            },
        }
        assert found["counts"][1] == {
            "budget": "seed",
            "row": "lockstep-64",
            "metric": "padded_cells",
            "limit": "at_most",
            "bound": 20400,
            "margin": "1%",
            "measured": 20480,
            "verdict": "soft",
            "fails": False,
            "beyond": 80,
            "reason": None,
            "line": 8,
            "accept": "nanoserve check b.yaml --update seed",
        }
        assert len(found["counts"]) == 8
        assert found["times"] == []

    def test_what_was_not_measured_is_null_and_says_why(self, mixed: str) -> None:
        entry = json.loads(run("check", mixed, "--format", "json").stdout)["counts"][4]
        assert (entry["measured"], entry["beyond"], entry["accept"], entry["bound"]) == (None, None, None, 0)
        assert entry["reason"].startswith("not measured: host_only")

    def test_times_stand_apart(self, tmp_path: Path) -> None:
        path = budget(tmp_path / "b.yaml", "{plan_us_bucketed: {reported: true}, steps: {exactly: 64}}")
        found = json.loads(run("check", path, "--format", "json").stdout)
        assert [entry["metric"] for entry in found["times"]] == ["plan_us_bucketed"]
        assert [entry["metric"] for entry in found["counts"]] == ["steps"]
        assert found["times"][0]["measured"] > 0

    def test_a_time_fails_only_where_it_is_a_limit(self, tmp_path: Path) -> None:
        path = budget(tmp_path / "b.yaml", "{plan_us_bucketed: {at_most: 0.001}}")
        assert run("check", path).exit_code == 3


class TestJunit:
    def test_a_suite_a_budget_and_a_case_a_row(self, mixed: str) -> None:
        root = ElementTree.fromstring(run("check", mixed, "--format", "junit").stdout)
        suites = {suite.get("name"): suite for suite in root}
        assert {name: dict(suite.attrib) for name, suite in suites.items()} == {
            "seed": {"name": "seed", "tests": "6", "failures": "2", "errors": "0", "skipped": "0"},
            "grid | 50%: <a, b>": {
                "name": "grid | 50%: <a, b>",
                "tests": "2",
                "failures": "1",
                "errors": "0",
                "skipped": "0",
            },
        }
        assert [case.get("name") for case in suites["grid | 50%: <a, b>"]] == [
            "padded_cells at most 4,000 [lockstep-24 4x64 pow2 multiple:16]",
            "padded_cells at most 4,000 [lockstep-24 4x64 pow2 multiple:32]",
        ]
        failures = [case for case in root.iter("testcase") if case.find("failure") is not None]
        assert [(case.get("classname"), case.get("line"), case[0].get("type")) for case in failures] == [
            ("seed", "10", "fail"),
            ("seed", "11", "missing"),
            ("grid | 50%: <a, b>", "16", "fail"),
        ]
        assert [case[0].text for case in failures] == [EXACT, MISSING, FAIL]
        passed = next(case for case in root.iter("testcase") if case.find("failure") is None)
        assert passed[0].text == "shapes_used of seed, lockstep-64: limit at most 1 (1% soft), measured 1"

    def test_strict_fails_more_and_what_is_not_comparable_is_an_error(self) -> None:
        made = [of("improved"), of("not comparable", measured=None, reason="another trace")]
        for strict, failures in ((False, "0"), (True, "1")):
            (suite,) = ElementTree.fromstring(junit(Report(Path("b.yaml"), tuple(made), strict), COMMAND))
            assert (suite.get("failures"), suite.get("errors"), suite.get("skipped")) == (failures, "1", "0")
            assert suite[1][0].tag == "error"

    def test_what_xml_cannot_hold_is_replaced(self) -> None:
        made = of("missing", measured=None, reason="bad \x00\x1b[31m \ud800 <&> bytes")
        text = junit(Report(Path("b.yaml"), (made,), False), COMMAND)
        (suite,) = ElementTree.fromstring(text)
        message = suite[0][0].get("message")
        assert message is not None
        assert "bad ??[31m ? <&> bytes" in message


COMMAND = Command(Path("b.yaml"))


def of(status: Any, measured: Any = 5, reason: str = "", *, budget: str = "one", line: int = 7) -> Verdict:
    """A verdict on `padded_cells` at most 4."""
    about = limit("padded_cells", "at_most", 4, line=line)
    return Verdict(budget, "row", about, status, measured, 4, reason, acceptable=measured is not None)


def test_markdown_is_worst_first_with_what_to_do(mixed: str) -> None:
    assert run("check", mixed, "--format", "markdown").stdout == (
        """\
### b.yaml: 2 fail, 1 missing, 1 soft, 1 improved, 1 reported, 2 pass: failed (exit 3)

| verdict | budget | metric | limit | measured | off by |
| --- | --- | --- | ---: | ---: | ---: |
| FAIL, 1 of 2 rows | grid \\| 50%: &lt;a, b&gt; | padded_cells | at most 4,000 | 4,096 | +2.40% |
| FAIL | seed | open_cells | exactly 9,311 | 9,312 | +0.01% |
| MISSING | seed | recompiles_bucketed | exactly 0 | - |  |
| soft | seed | padded_cells | at most 20,400 | 20,480 | +0.39% |
| improved | seed | waste | at most 0.6 | 0.545312 | -9.11% |
| reported | seed | requests |  | 3 |  |
| pass | seed | shapes_used | at most 1 | 1 |  |

- FAIL padded_cells of grid \\| 50%: &lt;a, b&gt;, lockstep-24 4x64 pow2 multiple:32: limit at most 4,000 (1% soft), """
        """measured 4,096, 96 over (+2.40%); `b.yaml:16`; `nanoserve check b.yaml --update 'grid | 50%: <a, b>'`
- FAIL open_cells of seed, lockstep-64: limit exactly 9,311, measured 9,312, 1 over (+0.01%); `b.yaml:10`; """
        """`nanoserve check b.yaml --update seed`
- MISSING recompiles_bucketed of seed, lockstep-64: limit exactly 0 (1% soft), not measured: host_only runs no step; """
        """`b.yaml:11`
- soft padded_cells of seed, lockstep-64: limit at most 20,400 (1% soft), measured 20,480, 80 over (+0.39%); """
        """`b.yaml:8`; `nanoserve check b.yaml --update seed`
- improved waste of seed, lockstep-64: limit at most 0.6 (1% soft), measured 0.545312, 0.0546875 under (-9.11%); """
        """`b.yaml:9`; `nanoserve check b.yaml --strict --update seed`
"""
    )


class TestGithub:
    def test_annotations_on_the_lines_of_the_budget_file(self, mixed: str) -> None:
        found = run("check", mixed, "--format", "github", "-q")
        assert found.exit_code == 3
        assert found.stdout.splitlines() == [
            "::error file=b.yaml,line=16,title=grid | 50%25%3A <a%2C b>%3A padded_cells FAIL::padded_cells of grid "
            "| 50%25: <a, b>, lockstep-24 4x64 pow2 multiple:32: limit at most 4,000 (1%25 soft), measured 4,096, 96 "
            "over (+2.40%25); accept: nanoserve check b.yaml --update 'grid | 50%25: <a, b>'",
            "::error file=b.yaml,line=10,title=seed%3A open_cells FAIL::open_cells of seed, lockstep-64: limit exactly "
            "9,311, measured 9,312, 1 over (+0.01%25); accept: nanoserve check b.yaml --update seed",
            "::error file=b.yaml,line=11,title=seed%3A recompiles_bucketed MISSING::recompiles_bucketed of seed, "
            "lockstep-64: limit exactly 0 (1%25 soft), not measured: host_only runs no step; "
            "nothing to accept",
            "::warning file=b.yaml,line=8,title=seed%3A padded_cells soft::padded_cells of seed, lockstep-64: limit at "
            "most 20,400 (1%25 soft), measured 20,480, 80 over (+0.39%25); accept: nanoserve check b.yaml --update "
            "seed",
            "::notice file=b.yaml,line=9,title=seed%3A waste improved::waste of seed, lockstep-64: limit at most 0.6 "
            "(1%25 soft), measured 0.545312, 0.0546875 under (-9.11%25); accept: nanoserve check b.yaml --strict "
            "--update seed",
            "b.yaml: 2 fail, 1 missing, 1 soft, 1 improved, 1 reported, 2 pass: failed (exit 3)",
        ]

    def test_the_job_summary_is_added_where_github_says(self, mixed: str, tmp_path: Path) -> None:
        summary = tmp_path / "summary.md"
        summary.write_text("from another tool\n")
        run("check", mixed, "--format", "github", env={"GITHUB_STEP_SUMMARY": str(summary)})
        page = run("check", mixed, "--format", "markdown").stdout
        assert summary.read_text() == f"from another tool\n{page}"

    def test_other_faces_write_none(self, mixed: str, tmp_path: Path) -> None:
        summary = tmp_path / "summary.md"
        for face in ("table", "json", "junit", "markdown"):
            run("check", mixed, "--format", face, env={"GITHUB_STEP_SUMMARY": str(summary)})
        assert not summary.exists()

    @pytest.mark.parametrize(("failing", "shown"), [(10, 10), (11, 10), (400, 10)])
    def test_no_more_annotations_of_a_kind_than_are_shown_and_the_last_counts_the_rest(
        self, failing: int, shown: int
    ) -> None:
        made = [of("fail", line=line) for line in range(1, failing + 1)] + [of("soft"), of("improved")]
        lines = list(workflow_commands(Report(Path("b.yaml"), tuple(made), False), COMMAND))
        kinds = [line.split()[0] for line in lines]
        assert kinds == ["::error"] * shown + ["::warning", "::notice"]
        if failing > SHOWN:
            assert lines[shown - 1] == (
                f"::error file=b.yaml::{failing - 9} more: GitHub shows 10 of a step, the job summary has them all"
            )

    def test_strict_makes_errors_of_warnings_and_notices(self) -> None:
        made = (of("soft"), of("improved"), of("pass"))
        lines = list(workflow_commands(Report(Path("b.yaml"), made, True), COMMAND))
        assert [line.split()[0] for line in lines] == ["::error", "::error"]

    @given(st.text())
    def test_what_is_escaped_is_one_line_and_read_back(self, text: str) -> None:
        """As the runner does it: a command ends at its line, a property at a colon or comma."""
        data, value = escape_data(text), escape_property(text)
        assert not set("\r\n") & set(data)
        assert not set("\r\n:,") & set(value)
        undo = {"%25": "%", "%0D": "\r", "%0A": "\n", "%3A": ":", "%2C": ","}
        assert re.sub("%(25|0D|0A|3A|2C)", lambda found: undo[found[0]], value) == text
        assert re.sub("%(25|0D|0A)", lambda found: undo[found[0]], data) == text


class TestTheLimitOfASummary:
    def test_a_large_one_is_cut_at_a_line_and_says_how_much_was_lost(self, tmp_path: Path) -> None:
        made = [of("fail", measured=number, budget=f"budget-{number:06}") for number in range(5, 9_000)]
        page = markdown(Report(Path("b.yaml"), tuple(made), False), COMMAND)
        assert len(page.encode()) > SUMMARY_BYTES
        path = tmp_path / "s.md"
        path.write_text("x" * 999 + "\n")
        append_summary(path, page)
        text = path.read_text()
        assert SUMMARY_BYTES - 300 < path.stat().st_size <= SUMMARY_BYTES
        kept, _, note = text.removeprefix("x" * 999 + "\n").rpartition("\n\n")
        assert page.startswith(kept + "\n")
        lost = len(page.splitlines()) - len(kept.splitlines())
        assert note == f"*Cut here: {lost:,} more lines would be past the 1 MiB that a step may write.*\n"
        assert text.index("budget-008999") < text.index("budget-008000")

    def test_a_full_file_is_left_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "s.md"
        path.write_bytes(b"x" * (SUMMARY_BYTES - 10))
        append_summary(path, "much too long\n")
        assert path.stat().st_size == SUMMARY_BYTES - 10

    @given(
        st.lists(st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=40), max_size=30),
        st.integers(0, 400),
    )
    def test_what_is_kept_fits(self, lines: list[str], room: int) -> None:
        page = "".join(f"{line}\n" for line in lines)
        kept = cut(page, room)
        assert len(kept.encode()) <= room
        if len(page.encode()) <= room:
            assert kept == page


class TestWords:
    def test_a_figure_that_reads_like_its_limit_is_shown_whole(self) -> None:
        about = limit("waste", "at_most", 0.385338)
        made = Verdict("one", "", about, "fail", 0.38533834586466165, 0.385338, acceptable=True)
        assert words.sentence(made) == (
            "waste of one: limit at most 0.385338, measured 0.38533834586466165, 3.45865e-07 over"
        )

    def test_a_command_is_quoted_for_a_shell_and_keeps_its_flags(self) -> None:
        command = Command(Path("a b.yaml"), ("--results", "r.csv", "--strict"))
        assert command.accepting("it's") == (
            """nanoserve check 'a b.yaml' --results r.csv --strict --update 'it'"'"'s'"""
        )
        assert command.accepting("x", strict=True).count("--strict") == 1


def test_a_summary_begins_on_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "s.md"
    path.write_text("before")
    append_summary(path, "### after\n")
    assert path.read_text() == "before\n### after\n"
