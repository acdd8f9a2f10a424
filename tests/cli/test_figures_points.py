"""Rows of results as points: which run each is of, how it is called, and which of them nothing beats."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from figure_samples import lockstep, read, rows, steps_of
from hypothesis import given
from hypothesis import strategies as st

from nanoserve_cli.figures.points import CAPTURE, Panel, front, panels, source

VALUE = st.one_of(st.integers(0, 6).map(float), st.just(math.nan))


def one(folder: Path, *more: list[dict[str, object]]) -> Panel:
    (panel,) = panels({"sweep": read(folder, [row for some in more for row in some])})
    return panel


class TestFront:
    @given(st.lists(st.tuples(VALUE, VALUE), max_size=12))
    def test_it_is_what_no_other_point_beats(self, points: list[tuple[float, float]]) -> None:
        x, y = np.array(points, float).reshape(-1, 2).T

        def beaten(i: int) -> bool:
            return any(x[j] <= x[i] and y[j] <= y[i] and (x[j] < x[i] or y[j] < y[i]) for j in range(len(x)))

        expected = [not math.isnan(x[i] + y[i]) and not beaten(i) for i in range(len(x))]
        assert front(x, y).tolist() == expected

    def test_equals_are_all_on_it(self) -> None:
        assert front([4, 4, 5], [0.2, 0.2, 0.2]).tolist() == [True, True, False]

    def test_a_list_that_leaves_steps_eager_is_not_compared(self, tmp_path: Path) -> None:
        panel = one(tmp_path, rows(("tgi",), ("multiple:512", "multiple:8192")))
        assert panel.words("name") == ["tgi", "tgi as it is"] * 2
        assert panel.values("off_list_steps")[1] > 0
        assert panel.comparable.tolist() == [True, False] * 2
        assert panel.values("waste")[1] < panel.values("waste")[0]
        assert panel.front("waste").tolist() == [True, False] * 2

    def test_an_incomplete_list_that_no_step_was_off_is(self, tmp_path: Path) -> None:
        panel = one(tmp_path, rows(("tgi",), ("multiple:512",), steps=lockstep()))
        assert panel.values("off_list_steps").tolist() == [0, 0]
        assert panel.comparable.tolist() == [True, True]


class TestWithinBudget:
    @pytest.mark.parametrize("budget", [1, 7, 30, 64, 500, 10_000])
    def test_the_least_of_what_the_budget_holds(self, budget: int, tmp_path: Path) -> None:
        panel = one(tmp_path, rows())
        wastes = [
            waste
            for waste, shapes, ok in zip(
                panel.values("waste"), panel.values("shapes_available"), panel.comparable, strict=True
            )
            if ok and shapes <= budget
        ]
        best = panel.best_within("waste", budget)
        assert (None if best is None else panel.values("waste")[best]) == min(wastes, default=None)

    def test_of_equals_the_one_of_fewest_shapes(self, tmp_path: Path) -> None:
        panel = one(tmp_path, rows(("vllm", "pow2"), ("multiple:8192",), steps=lockstep()))
        assert panel.values("waste")[0] == panel.values("waste")[1]
        assert panel.best_within("waste", 64) == 1


class TestPanels:
    def test_a_panel_is_a_run(self, tmp_path: Path) -> None:
        some = rows(("pow2",)) + rows(("pow2",), steps=lockstep(), workload="lockstep")
        found = panels({"sweep": read(tmp_path, some)})
        assert [len(panel.rows) for panel in found] == [4, 4]
        assert found[0].title == "some-trace"
        assert found[0].subtitle.startswith("up to 64 rows x 8,192 · ")
        assert found[1].subtitle == "up to 64 rows x 8,192 · 512 steps · 512 open shapes"

    def test_other_limits_are_another_run(self, tmp_path: Path) -> None:
        some = rows(("pow2",)) + rows(("pow2",), steps=steps_of(0, 16), max_batch=16)
        assert [panel.subtitle[:14] for panel in panels({"a": read(tmp_path, some)})] == [
            "up to 64 rows ",
            "up to 16 rows ",
        ]

    def test_other_requests_under_the_same_name_are_another_run(self, tmp_path: Path) -> None:
        some = rows(("pow2",)) + rows(("pow2",), steps=steps_of(1))
        assert len(panels({"a": read(tmp_path, some)})) == 2

    @pytest.mark.parametrize(("column", "value", "words"), [("seed", 7, "seed 7"), ("step_time", "50", "step time 50")])
    def test_what_tells_two_runs_apart_is_said(self, column: str, value: object, words: str, tmp_path: Path) -> None:
        some = rows(("pow2",)) + rows(("pow2",), **{column: value})
        assert panels({"a": read(tmp_path, some)})[1].subtitle.endswith(f" · {words}")

    def test_several_files_over_the_same_run_share_a_panel(self, tmp_path: Path) -> None:
        results = {name: read(tmp_path, rows((name,)), name) for name in ("pow2", "vllm")}
        (panel,) = panels(results)
        assert panel.words("file") == ["pow2"] * 4 + ["vllm"] * 4

    def test_a_trace_without_a_key_is_called_by_its_file(self, tmp_path: Path) -> None:
        some = rows(("pow2",), trace_key=None, workload="/far/away/trace.csv")
        assert one(tmp_path, some).title == "trace.csv"

    def test_a_part_of_a_known_trace_is_called_by_its_own_name(self, tmp_path: Path) -> None:
        assert (
            one(tmp_path, rows(("pow2",), workload="some-trace load 4, held out")).title
            == "some-trace load 4, held out"
        )

    def test_capture_bills_are_of_a_model_under_limits_whatever_the_traffic(self, tmp_path: Path) -> None:
        some = rows(("pow2",), model="tiny", dtype="float32") + rows(
            ("pow2",), steps=lockstep(), workload="lockstep", model="tiny", dtype="float32"
        )
        (panel,) = panels({"a": read(tmp_path, some)}, by=CAPTURE)
        assert (panel.title, panel.subtitle, len(panel.rows)) == ("tiny · float32", "up to 64 rows x 8,192", 8)


class TestSettings:
    def test_what_varies_is_said(self, tmp_path: Path) -> None:
        assert one(tmp_path, rows(("pow2",))).words("setting") == ["128", "512", "2048", "8192"]
        assert one(tmp_path, rows(("pow2", "vllm"), WIDE)).words("setting") == ["pow2", "vllm"]
        assert one(tmp_path, rows(("pow2", "vllm"), (*WIDE, "multiple:512"))).words("setting") == [
            "pow2 8192",
            "pow2 512",
            "vllm 8192",
            "vllm 512",
        ]
        assert one(tmp_path, rows(("pow2",), WIDE)).words("setting") == ["pow2 8192"]

    def test_rules_keep_their_kind_where_not_all_are_multiples(self, tmp_path: Path) -> None:
        some = rows(("pow2",), ("multiple:512", "pow2:256", "list:100,300,8192"))
        assert one(tmp_path, some).words("width") == ["multiple:512", "pow2:256", "list of 3"]

    def test_a_policy_file_is_called_by_its_buckets(self, tmp_path: Path) -> None:
        some = rows(("pow2",), WIDE, rows_ladder=None, width_ladder=None)
        assert one(tmp_path, some).policies == ["7 rows x 1 widths"]


WIDE = ("multiple:8192",)


class TestRefusals:
    @pytest.mark.parametrize("column", ["waste", "shapes_available", "shapes_used", "workload"])
    def test_a_row_without_its_figure(self, column: str, tmp_path: Path) -> None:
        some = rows(("pow2",))
        some[2] |= {column: None}
        with pytest.raises(ValueError, match=f"sweep: row 3 has no {column}: it is no finished run"):
            one(tmp_path, some)

    def test_one_row_is_no_trade_off(self, tmp_path: Path) -> None:
        results = {"sweep": read(tmp_path, rows(("pow2",), WIDE))}
        assert len(panels(results)) == 1
        with pytest.raises(ValueError, match="sweep: has one row, and a trade-off needs 2: sweep several policies"):
            panels(results, least=2)

    def test_rows_of_different_runs_are_none(self, tmp_path: Path) -> None:
        some = [row for seed in range(3) for row in rows(("pow2",), WIDE, seed=seed)]
        with pytest.raises(ValueError, match="the 3 rows are of 3 different runs, and a trade-off needs 2 policies"):
            panels({"sweep": read(tmp_path, some)}, least=2)

    def test_more_runs_than_a_figure_holds(self, tmp_path: Path) -> None:
        some = [row for seed in range(13) for row in rows(("pow2",), WIDE, seed=seed)]
        with pytest.raises(ValueError, match=r"13 runs .* are more than the 12 panels of a figure"):
            panels({"sweep": read(tmp_path, some)})


class TestSource:
    def test_the_trace_its_sum_the_code_and_the_day_of_the_data(self, tmp_path: Path) -> None:
        found = source({"a": read(tmp_path, rows(("pow2",)))})
        assert found == "some-trace ab12cd34 · nanoserve 0.1.0 (0123456) · 2026-03-04"

    def test_everything_that_differs_is_named_once(self, tmp_path: Path) -> None:
        some = rows(("pow2",), WIDE) + rows(
            ("vllm",),
            WIDE,
            trace_key=None,
            trace_sha256=None,
            workload="synthetic",
            git_dirty=True,
            started_utc="2026-03-01T00:00:00+00:00",
        )
        assert source({"a": read(tmp_path, some)}) == (
            "some-trace ab12cd34, synthetic seed 0 · nanoserve 0.1.0 (0123456), nanoserve 0.1.0 (0123456+) · "
            "2026-03-01 to 2026-03-04"
        )

    def test_what_is_not_known_is_not_made_up(self, tmp_path: Path) -> None:
        some = rows(("pow2",), WIDE, started_utc=None, nanoserve_version=None, git_sha=None, seed=None)
        assert source({"a": read(tmp_path, some)}) == "some-trace ab12cd34 · nanoserve · undated"
