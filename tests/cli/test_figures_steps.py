"""Where the steps of a run fall: every step is in the map and in both margins, under the grid its policy has."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from figure_samples import lockstep, named, overhang, steps_of, words_in
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from shape_strategies import MAX_ROWS, MAX_WIDTH, capture_lists, policies, runs

from nanoserve import CaptureList, DecodeBuckets, Shape, StaircaseBuckets, Steps, price_run
from nanoserve.pricing import StepsIndex
from nanoserve_cli.figures import steps as steps_figure
from nanoserve_cli.figures import style
from nanoserve_cli.figures.steps import View, cells

POW2 = DecodeBuckets(64, 8192, width_multiple=1024)


def counts(figure: Figure) -> Any:
    """The heat map's numbers, 0 where it is white."""
    (image,) = figure.axes[0].images
    return np.ma.filled(image.get_array(), 0)


class TestGrid:
    @settings(max_examples=60)
    @given(st.one_of(policies(), capture_lists()))
    def test_every_step_in_view_is_in_the_cell_of_its_shape(self, policy: Any) -> None:
        view = View(MAX_ROWS, MAX_WIDTH, 1, 1)
        if not isinstance(policy, CaptureList):
            view = View(policy.max_batch_size, policy.max_model_len, 1, 1)
        grid = cells(policy, view)
        covered: Counter[tuple[int, int]] = Counter()
        for cell in grid:
            for rows in range(cell.low + 1, cell.high + 1):
                for width in range(cell.left + 1, cell.right + 1):
                    covered[rows, width] += 1
                    find = policy.find if isinstance(policy, CaptureList) else policy.shape_for
                    assert find(rows, width) == cell.shape
        assert set(covered.values()) == {1}
        assert len(covered) == view.rows * view.width

    def test_edges_are_the_buckets(self) -> None:
        figure = steps_figure.draw(steps_of(), POW2)
        (grid,) = named(figure, "grid")
        ends = {tuple(point) for segment in grid.get_segments() for point in segment.tolist()}
        view = View.of(StepsIndex(steps_of()), POW2)
        assert {x for x, _ in ends} == {0.5, *(w + 0.5 for w in range(1024, view.width + 1, 1024))}
        assert {y for _, y in ends} == {0.5, *(r + 0.5 for r in POW2.rows if r <= view.rows)}

    def test_a_staircase_has_a_ladder_a_row_bucket(self) -> None:
        policy = StaircaseBuckets(4, 64, {1: (32, 64), 4: (64,)})
        grid = cells(policy, View(4, 64, 1, 1))
        assert [(cell.low, cell.high, cell.left, cell.right) for cell in grid] == [
            (0, 1, 0, 32),
            (0, 1, 32, 64),
            (1, 4, 0, 64),
        ]

    def test_what_is_off_a_list_is_hatched_and_counted(self) -> None:
        captures = CaptureList([Shape(2, 512), Shape(8, 256)], max_batch_size=64, max_model_len=8192)
        cost = price_run(steps_of(), captures)
        figure = steps_figure.draw(steps_of(), captures)
        assert len(list(named(figure, "off the list"))) == 3
        assert cost.off_list_steps > 0
        assert f"{cost.off_list_steps:,} off the list" in " ".join(words_in(figure))


class TestMap:
    @settings(max_examples=10)
    @given(runs(MAX_ROWS, MAX_WIDTH).filter(len))
    def test_every_step_is_in_it_and_in_both_margins(self, steps: Steps) -> None:
        figure = steps_figure.draw(steps, DecodeBuckets(MAX_ROWS, MAX_WIDTH, width_multiple=16))
        assert counts(figure).sum() == steps.total_steps
        histogram = steps.histogram()
        assert counts(figure).shape[0] * counts(figure).shape[1] >= len(histogram)
        for (rows, width), count in histogram.items():
            assert counts(figure)[rows - 1, width - 1] == count
        for name in ("by width", "by rows"):
            (bars,) = named(figure, name)
            assert bars.get_data().values.sum() == steps.total_steps

    def test_bins_of_several_columns_lose_none(self) -> None:
        figure = steps_figure.draw(steps_of(), POW2)
        assert counts(figure).shape[1] <= 96
        assert counts(figure).sum() == steps_of().total_steps

    def test_it_shows_the_buckets_that_the_run_reaches(self) -> None:
        ax = steps_figure.draw(lockstep(), DecodeBuckets(256, 8192)).axes[0]
        assert (ax.get_xlim(), ax.get_ylim()) == ((0.5, 640.5), (0.5, 4.5))

    def test_shares_are_of_the_steps_and_stand_in_their_cells(self) -> None:
        figure = steps_figure.draw(lockstep(), DecodeBuckets(8, 8192))
        shares = {(text.xy[0], text.get_text()) for text in named(figure, "share")}
        assert shares == {
            (128.5, "21.9%"),
            (256.5, "25.0%"),
            (384.5, "25.0%"),
            (512.5, "25.0%"),
            (640.5, "3.1%"),
        }

    def test_a_dense_grid_has_no_shares_in_it(self) -> None:
        assert list(named(steps_figure.draw(steps_of(), DecodeBuckets(64, 8192)), "share")) == []

    def test_one_step_is_a_map_too(self) -> None:
        one = Steps(*(np.array([value], np.int64) for value in (0, 1, 1, 1, 1)))
        assert counts(steps_figure.draw(one, DecodeBuckets(1, 1))).tolist() == [[1]]


class TestWords:
    def test_title_figures_and_source(self) -> None:
        figure = steps_figure.draw(lockstep(), DecodeBuckets(8, 8192), traffic="lockstep", source="from here")
        words = words_in(figure)
        assert {"lockstep", "from here", "width (KV columns a row)", "rows"} <= set(words)
        assert "512 steps on 5 of 256 shapes · waste 39.2%, total 39.2%" in words

    def test_the_table_has_the_shapes_that_ran_most(self) -> None:
        (table,) = steps_figure.facts(steps_of(), DecodeBuckets(64, 8192))
        cost = price_run(steps_of(), DecodeBuckets(64, 8192))
        steps = [int(str(cell).replace(",", "")) for cell in table.columns[1].cells]
        assert len(steps) == 21
        assert steps[:20] == sorted((count for _, count in cost.steps_per_shape), reverse=True)[:20]
        assert sum(steps) == cost.steps
        assert str(list(table.columns[0].cells)[-1]) == f"{cost.shapes_used - 20} others"

    def test_steps_off_a_list_are_a_line(self) -> None:
        captures = CaptureList([Shape(64, 1024)], max_batch_size=64, max_model_len=8192)
        (table,) = steps_figure.facts(steps_of(), captures)
        assert str(list(table.columns[0].cells)[-1]) == "off the list, eager"


class TestRefusals:
    def test_a_run_of_no_steps(self) -> None:
        nothing = Steps(*(np.zeros(0, np.int64) for _ in range(5)))
        with pytest.raises(ValueError, match="there is no step to draw"):
            steps_figure.draw(nothing, POW2)

    def test_a_step_outside_the_limits(self) -> None:
        with pytest.raises(ValueError, match="outside this policy: it covers 1 to 2"):
            steps_figure.draw(lockstep(), DecodeBuckets(2, 8192))


@pytest.mark.parametrize("layout", ["column", "slide"])
def test_everything_is_inside_the_figure(layout: str) -> None:
    figure = steps_figure.draw(steps_of(), POW2, traffic="a run", source="here", layout=style.LAYOUTS[layout])
    assert overhang(figure) <= 0.5
