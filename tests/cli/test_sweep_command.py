"""`nanoserve sweep` as a command: the four numbers of the design in every form, what is said where, and bad input."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sweeping import SMALL, invoke, refused, rows_of, sweep, vidur
from test_console import ANSI, on_a_terminal, script
from test_without_torch_cli import without_torch

from nanoserve.ladders import ROW_LADDERS
from nanoserve_cli.columns import RUN_COLUMNS
from nanoserve_cli.grid import SweepSpec
from nanoserve_cli.sweep_tables import Budget, Line, sheets

FOUR = (
    *("--width-multiple", "128,512,2048,8192", "--max-batch", "256"),
    *("--max-model-len", "8192", "--rows-ladder", "pow2", "--host-only"),
)
SHAPES = ["9 x 64 = 576", "9 x 16 = 144", "9 x 4 = 36", "9 x 1 = 9"]
USED = [5, 2, 1, 1]
WASTE = [1 - 418_560 / padded for padded in (688_128, 1_081_344, 4_194_304, 16_777_216)]
SHOWN = ["39.2%", "61.3%", "90.0%", "97.5%"]
VERDICTS = ["OVER", "OVER", "within", "within"]
TABLE = """\
lockstep-512, at most 256 rows x 8,192 tokens: 512 steps, 512 open shapes

                       row x width               total
 rows  widths             = shapes  used  waste  waste  budget
 ─────────────────────────────────────────────────────────────
 pow2  multiple:128   9 x 64 = 576     5  39.2%  39.2%  OVER
 pow2  multiple:512   9 x 16 = 144     2  61.3%  61.3%  OVER
 pow2  multiple:2048    9 x 4 = 36     1  90.0%  90.0%  within
 pow2  multiple:8192     9 x 1 = 9     1  97.5%  97.5%  within

capture budget: 64 graphs; 2 of 4 policies over it

"""
MARKDOWN = """\
**lockstep-512, at most 256 rows x 8,192 tokens: 512 steps, 512 open shapes**

| rows | widths | row x width = shapes | used | waste | total waste | budget |
| --- | --- | ---: | ---: | ---: | ---: | --- |
| pow2 | multiple:128 | 9 x 64 = 576 | 5 | 39.2% | 39.2% | OVER |
| pow2 | multiple:512 | 9 x 16 = 144 | 2 | 61.3% | 61.3% | OVER |
| pow2 | multiple:2048 | 9 x 4 = 36 | 1 | 90.0% | 90.0% | within |
| pow2 | multiple:8192 | 9 x 1 = 9 | 1 | 97.5% | 97.5% | within |

capture budget: 64 graphs; 2 of 4 policies over it
"""


class TestTheFourRows:
    """256 rows at 8192 tokens under four multiples: 576, 144, 36 and 9 shapes, and what 512 lockstep steps waste."""

    def test_as_a_table(self) -> None:
        result = invoke(*FOUR)
        assert (result.exit_code, result.stdout) == (0, TABLE)

    def test_as_markdown(self) -> None:
        assert invoke(*FOUR, "--format", "markdown").stdout == MARKDOWN

    def test_as_json(self) -> None:
        result = invoke(*FOUR, "--format", "json")
        found = json.loads(result.stdout)
        assert found["budget"] == {"graphs": 64, "mib": None}
        assert [point["shapes_available"] for point in found["points"]] == [576, 144, 36, 9]
        assert [point["shapes_used"] for point in found["points"]] == USED
        assert [point["waste"] for point in found["points"]] == WASTE
        assert [point["budget"] for point in found["points"]] == VERDICTS
        assert all(set(point) == {*RUN_COLUMNS, "budget"} for point in found["points"])

    def test_as_csv_and_in_the_file(self, tmp_path: Path) -> None:
        result = invoke(*FOUR, "--format", "csv", "--out", tmp_path / "new" / "four.csv")
        assert result.stdout == (tmp_path / "new" / "four.csv").read_text()
        rows = list(csv.DictReader(io.StringIO(result.stdout)))
        assert [row["shapes_available"] for row in rows] == ["576", "144", "36", "9"]
        assert [row["shapes_used"] for row in rows] == ["5", "2", "1", "1"]
        assert [float(row["waste"]) for row in rows] == WASTE
        assert [row["padded_cells"] for row in rows] == ["688128", "1081344", "4194304", "16777216"]
        assert [row["open_cells"] for row in rows] == ["418560"] * 4

    def test_bare_it_is_the_lockstep_run_at_8192_tokens_of_8_rows(self) -> None:
        points = sweep("--width-multiple", "128,512,2048", "--host-only")
        assert [point["shapes_available"] for point in points] == [256, 64, 16]
        assert [point["shapes_used"] for point in points] == USED[:3]
        assert [point["waste"] for point in points] == WASTE[:3]

    def test_incomplete_ladders_are_shown_as_they_are_and_completed(self) -> None:
        """At 50 rows TGI's list ends at 32: a lockstep of 40 runs eager, unpadded, every step."""
        rest = ("--rows", 40, "--max-model-len", 1024, "--width-multiple", 128, "--host-only")
        shown = invoke("--rows-ladder", "tgi", "--max-batch", 50, *rest).stdout
        own, whole = (line.split() for line in shown.splitlines() if line.startswith(" tgi"))
        assert own == [
            "tgi",
            "as",
            "it",
            "is",
            "multiple:128",
            *["6", "x", "8", "=", "48"],
            "0",
            "0.0%",
            "0.0%",
            "512",
            "within",
        ]
        assert whole == ["tgi", "multiple:128", *["7", "x", "8", "=", "56"], "5", "35.1%", "35.1%", "0", "within"]
        assert "as it is: without its maxima, as its system has it: steps off it run eager" in shown

    def test_policies_at_their_own_pace_have_a_range_of_steps(self) -> None:
        traffic = ("--num-requests", 40, "--request-rate", 400, "--output-len", 30)
        shown = invoke(
            *traffic, "--width-multiple", "128,8192", "--step-time", "linear:1,0.1,0.001", "--host-only"
        ).stdout
        assert re.search(r"tokens: [\d,]+ to [\d,]+ steps, [\d,]+ to [\d,]+ open shapes", shown)
        assert "each policy ran at its own pace: steps and waste are of its own run" in shown


class TestBudget:
    @pytest.mark.parametrize(
        ("graphs", "mib", "verdict"),
        [
            (36, None, "within"),
            (35, None, "OVER"),
            (36, 10.0, "within"),
            (36, 9.5, "OVER MiB"),
            (35, 9.5, "OVER both"),
            (35, 10.0, "OVER"),
        ],
    )
    def test_the_word_says_which_figure_is_over(self, graphs: int, mib: float | None, verdict: str) -> None:
        assert Budget(graphs, mib).verdict({"shapes_available": 36, "capture_mib": 10.0}) == verdict

    def test_what_was_not_predicted_is_not_over(self) -> None:
        assert Budget(64, 0.1).verdict({"shapes_available": 36, "capture_mib": None}) == "within"

    def test_the_budget_line_counts_them(self) -> None:
        shown = invoke(*FOUR, "--budget-graphs", 9, "--budget-mib", 1.5).stdout
        assert "capture budget: 9 graphs, 1.5 MiB; 3 of 4 policies over it" in shown
        assert [line.split()[-1] for line in shown.splitlines() if " pow2 " in line] == ["OVER"] * 3 + ["within"]

    def test_over_budget_is_red_and_said_in_words(self) -> None:
        """Colour alone says nothing on paper or to some eyes."""
        code, said = on_a_terminal("sweep", *FOUR, env={"COLUMNS": "100"})
        assert code == 0
        lines = [line for line in said.splitlines() if "multiple:" in line]
        assert ["\x1b[31m" in line for line in lines] == [True, True, False, False]
        assert ["OVER" in line for line in lines] == [True, True, False, False]


class TestWhatIsSaid:
    def test_a_line_a_point_on_stderr_where_no_terminal_is(self, tmp_path: Path) -> None:
        result = invoke(*SMALL, "--width-multiple", "16,64", "--out", tmp_path / "o.csv")
        assert result.stderr.splitlines() == [
            "1/2 lockstep-24 4x64 pow2 multiple:16",
            "2/2 lockstep-24 4x64 pow2 multiple:64",
            f"2 rows in {tmp_path / 'o.csv'}",
        ]

    def test_quietly_nothing(self, tmp_path: Path) -> None:
        assert invoke(*SMALL, "--out", tmp_path / "o.csv", "-q").stderr == ""

    def test_what_became_of_a_traces_rows(self, tmp_path: Path) -> None:
        path = vidur(tmp_path / "t.csv", [(0, 5, 3), (1, 100, 3)])
        said = invoke("--from", path, "--max-model-len", "32,64", "--host-only").stderr
        assert said.splitlines()[:2] == [
            f"{path}: 1 requests over max_model_len {length} left out" for length in (32, 64)
        ]

    def test_dry_run_prints_the_points_and_reads_nothing(self, tmp_path: Path) -> None:
        flags = ("--from", tmp_path / "absent.csv", "--width-multiple", "16,32", "--max-batch", "4,8")
        result = invoke(*flags, "--dry-run", "--out", tmp_path / "o.csv")
        assert result.stdout.splitlines() == [
            f"   1 {tmp_path}/absent.csv 4x8192 pow2 multiple:16",
            f"   2 {tmp_path}/absent.csv 4x8192 pow2 multiple:32",
            f"   3 {tmp_path}/absent.csv 8x8192 pow2 multiple:16",
            f"   4 {tmp_path}/absent.csv 8x8192 pow2 multiple:32",
            "4 points, nothing run",
        ]
        assert list(tmp_path.iterdir()) == []
        assert invoke(*flags, "--link", "--dry-run").stdout.count("absent.csv") == 2

    def test_a_pipe_of_80_columns_cuts_no_number(self) -> None:
        """The widest rules and figures: a line may be longer than the pipe, a figure is never shorter than itself."""
        limits = ("--max-batch", "509", "--max-model-len", "8192", "--width-multiple", "16,8192", "--rows", 500)
        flags = ("sweep", "--rows-ladder", "vllm-interactive,nano-vllm", *limits, "--host-only", "-q")
        narrow = script(*flags, env={"COLUMNS": "80"}).stdout
        assert narrow == script(*flags, env={"COLUMNS": "300"}).stdout
        assert max(map(len, narrow.splitlines())) > 80
        assert "…" not in narrow
        assert re.search(r"vllm-interactive +multiple:16 +76 x 512 = 38,912 +32 +4.4% +4.4% +0  OVER$", narrow, re.M)
        assert re.search(r"nano-vllm as it is +multiple:16 +35 x 512 = 17,920 +0 +0.0% +0.0% +512  OVER$", narrow, re.M)

    def test_a_terminal_has_a_bar_with_what_is_left_and_no_line_a_point(self, tmp_path: Path) -> None:
        widths = ",".join(map(str, range(1, 40)))
        code, said = on_a_terminal("sweep", *SMALL, "--width-multiple", widths, "--out", tmp_path / "o.csv")
        assert code == 0
        assert ANSI in said
        assert re.search(r"points .*\d+/39.*\d:\d\d:\d\d", said), "a bar with the count and the time left"
        assert "1/39 lockstep" not in said

    def test_measured_columns_that_say_nothing_are_left_out(self) -> None:
        shown = invoke(*SMALL).stdout
        assert not {"compiles", "MiB", "list"} & set(shown.split())

    def test_a_policy_that_no_step_uses_still_shows_that(self) -> None:
        """Available and used are always both printed, also where the second is 0."""
        shown = invoke("--num-requests", 1, "--output-len", 1, "--max-model-len", 512, "--host-only").stdout
        assert "used" in shown.split()
        (line,) = (line.split() for line in shown.splitlines() if line.startswith(" pow2"))
        assert line[2:9] == ["4", "x", "4", "=", "16", "0", "0.0%"]

    def test_step_times_are_a_second_table_in_every_text_form(self) -> None:
        (one,) = sweep(*SMALL)
        measured = one | {
            "step_ms_open": 1.25,
            "step_ms_bucketed": 1.5,
            "step_ratio": 1.2,
            "step_ratio_low": None,
            "step_ratio_high": None,
            "capture_s_measured": 0.25,
        }
        line = Line(SweepSpec().points[0], measured)
        _, times = sheets([line], Budget(64), times=True)
        assert times.rows == (("lockstep-24", "8 x 8,192", "pow2", "multiple:128", "1.25", "1.50", "1.20", "-", "0.2"),)
        assert "| lockstep-24 | 8 x 8,192 | pow2 | multiple:128 | 1.25 | 1.50 | 1.20 | - | 0.2 |" in times.markdown()

    @pytest.mark.parametrize("columns", [80, 120])
    def test_help_cuts_no_flag(self, columns: int) -> None:
        shown = script("sweep", "--help", env={"COLUMNS": str(columns)}).stdout
        assert "…" not in shown
        for word in ("--width-multiple", "--no-measure-compiles", "--max-model-len", "--budget-mib", *ROW_LADDERS):
            assert word in shown
        assert max(map(len, shown.splitlines())) <= columns


class TestBadInput:
    """One line, exit code 2, and nothing is written."""

    @pytest.mark.parametrize(
        ("flags", "message"),
        [
            (("--rows-ladder", "vlm"), "unknown row rule 'vlm': did you mean vllm?"),
            (("--rows-ladder", "pow2,,vllm"), "'pow2,,vllm' has an empty part: give rules between single commas"),
            (("--width-ladder", "mult:8"), "unknown width rule 'mult:8': give multiple:N, pow2:MIN or list:A,B,C"),
            (("--width-ladder", "pow2:x"), "width rule 'pow2:x': 'x' is not a whole number; give "),
            (
                ("--width-multiple", "8,x"),
                "--width-multiple takes integers of at least 1 with commas between, got '8,x'",
            ),
            (("--max-batch", ""), "--max-batch takes integers of at least 1 with commas between, got ''"),
            (("--max-batch", "0"), "--max-batch takes integers of at least 1 with commas between, got '0'"),
            (("--max-batch", "8,8"), "the grid has a point twice: lockstep-24 8x64 pow2 multiple:128"),
            (("--max-batch", "8,2"), "a lockstep run of 3 rows does not fit max_batch 2: ask for fewer rows"),
            (("--steps", "49"), "a prompt of 16 and 49 steps need 65 slots, max_model_len is 64: ask for fewer steps"),
            (("--link", "--max-batch", "4,8", "--width-multiple", "8,16,32"), "link pairs lists of one length; "),
            (("--step-time", "fast"), "step time 'fast': 'fast' is no number of milliseconds; give 25 (ms a step), "),
            (("--step-time", "0"), "step time '0': step_ns must be an integer of at least 1, got 0; give "),
            (("--measure",), "measure needs torch: drop host_only"),
            (("--model", "small"), "model needs torch: drop host_only"),
            (("--repeats", "3"), "repeats is of points that run: add measure"),
            (("--jobs", "2"), "--jobs is of points that run: add --measure"),
            (("--executor", "ray"), "--executor is of points that run: add --measure"),
            (("--resume", "--overwrite"), "--overwrite beside --resume: reuse the file's rows, or start over"),
            (("--spec", "absent.yaml"), "absent.yaml: cannot be read: No such file or directory"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
    )
    def test_of_flags(self, flags: tuple[str, ...], message: str, tmp_path: Path) -> None:
        path = tmp_path / "folder" / "o.csv"
        assert refused(*SMALL, "--out", path, *flags).startswith(message)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("flag", ["--resume", "--overwrite"])
    def test_a_flag_about_the_file_without_one(self, flag: str) -> None:
        assert refused(*SMALL, flag) == f"{flag} needs --out FILE"

    @pytest.mark.parametrize(
        ("flags", "message"),
        [
            (("--jobs", "2", "--executor", "ray"), "--jobs is of --executor local: a Ray cluster has its own"),
            (
                ("--step-time", "linear:1,0,0"),
                "measure runs on a grid: step_time must be a number of ms, got linear:1,0,0",
            ),
            (("--compile-backend", "count"), "compile_backend is of runner compiled"),
            (("--model", "huge"), "no model 'huge': give one of tiny, small, smollm2, or a path"),
            (("--device", "tpu"), "device 'tpu' is unknown: use cpu, cuda or cuda:N"),
        ],
        ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
    )
    def test_of_measured_points(self, flags: tuple[str, ...], message: str, tmp_path: Path) -> None:
        rest = ("--max-model-len", "64", "--steps", "24", "--measure")
        assert refused(*rest, *flags, "--out", tmp_path / "o.csv").startswith(message)
        assert list(tmp_path.iterdir()) == []

    def test_a_trace_that_is_not_there(self, tmp_path: Path) -> None:
        absent = tmp_path / "absent.csv"
        message = refused("--from", absent, "--host-only", "--out", tmp_path / "o.csv")
        assert message.startswith(f"{absent}: no such file, and no trace key: known: azure2023-conv, ")
        assert list(tmp_path.iterdir()) == []

    def test_traffic_of_which_nothing_fits_names_it(self, tmp_path: Path) -> None:
        path = vidur(tmp_path / "t.csv", [(0, 50, 3)])
        message = refused("--from", path, "--max-model-len", "64,40", "--host-only", "--out", tmp_path / "o.csv")
        assert message == f"{path}: no request fits max_model_len 40: the shortest needs 52"
        assert not (tmp_path / "o.csv").exists()

    def test_a_point_that_cannot_be_priced_names_it_and_leaves_the_old_file(self, tmp_path: Path) -> None:
        old = tmp_path / "o.csv"
        assert invoke(*SMALL, "--out", old, "-q").exit_code == 0
        before = old.read_bytes()
        message = refused(*SMALL, "--step-time", "1e12", "--out", old, "--overwrite")
        assert message == (
            "lockstep-24 4x64 pow2 multiple:128: the run is longer than 2**63 ns (292 years): make the steps shorter"
        )
        assert old.read_bytes() == before

    def test_a_file_that_is_a_folder(self, tmp_path: Path) -> None:
        assert refused(*SMALL, "--out", tmp_path) == f"{tmp_path}: cannot be added to: is no regular file"

    def test_a_folder_that_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "f").write_text("")
        assert refused(*SMALL, "--out", tmp_path / "f" / "o.csv").startswith(
            f"{tmp_path / 'f'}: cannot write the results: "
        )

    def test_a_file_that_is_there_is_left_alone_unless_it_is_said_what_for(self, tmp_path: Path) -> None:
        path = tmp_path / "o.csv"
        assert invoke(*SMALL, "--out", path).exit_code == 0
        before = path.read_bytes()
        assert refused(*SMALL, "--out", path) == f"{path}: exists: --resume reuses its rows, --overwrite starts over"
        assert path.read_bytes() == before

    @pytest.mark.parametrize("flag", ["--resume", "--overwrite"])
    def test_a_file_that_is_another_thing_is_never_replaced(self, flag: str, tmp_path: Path) -> None:
        path = tmp_path / "o.csv"
        path.write_text("a,b\n1,2\n")
        assert refused(*SMALL, "--out", path, flag).startswith(f"{path}: has other columns than schema 2: move it away")
        assert path.read_text() == "a,b\n1,2\n"


class TestWithoutTorch:
    def test_it_prices_says_once_what_it_does_not_measure_and_leaves_that_empty(self, tmp_path: Path) -> None:
        done = without_torch("sweep", *SMALL[1:], "--width-multiple", "16,64", "--out", tmp_path / "o.csv")
        assert done.returncode == 0, done.stderr
        assert done.stderr.splitlines()[0] == (
            "no torch here: compiles and MiB are not measured (pip install 'nanoserve[engine]')"
        )
        assert done.stderr.count("torch") == 1
        for row in rows_of(tmp_path / "o.csv"):
            empty = ("torch_version", "device", "model", "runner", "dtype", "compiles_bucketed", "capture_mib")
            assert {row[name] for name in empty} == {""}
            assert int(row["padded_cells"]) > 0

    def test_host_only_says_nothing_of_it(self) -> None:
        assert without_torch("sweep", *SMALL, "-q").stderr == ""

    @pytest.mark.parametrize("flag", ["--measure", "--measure-compiles"])
    def test_what_is_asked_for_and_needs_it_is_an_error(self, flag: str, tmp_path: Path) -> None:
        done = without_torch("sweep", *SMALL[1:], flag, "--out", tmp_path / "o.csv")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "error: measuring needs torch: pip install 'nanoserve[engine]'\n"
        assert list(tmp_path.iterdir()) == []

    def test_importing_the_command_imports_no_torch_and_no_pandas(self) -> None:
        code = (
            "import sys; import nanoserve_cli.app; print(*{'torch', 'pandas', 'matplotlib', 'ray'} & set(sys.modules))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout == "\n"


def test_json_has_no_number_that_json_lacks() -> None:
    """Infinities and NaN are no JSON: another reader must take the document."""

    def refuse(constant: str) -> Any:
        raise AssertionError(constant)

    drawn = ("--num-requests", 1, "--output-len", 1, "--max-model-len", 512)
    result = invoke("--host-only", *drawn, "--format", "json")
    (point,) = json.loads(result.stdout, parse_constant=refuse)["points"]
    assert (point["steps"], point["waste"], point["shapes_used"]) == (0, 0.0, 0)
