"""`nanoserve compare`: what changed between two results files, worst first, and what cannot be compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sweeping import SMALL, invoke, vidur
from test_without_torch_cli import without_torch
from typer.testing import CliRunner

from nanoserve_cli.app import app
from nanoserve_cli.columns import COLUMNS
from nanoserve_cli.console import NotComparable
from nanoserve_cli.csv_file import append_row, csv_text, write_rows
from nanoserve_cli.difference import Change, Difference, difference

ROW: dict[str, Any] = {
    "schema_version": 2,
    "trace_sha256": "0123456789abcdef",
    "workload": "azure2023-conv",
    "seed": 0,
    "max_batch_size": 8,
    "max_model_len": 64,
    "rows_ladder": "pow2",
    "width_ladder": "multiple:16",
    "completed": True,
    "policy": "4 x 4",
    "steps": 100,
    "shapes_used": 4,
    "waste": 0.25,
    "padded_cells": 1000,
    "finished": 10,
    "replay_share": 0.5,
    "plan_us_open": 10.0,
}
OTHER = ROW | {"width_ladder": "multiple:32", "policy": "4 x 2"}
POINT = "azure2023-conv 8x64 pow2 multiple:16"


TABLE = """\
a.csv -> b.csv

 point                                         count   before       after        change
 ────────────────────────────────────────────────────────────────────────────────────────────────────
 azure2023-conv 8x64 pow2 multiple:16       finished       10        none                 only before
 azure2023-conv 8x64 pow2 multiple:16   padded_cells    1,000   1,234,567   +123356.70%         worse
 azure2023-conv 8x64 pow2 multiple:16          waste     0.25         0.3       +20.00%         worse
 azure2023-conv 8x64 pow2 multiple:16    shapes_used        4           3       -25.00%        better

4 of 12 counts of 2 points changed

"""


def compare(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["compare", *map(str, arguments)])


def between(tmp_path: Path, before: list[dict[str, Any]], after: list[dict[str, Any]]) -> Difference:
    write_rows(tmp_path / "a.csv", before)
    write_rows(tmp_path / "b.csv", after)
    return difference(tmp_path / "a.csv", tmp_path / "b.csv")


def changes(tmp_path: Path, **after: Any) -> list[Change]:
    return list(between(tmp_path, [ROW], [ROW | after]).changes)


class TestChanges:
    def test_equal_files_have_none_and_say_how_much_was_compared(self, tmp_path: Path) -> None:
        """Six counts a row are filled; what neither file has is not compared."""
        assert between(tmp_path, [ROW, OTHER], [ROW, OTHER]) == Difference(2, 12, ())

    def test_the_order_of_the_rows_is_none_of_a_comparisons_business(self, tmp_path: Path) -> None:
        assert between(tmp_path, [ROW, OTHER], [OTHER, ROW]).changes == ()

    def test_times_and_provenance_are_never_compared(self, tmp_path: Path) -> None:
        assert changes(tmp_path, plan_us_open=99.0, git_sha="b", code_sha256="c", repeats=3, config_hash="d") == []

    def test_the_worst_is_first_as_a_share_of_the_old_figure(self, tmp_path: Path) -> None:
        """Padded cells +50 %, waste +20 %, finished -10 %, used -25 %: the last is better."""
        found = changes(tmp_path, waste=0.3, padded_cells=1500, shapes_used=3, finished=9)
        assert [(change.column.name, change.verdict) for change in found] == [
            ("padded_cells", "worse"),
            ("waste", "worse"),
            ("finished", "worse"),
            ("shapes_used", "better"),
        ]
        assert [change.worse for change in found] == pytest.approx([0.5, 0.2, 0.1, -0.25])

    def test_so_it_is_over_all_points(self, tmp_path: Path) -> None:
        found = between(tmp_path, [ROW, OTHER], [ROW | {"waste": 0.3}, OTHER | {"waste": 0.5}]).changes
        assert [(change.point, change.relative) for change in found] == [
            ("azure2023-conv 8x64 pow2 multiple:32", 1.0),
            (POINT, pytest.approx(0.2)),
        ]

    @pytest.mark.parametrize(
        ("name", "after", "verdict"),
        [
            ("padded_cells", 999, "better"),
            ("padded_cells", 1001, "worse"),
            ("finished", 11, "better"),
            ("finished", 9, "worse"),
            ("replay_share", 0.6, "better"),
            ("replay_share", 0.4, "worse"),
            ("steps", 101, "another run"),
            ("steps", 99, "another run"),
        ],
    )
    def test_which_way_is_better_is_the_columns(self, name: str, after: float, verdict: str, tmp_path: Path) -> None:
        (change,) = changes(tmp_path, **{name: after})
        assert change.verdict == verdict

    def test_from_nothing_to_something_is_infinitely_worse_and_back_is_better(self, tmp_path: Path) -> None:
        (change,) = between(tmp_path, [ROW | {"failed": 0}], [ROW | {"failed": 1}]).changes
        assert (change.relative, change.verdict) == (float("inf"), "worse")
        (change,) = between(tmp_path, [ROW | {"failed": 1}], [ROW | {"failed": 0}]).changes
        assert (change.relative, change.verdict) == (-1.0, "better")

    def test_what_says_that_it_was_another_run_comes_before_what_is_worse(self, tmp_path: Path) -> None:
        found = changes(tmp_path, steps=101, waste=0.9)
        assert [(change.column.name, change.verdict) for change in found] == [
            ("steps", "another run"),
            ("waste", "worse"),
        ]

    def test_a_figure_that_one_file_lacks_is_neither_worse_nor_equal(self, tmp_path: Path) -> None:
        found = changes(tmp_path, shapes_used=None, compiles_bucketed=3)
        assert [(c.column.name, c.before, c.after, c.verdict, c.relative) for c in found] == [
            ("shapes_used", 4, None, "only before", None),
            ("compiles_bucketed", None, 3, "only after", None),
        ]

    def test_a_text_follows_from_the_figures_and_stands_behind_them(self, tmp_path: Path) -> None:
        found = changes(tmp_path, falls_back_bucketed="9 shapes, dynamo keeps 8", shapes_used=9)
        assert [(change.column.name, change.verdict) for change in found] == [
            ("shapes_used", "worse"),
            ("falls_back_bucketed", ""),
        ]

    def test_of_a_point_that_is_there_twice_the_last_row_counts(self, tmp_path: Path) -> None:
        """What an interrupted recomputation leaves."""
        assert between(tmp_path, [ROW | {"waste": 0.9}, ROW], [ROW]).changes == ()

    def test_every_count_is_compared(self, tmp_path: Path) -> None:
        counts = [column for column in COLUMNS if column.kind == "count"]
        old = {column.name: "a" if column.dtype == "string" else 1 for column in counts}
        new = {column.name: "b" if column.dtype == "string" else 2 for column in counts}
        found = between(tmp_path, [ROW | old], [ROW | new])
        assert {change.column.name for change in found.changes} == set(old)
        assert found.counts == len(counts)


class TestRefused:
    """Exit code 4: the two are not of the same thing. 2: one of them is nothing."""

    def test_another_trace(self, tmp_path: Path) -> None:
        with pytest.raises(NotComparable, match=rf"^{POINT} is of another trace: sha256 0123456789ab and fedcba$"):
            between(tmp_path, [ROW], [ROW | {"trace_sha256": "fedcba"}])
        result = compare(tmp_path / "a.csv", tmp_path / "b.csv")
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (4, "", 1)
        assert result.stderr.startswith(f"not comparable: {POINT} is of another trace")

    def test_a_trace_and_none(self, tmp_path: Path) -> None:
        with pytest.raises(NotComparable, match="sha256 0123456789ab and none"):
            between(tmp_path, [ROW], [ROW | {"trace_sha256": None}])

    @pytest.mark.parametrize("other_first", [False, True])
    def test_another_schema(self, other_first: bool, tmp_path: Path) -> None:
        (tmp_path / "old.csv").write_text("schema_version,steps\n1,5\n")
        write_rows(tmp_path / "new.csv", [ROW])
        names = ("old.csv", "new.csv") if other_first else ("new.csv", "old.csv")
        result = compare(*(tmp_path / name for name in names))
        assert (result.exit_code, result.stdout) == (4, "")
        assert result.stderr == (
            f"not comparable: {tmp_path / 'old.csv'}: is of results schema 1, this nanoserve reads 2: make it again\n"
        )

    @pytest.mark.parametrize(("before", "after", "name"), [(2, 1, "a.csv"), (1, 2, "b.csv")])
    def test_points_that_only_one_has(self, before: int, after: int, name: str, tmp_path: Path) -> None:
        with pytest.raises(NotComparable) as caught:
            between(tmp_path, [ROW, OTHER][:before], [ROW, OTHER][:after])
        assert str(caught.value) == (
            f"1 of 2 points are in {tmp_path / name} alone: azure2023-conv 8x64 pow2 multiple:32 (the nearest of the "
            "other file differs in policy, width_ladder)"
        )
        assert compare(tmp_path / "a.csv", tmp_path / "b.csv").exit_code == 4

    def test_a_point_that_differs_in_what_is_not_in_its_name_says_in_what(self, tmp_path: Path) -> None:
        with pytest.raises(NotComparable, match=r"\(the nearest of the other file differs in model, dtype\)$"):
            between(tmp_path, [ROW, OTHER], [row | {"model": "tiny", "dtype": "float32"} for row in (ROW, OTHER)])

    @pytest.mark.parametrize("text", ["", csv_text([]), "a,b\n1,2\n", csv_text([ROW])[:-5]])
    def test_a_file_without_results_is_bad_input(self, text: str, tmp_path: Path) -> None:
        (tmp_path / "none.csv").write_text(text)
        write_rows(tmp_path / "some.csv", [ROW])
        for names in (("none.csv", "some.csv"), ("some.csv", "none.csv")):
            result = compare(*(tmp_path / name for name in names))
            assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
            assert result.stderr.startswith(f"error: {tmp_path / 'none.csv'}: ")

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        write_rows(tmp_path / "some.csv", [ROW])
        result = compare(tmp_path / "some.csv", tmp_path / "none.csv")
        message = f"error: {tmp_path / 'none.csv'}: cannot be read: No such file or directory\n"
        assert (result.exit_code, result.stderr) == (2, message)


class TestOutput:
    @pytest.fixture
    def files(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
        after = ROW | {"waste": 0.30000000001, "shapes_used": 3, "finished": None, "padded_cells": 1_234_567}
        write_rows(tmp_path / "a.csv", [ROW, OTHER])
        write_rows(tmp_path / "b.csv", [after, OTHER])
        monkeypatch.chdir(tmp_path)
        return "a.csv", "b.csv"

    def test_a_table(self, files: tuple[str, str]) -> None:
        result = compare(*files)
        assert (result.exit_code, result.stderr, result.stdout) == (0, "", TABLE)

    def test_markdown(self, files: tuple[str, str]) -> None:
        assert (
            compare(*files, "--format", "markdown").stdout
            == f"""\
| point | count | before | after | change |  |
| --- | --- | ---: | ---: | ---: | --- |
| {POINT} | finished | 10 | none |  | only before |
| {POINT} | padded_cells | 1,000 | 1,234,567 | +123356.70% | worse |
| {POINT} | waste | 0.25 | 0.3 | +20.00% | worse |
| {POINT} | shapes_used | 4 | 3 | -25.00% | better |

4 of 12 counts of 2 points changed
"""
        )

    def test_json(self, files: tuple[str, str]) -> None:
        assert json.loads(compare(*files, "--format", "json").stdout) == {
            "points": 2,
            "counts": 12,
            "changes": [
                {"point": POINT, "count": name, "before": before, "after": after, "verdict": verdict}
                for name, before, after, verdict in (
                    ("finished", 10, None, "only before"),
                    ("padded_cells", 1000, 1_234_567, "worse"),
                    ("waste", 0.25, 0.30000000001, "worse"),
                    ("shapes_used", 4, 3, "better"),
                )
            ],
        }

    @pytest.mark.parametrize("form", ["table", "markdown"])
    def test_nothing_changed_is_one_line(self, form: str, files: tuple[str, str]) -> None:
        assert compare(files[0], files[0], "--format", form).stdout == "0 of 12 counts of 2 points changed\n"

    def test_figures_that_round_to_the_same_are_shown_to_the_last_digit(self, tmp_path: Path) -> None:
        write_rows(tmp_path / "a.csv", [ROW])
        write_rows(tmp_path / "b.csv", [ROW | {"waste": 0.25000000000000006}])
        shown = compare(tmp_path / "a.csv", tmp_path / "b.csv").stdout
        assert " 0.25   0.25000000000000006 " in shown


class TestOfSweeps:
    def test_a_sweep_equals_itself_and_another_policy_is_another_point(self, tmp_path: Path) -> None:
        for name, width in (("a", 16), ("b", 16), ("c", 32)):
            invoke(*SMALL, "--width-multiple", width, "--out", tmp_path / f"{name}.csv")
        assert compare(tmp_path / "a.csv", tmp_path / "b.csv").stdout.startswith("0 of ")
        assert compare(tmp_path / "a.csv", tmp_path / "c.csv").exit_code == 4

    def test_no_two_points_of_a_sweep_are_one_to_a_comparison(self, tmp_path: Path) -> None:
        """Two synthetic traffics, lists as they are and completed, linked limits: all of them stay apart."""
        path, trace = tmp_path / "s.yaml", vidur(tmp_path / "t.csv", [(0, 5, 3), (1, 5, 3)])
        path.write_text(
            "schema_version: 1\nhost_only: true\nmax_batch: [3, 50]\nmax_model_len: [64, 96]\nlink: true\n"
            "rows_ladder: tgi\nwidth_multiple: 32\ntraffic:\n"
            "  - {num_requests: 3, prompt_len: 5, output_len: 5}\n  - {num_requests: 4, prompt_len: 5, output_len: 5}\n"
            f"  - {{from: {trace}}}\n  - {{from: {trace}, limit: 1}}\n  - {{steps: 9}}\n  - {{steps: 9, rows: 2}}\n"
        )
        assert invoke("--spec", path, "--out", tmp_path / "o.csv", "-q").exit_code == 0
        found = difference(tmp_path / "o.csv", tmp_path / "o.csv")
        assert found.points == 6 * (2 + 2)

    def test_a_bench_is_compared_too(self, tmp_path: Path) -> None:
        for name in ("a", "b"):
            flags = ["bench", "--host-only", "--steps", "8,64", "--out", str(tmp_path / name), "-q"]
            assert CliRunner().invoke(app, flags).exit_code == 0
        found = difference(tmp_path / "a" / "runs.csv", tmp_path / "b" / "runs.csv")
        assert (found.points, found.changes) == (2, ())

    def test_without_torch(self, tmp_path: Path) -> None:
        append_row(tmp_path / "a.csv", ROW)
        done = without_torch("compare", tmp_path / "a.csv", tmp_path / "a.csv")
        assert (done.returncode, done.stderr, done.stdout) == (0, "", "0 of 6 counts of 1 points changed\n")
