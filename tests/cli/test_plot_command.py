"""`nanoserve plot`: a figure where it was asked for, its facts on stdout, and one line for everything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from figure_samples import lockstep, rows
from typer.testing import CliRunner

from nanoserve_cli.columns import RUN_COLUMNS
from nanoserve_cli.commands.plot import plot
from nanoserve_cli.csv_file import write_rows
from nanoserve_cli.figures import KINDS
from nanoserve_cli.records import steps_csv

app = typer.Typer()
app.command()(plot)


def run(*arguments: object, columns: int = 80) -> Any:
    return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": str(columns)})


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that commands run in."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """The lockstep run under three widths, with a capture bill."""
    some = rows(("pow2",), ("multiple:128", "multiple:512", "multiple:2048"), steps=lockstep(), max_batch=8)
    path = tmp_path / "sweep.csv"
    write_rows(path, [row | {"capture_mib": 5.0, "model": "tiny"} for row in some])
    return path


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    path = tmp_path / "steps.csv"
    path.write_text(steps_csv(lockstep()))
    return path


class TestFigures:
    @pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if kind.takes == "results"])
    def test_results_are_drawn_here_and_told(self, kind: str, results: Path, here: Path) -> None:
        done = run(results, "--kind", kind)
        assert (done.exit_code, done.stderr) == (0, f"figure in sweep-{kind}.png\n")
        assert (here / f"sweep-{kind}.png").read_bytes().startswith(b"\x89PNG")
        assert "pow2 512" in done.stdout

    def test_tradeoff_is_the_default(self, results: Path) -> None:
        done = run(results)
        assert done.stderr == "figure in sweep-tradeoff.png\n"
        assert "budget 64 graphs: best is pow2 512, waste 61.3%" in done.stdout
        assert "pow2 2048          16      1   90.0%   90.0%         0   front" in done.stdout

    def test_shape_needs_nothing(self, here: Path) -> None:
        done = run("--kind", "shape")
        assert (done.exit_code, done.stderr) == (0, "figure in shape.png\n")
        assert "9 x 64 = 576" in done.stdout
        assert (here / "shape.png").is_file()

    def test_steps_take_their_limits_from_the_run(self, steps: Path) -> None:
        done = run(steps, "--kind", "steps")
        assert (done.exit_code, done.stderr) == (0, "figure in steps-steps.png\n")
        assert "512 steps on 5 of 15 shapes · waste 18.0%, total 18.0%" in done.stdout

    def test_steps_under_limits_or_a_policy_of_ones_own(self, steps: Path, tmp_path: Path) -> None:
        done = run(steps, "--kind", "steps", "--max-batch", 8, "--max-model-len", 8192, "--width-multiple", 512)
        assert "512 steps on 2 of 64 shapes · waste 61.3%, total 61.3%" in done.stdout
        policy = tmp_path / "p.yaml"
        policy.write_text("schema_version: 1\nmax_batch_size: 8\nmax_model_len: 1024\nrows: [8]\nwidths: [1024]\n")
        assert "512 steps on 1 of 1 shapes" in run(steps, "--kind", "steps", "--policy", policy).stdout

    @pytest.mark.parametrize(("suffix", "magic"), [("svg", b"<?xml"), ("pdf", b"%PDF"), ("png", b"\x89PNG")])
    def test_out_says_where_and_as_what(self, suffix: str, magic: bytes, results: Path, tmp_path: Path) -> None:
        path = tmp_path / f"mine.{suffix}"
        done = run(results, "--out", path, "--quiet")
        assert (done.exit_code, done.stderr) == (0, "")
        assert path.read_bytes().startswith(magic)

    def test_several_files_give_one_figure_named_for_them(self, results: Path, here: Path, tmp_path: Path) -> None:
        others = []
        for name in ("b", "c", "d"):
            others.append(tmp_path / f"{name}.csv")
            others[-1].write_bytes(results.read_bytes())
        assert run(results, others[0]).stderr == "figure in sweep-b-tradeoff.png\n"
        done = run(results, *others)
        assert done.stderr == "figure in sweep-b-2-more-tradeoff.png\n"
        assert "d: pow2 512" in done.stdout
        assert len(list(here.iterdir())) == 2

    def test_files_of_one_name_are_told_apart_by_their_folder(self, results: Path, tmp_path: Path) -> None:
        other = tmp_path / "other" / "sweep.csv"
        other.parent.mkdir()
        other.write_bytes(results.read_bytes())
        assert f"{other}: pow2 512" in run(results, other).stdout

    def test_a_budget_and_the_total_waste_are_in_both(self, results: Path) -> None:
        done = run(results, "--budget-graphs", 300, "--total-waste")
        assert "budget 300 graphs: best is pow2 128, total waste 39.2%" in done.stdout
        done = run(results, "--kind", "capture", "--budget-mib", 4)
        assert "over in graphs, MiB" in done.stdout

    def test_a_slide_is_another_picture(self, results: Path, here: Path) -> None:
        run(results)
        column = (here / "sweep-tradeoff.png").read_bytes()
        run(results, "--layout", "slide")
        assert (here / "sweep-tradeoff.png").read_bytes() != column

    def test_twice_is_the_same(self, results: Path, here: Path) -> None:
        first = run(results)
        bytes_of_first = (here / "sweep-tradeoff.png").read_bytes()
        second = run(results)
        assert (first.stdout, bytes_of_first) == (second.stdout, (here / "sweep-tradeoff.png").read_bytes())

    def test_lines_that_a_kill_cut_short_are_said(self, results: Path) -> None:
        with results.open("a") as file:
            file.write("2,2026-01-01")
        done = run(results)
        assert done.exit_code == 0
        assert done.stderr.startswith(f"warning: {results}: 1 lines cut short were left out\n")

    def test_the_help_knows_every_kind(self) -> None:
        shown = run("--help", columns=200).stdout
        assert [name for name in KINDS if f"{name}:" not in shown] == []

    def test_no_number_is_cut_at_80_columns(self, results: Path) -> None:
        assert "…" not in run(results, columns=40).stdout


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ((), "--kind tradeoff needs a results CSV: `nanoserve sweep --out FILE.csv` writes one"),
            (("--kind", "tradof"), "no figure is called 'tradof': did you mean tradeoff?"),
            (("--kind", "pie"), "no figure is called 'pie': known: tradeoff, shape, capture, waste, steps, pareto"),
            (("gone.csv",), "gone.csv: cannot be read: No such file or directory"),
            (("--kind", "shape", "gone.csv"), "--kind shape takes no FILE: it is drawn from a run of its own"),
            (("--kind", "steps"), "--kind steps takes one steps.csv, as `nanoserve bench --out DIR` writes it: none"),
            (("--kind", "steps", "a", "b"), "--kind steps takes one steps.csv, as `nanoserve bench --out DIR` writes"),
            (("--kind", "steps", "gone.csv"), "gone.csv: cannot be read: No such file or directory"),
            (("a.csv", "b.csv", "a.csv"), "a.csv is given twice: it would be drawn over itself"),
            (("a.csv", "--out", "a.jpg"), "a.jpg: a figure is written as .png, .svg, .pdf, not .jpg"),
            (("a.csv", "--out", ""), ".: a figure is written as .png, .svg, .pdf, not a name without one"),
            (("--kind", "shape", "--budget-graphs", 3), "--budget-graphs does nothing for --kind shape: it is of"),
            (("a.csv", "--budget-mib", 3), "--budget-mib does nothing for --kind tradeoff: it is of capture"),
            (("a.csv", "--policy", "p"), "--policy does nothing for --kind tradeoff: it is of steps"),
            (("a.csv", "--kind", "waste", "--total-waste"), "--total-waste does nothing for --kind waste: it is of"),
        ],
    )
    def test_one_line_and_nothing_else(self, arguments: tuple[object, ...], words: str, here: Path) -> None:
        done = run(*arguments)
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr.startswith(f"error: {words}")
        assert done.stderr.count("\n") == 1
        assert list(here.iterdir()) == []

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "holds no whole row: nothing was measured"),
            ("a,b\n1,2\n", "is no results file"),
            ("schema_version,x\n1,2\n", "is of results schema 1, this nanoserve reads 2: make it again"),
            (",".join(RUN_COLUMNS) + "\n", "holds no whole row: nothing was measured"),
        ],
    )
    def test_a_file_that_holds_no_results(self, text: str, words: str, here: Path, tmp_path: Path) -> None:
        path = tmp_path / "bad.csv"
        path.write_text(text)
        done = run(path)
        assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert done.stderr.startswith(f"error: {path}: {words}")
        assert list(here.iterdir()) == []

    def test_one_row_is_no_trade_off(self, here: Path, tmp_path: Path) -> None:
        write_rows(tmp_path / "one.csv", rows(("pow2",), ("multiple:128",)))
        for kind in ("tradeoff", "pareto"):
            done = run(tmp_path / "one.csv", "--kind", kind)
            assert (done.exit_code, done.stdout) == (2, "")
            assert done.stderr == (
                "error: one: has one row, and a trade-off needs 2: sweep several policies over one run\n"
            )
        assert list(here.iterdir()) == []

    def test_no_capture_bill_says_what_to_run(self, here: Path, tmp_path: Path) -> None:
        write_rows(tmp_path / "bare.csv", rows(("pow2",)))
        done = run(tmp_path / "bare.csv", "--kind", "capture")
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr == (
            "error: bare: capture_mib is empty in every row: no capture was priced; run `nanoserve sweep` with the "
            "extra nanoserve[engine] and without --host-only\n"
        )
        assert list(here.iterdir()) == []

    @pytest.mark.parametrize("where", ["gone/a.png", "folder.png"])
    def test_a_place_that_cannot_be_written(self, where: str, results: Path, tmp_path: Path) -> None:
        (tmp_path / "folder.png").mkdir()
        before = sorted(tmp_path.rglob("*"))
        done = run(results, "--out", tmp_path / where)
        assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert done.stderr.startswith(f"error: {tmp_path / where}: cannot be written: ")
        assert sorted(tmp_path.rglob("*")) == before

    def test_a_picture_stays_where_the_new_one_cannot_be_drawn(self, here: Path, results: Path, tmp_path: Path) -> None:
        run(results)
        before = (here / "sweep-tradeoff.png").read_bytes()
        write_rows(results, rows(("pow2",), ("multiple:128",)))
        assert run(results).exit_code == 2
        assert (here / "sweep-tradeoff.png").read_bytes() == before

    def test_steps_outside_the_policy(self, steps: Path, here: Path) -> None:
        done = run(steps, "--kind", "steps", "--max-batch", 2)
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr == "error: 3 rows are outside this policy: it covers 1 to 2\n"
        assert list(here.iterdir()) == []

    def test_results_where_steps_are_asked_for_and_the_other_way(self, results: Path, steps: Path) -> None:
        assert "is no steps file" in run(results, "--kind", "steps").stderr
        assert "is no results file" in run(steps).stderr


class TestOnly:
    def two_runs(self, tmp_path: Path) -> Path:
        some = rows(("pow2",)) + rows(("pow2",), steps=lockstep(), workload="some-trace load 4")
        write_rows(tmp_path / "two.csv", some)
        return tmp_path / "two.csv"

    def test_it_draws_the_runs_whose_traffic_has_the_words(self, tmp_path: Path) -> None:
        done = run(self.two_runs(tmp_path), "--only", "load 4")
        assert done.exit_code == 0
        assert "512 steps" in done.stdout
        assert done.stdout.count("front: of those") == 1

    def test_words_of_no_run_are_an_error_that_lists_the_runs(self, tmp_path: Path) -> None:
        done = run(self.two_runs(tmp_path), "--only", "load 5")
        assert done.exit_code == 2
        assert done.stderr.endswith("no run has 'load 5' in its name: some-trace, some-trace load 4\n")


class TestFiguresNoRunHas:
    """A file edited by hand would be drawn, and ringed as the best, as though it were measured."""

    @pytest.mark.parametrize(
        ("column", "value"), [("waste", -5.0), ("waste", 1.5), ("shapes_available", 0), ("steps", 0)]
    )
    def test_they_are_refused(self, column: str, value: float, tmp_path: Path) -> None:
        some = rows(("pow2",))
        write_rows(tmp_path / "odd.csv", [some[0] | {column: value}, *some[1:]])
        done = run(tmp_path / "odd.csv")
        assert done.exit_code == 2
        assert f"row 1 has {column} {value}, which no run has" in done.stderr


def test_a_steps_file_of_a_bench_has_the_limits_of_that_bench(tmp_path: Path) -> None:
    from nanoserve_cli.app import app as nanoserve

    folder = tmp_path / "bench"
    traffic = ("--num-requests", "5", "--prompt-len", "40", "--output-len", "9")
    limits = ("--max-batch", "16", "--max-model-len", "1024")
    done = CliRunner().invoke(nanoserve, ["bench", *traffic, *limits, "--host-only", "--out", str(folder), "-q"])
    assert done.exit_code == 0
    assert "of 40 shapes" in run(folder / "steps.csv", "--kind", "steps").stdout  # 5 row buckets x 8 widths
