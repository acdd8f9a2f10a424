"""The trade-off: every row is a point, no label is over another, and what the picture says is in the table too."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from figure_samples import LADDERS, box_of, lockstep, named, offsets, overlapping, read, rows, words_in
from matplotlib.figure import Figure
from matplotlib.text import Text
from pandas import DataFrame

from nanoserve_cli.figures import style, tradeoff
from nanoserve_cli.figures.points import Results, panels


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DataFrame]:
    """Two runs under every named row ladder at four width multiples; incomplete lists come twice."""
    some = rows() + rows(steps=lockstep(), workload="lockstep", trace_key=None, trace_sha256=None)
    return {"sweep": read(tmp_path_factory.mktemp("results"), some)}


@pytest.fixture(scope="module", params=["column", "slide"])
def figure(request: pytest.FixtureRequest, results: Results) -> Figure:
    return tradeoff.draw(results, layout=style.LAYOUTS[request.param])


def drawn(folder: Path, some: list[dict[str, Any]], **options: Any) -> Figure:
    return tradeoff.draw({"sweep": read(folder, some)}, **options)


def labels(where: Any) -> list[Text]:
    return list(named(where, "label"))


class TestPoints:
    def test_every_row_is_a_point(self, figure: Figure, results: Results) -> None:
        found = panels(results)
        assert [len(panel.rows) for panel in found] == [48, 48]
        for panel, ax in zip(found, figure.axes, strict=True):
            expected = zip(panel.values("shapes_available"), panel.values("waste"), strict=True)
            assert offsets(ax) == sorted(expected)

    def test_each_leads_to_its_shapes_used(self, figure: Figure, results: Results) -> None:
        for panel, ax in zip(panels(results), figure.axes, strict=True):
            assert offsets(ax, "used") == sorted(zip(panel.values("shapes_used"), panel.values("waste"), strict=True))

    def test_the_front_is_a_staircase_through_what_nothing_beats(self, figure: Figure, results: Results) -> None:
        for panel, ax in zip(panels(results), figure.axes, strict=True):
            (line,) = named(ax, "front")
            corners = set(zip(*(values.tolist() for values in line.get_data()), strict=True))
            points = zip(panel.values("shapes_available"), panel.values("waste"), panel.front("waste"), strict=True)
            assert {(x, y) for x, y, is_on in points if is_on} <= corners
            assert np.diff(line.get_xdata()).min() >= 0
            assert np.diff(line.get_ydata()).max() <= 0

    def test_total_waste_on_request(self, results: Results) -> None:
        panel = panels(results)[0]
        (ax, _) = tradeoff.draw(results, metric="total_waste").axes
        assert {y for _, y in offsets(ax)} == set(panel.values("total_waste"))
        assert ax.get_ylabel() == "total waste (1 - live / padded)"

    def test_a_line_a_ladder(self, tmp_path: Path) -> None:
        (ax,) = drawn(tmp_path, rows(("pow2", "vllm", "sglang"))).axes
        lines = [line for line in ax.lines if line.get_color() == style.FAINT]
        assert [len(np.asarray(line.get_xdata())) for line in lines] == [4, 4, 4]

    def test_a_line_a_width_where_only_rows_vary(self, tmp_path: Path) -> None:
        (ax,) = drawn(tmp_path, rows(("pow2", "vllm", "sglang"), ("multiple:2048",))).axes
        (line,) = (line for line in ax.lines if line.get_color() == style.FAINT)
        assert np.diff(line.get_xdata()).min() >= 0
        assert {label.get_text() for label in labels(ax)} == {"pow2", "vllm", "sglang"}


class TestLabels:
    def test_none_is_over_another_or_over_the_budget(self, figure: Figure) -> None:
        for ax in figure.axes:
            words = [artist for artist in named(ax, "budget") if isinstance(artist, Text)]
            boxes = [box_of(text) for text in (*labels(ax), *words)]
            assert len(words) == 1
            assert len(boxes) > 10
            assert overlapping(boxes) == []

    def test_every_setting_on_the_front_is_said(self, figure: Figure, results: Results) -> None:
        for panel, ax in zip(panels(results), figure.axes, strict=True):
            said = Counter(word for label in labels(ax) for word in label.get_text().split(", "))
            on_front = [word for word, is_on in zip(panel.words("setting"), panel.front("waste"), strict=True) if is_on]
            assert {word: said[word] for word in on_front} == dict.fromkeys(on_front, 1)

    def test_every_ladder_is_named(self, figure: Figure) -> None:
        for ax in figure.axes:
            said = " ".join(label.get_text() for label in labels(ax))
            assert [name for name in LADDERS if name not in said] == []
            assert "tgi as it is" in said

    def test_few_points_are_all_labelled_with_what_varies(self, tmp_path: Path) -> None:
        (ax,) = drawn(tmp_path, rows(("pow2", "gaudi-exp"))).axes
        said = {word for label in labels(ax) for word in label.get_text().split(", ")}
        assert said == {f"{name} {width}" for name in ("pow2", "gaudi-exp") for width in (128, 512, 2048, 8192)}

    def test_points_in_one_place_share_a_label(self, tmp_path: Path) -> None:
        (ax,) = drawn(tmp_path, rows(("pow2", "lmdeploy"), ("multiple:512", "multiple:8192"), max_batch=256)).axes
        assert sorted(label.get_text() for label in labels(ax)) == [
            "pow2 512, lmdeploy 512",
            "pow2 8192, lmdeploy 8192",
        ]


class TestBudget:
    @pytest.mark.parametrize("budget", [1, 64, 200, 100_000])
    def test_a_line_in_words_at_its_graphs(self, budget: int, tmp_path: Path) -> None:
        (ax,) = drawn(tmp_path, rows(("pow2",)), budget_graphs=budget).axes
        line, words = named(ax, "budget")
        assert list(line.get_xdata()) == [budget, budget]
        assert words.get_text() == f"budget {budget:,} graphs"
        assert ax.get_xlim()[0] < budget < ax.get_xlim()[1]

    def test_what_it_buys_is_ringed_and_bold(self, figure: Figure, results: Results) -> None:
        for panel, ax in zip(panels(results), figure.axes, strict=True):
            best = panel.best_within("waste", 64)
            assert offsets(ax, "best") == [(panel.values("shapes_available")[best], panel.values("waste")[best])]
            bold = [label.get_text() for label in labels(ax) if label.get_fontweight() == "bold"]
            assert len(bold) == 1
            assert panel.words("setting")[best] in bold[0]

    def test_nothing_is_ringed_where_nothing_is_within(self, tmp_path: Path) -> None:
        assert list(named(drawn(tmp_path, rows(("pow2",)), budget_graphs=1), "best")) == []


class TestSeveralFiles:
    def test_they_are_told_apart_by_line_and_fill_in_one_panel(self, tmp_path: Path) -> None:
        results = {name: read(tmp_path, rows((name,)), name) for name in ("pow2", "vllm")}
        (ax,) = tradeoff.draw(results).axes
        assert {line.get_linestyle() for line in ax.lines if line.get_color() == style.FAINT} == {"-", "--"}
        assert {line.get_fillstyle() for line in named(ax, "points")} == {"full", "none"}
        assert {"pow2", "vllm"} <= set(words_in(ax.figure))

    def test_runs_of_their_own_stand_below_one_another(self, tmp_path: Path) -> None:
        results = {str(seed): read(tmp_path, rows(("pow2",), seed=seed), str(seed)) for seed in (0, 1)}
        upper, lower = tradeoff.draw(results).axes
        assert upper.get_position().y0 > lower.get_position().y1
        left, right = tradeoff.draw(results, layout=style.LAYOUTS["slide"]).axes
        assert left.get_position().x1 < right.get_position().x0


class TestFacts:
    def test_every_point_with_its_figures_and_the_front(self, results: Results) -> None:
        for panel, table in zip(panels(results), tradeoff.facts(results), strict=True):
            assert (table.title, table.row_count) == (panel.title, 48)
            last = [str(cell) for cell in table.columns[-1].cells]
            assert sum("front" in words for words in last) == panel.front("waste").sum()
            assert sum("over" in words for words in last) == (panel.values("shapes_available") > 64).sum()
            assert sum("best" in words for words in last) == 1
            shapes = [int(str(cell).replace(",", "")) for cell in table.columns[1].cells]
            assert shapes == sorted(panel.values("shapes_available"))

    def test_what_the_budget_buys_in_a_sentence(self, tmp_path: Path) -> None:
        results = {"a": read(tmp_path, rows(("pow2",), steps=lockstep(), max_batch=8))}
        (table,) = tradeoff.facts(results)
        assert str(table.caption).splitlines() == [
            "up to 8 rows x 8,192 · 512 steps · 512 open shapes",
            "front: of those that cover every step, none has fewer shapes and less waste",
            "budget 64 graphs: best is pow2 512, waste 61.3%",
        ]
        (table,) = tradeoff.facts(results, budget_graphs=1)
        assert str(table.caption).endswith("budget 1 graphs: no policy is within")


def test_one_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has one row, and a trade-off needs 2"):
        drawn(tmp_path, rows(("pow2",), ("multiple:128",)))


def test_a_ladder_of_many_points_is_a_curve_with_one_name(tmp_path: Path) -> None:
    many = rows(("pow2",), tuple(f"multiple:{128 * n}" for n in range(1, 21)))
    frame = read(tmp_path, [*many, *rows(("vllm",), ("multiple:8192",))])
    (panel,) = panels({"a": frame})
    assert panel.curves.tolist() == [True] * 20 + [False]
    words = words_in(tradeoff.draw({"a": frame}, budget_graphs=1000))
    assert sum(word.startswith("pow2") for word in words) <= 2  # its name, and what the budget buys


def test_where_only_rows_are_known_waste_is_drawn_without_cells(tmp_path: Path) -> None:
    unknown = dict.fromkeys(("live_cells", "padded_cells", "open_cells", "total_waste"))
    frame = read(
        tmp_path, [row | unknown | {"objective": "rows"} for row in rows(("pow2", "vllm"), ("multiple:8192",))]
    )
    assert len(tradeoff.draw({"a": frame}).axes) == 1
    (table,) = tradeoff.facts({"a": frame})
    assert [str(cell) for cell in table.columns[4].cells] == ["-", "-"]
