"""The picture of the idea is of a run that was planned: its outlines, its padding and its sink are the plans' own."""

from __future__ import annotations

import pytest
from figure_samples import named, overhang, words_in
from matplotlib.figure import Figure

from nanoserve.plan import check_pad_inert
from nanoserve_cli.figures import shape, style
from nanoserve_cli.figures.shape_run import FREE, NUM_BLOCKS, POLICY, Example, paddings, run


@pytest.fixture(scope="module")
def example() -> Example:
    return run()


@pytest.fixture(scope="module", params=["column", "slide"])
def figure(request: pytest.FixtureRequest) -> Figure:
    return shape.draw(layout=style.LAYOUTS[request.param])


def rectangles(figure: Figure, gid: str) -> list[tuple[float, float, float, float]]:
    """`(x, y, width, height)` of each."""
    return [(*patch.get_xy(), patch.get_width(), patch.get_height()) for patch in named(figure, gid)]


class TestRun:
    def test_it_is_the_same_every_time(self, example: Example) -> None:
        assert run().open_shapes == example.open_shapes
        assert run().shown.write_snapshot.tolist() == example.shown.write_snapshot.tolist()

    def test_its_steps_run_as_what_the_policy_says(self, example: Example) -> None:
        assert {POLICY.shape_for(opened.rows, opened.width) for opened in example.open_shapes} == set(example.presented)
        assert (example.cost.open_shapes, example.cost.shapes_used) == (73, 7)

    def test_the_step_shown_has_every_kind_of_padding_and_is_inert(self, example: Example) -> None:
        assert min(paddings(example.shown)) > 0
        assert check_pad_inert(example.shown) == 1
        assert example.shown.live_cells + sum(paddings(example.shown)) == example.shown.graph_cells

    def test_the_slots_that_rows_write_are_in_their_own_blocks(self, example: Example) -> None:
        plan = example.shown
        owners = [int(example.owners[slot // 16]) for slot in plan.write_snapshot[: plan.batch_size]]
        assert owners == list(range(plan.batch_size))


class TestPanels:
    def test_every_step_is_an_outline_and_a_corner(self, figure: Figure, example: Example) -> None:
        drawn = [(width, height) for _, _, width, height in rectangles(figure, "open")]
        assert drawn == [(opened.width, opened.rows) for opened in example.open_shapes]
        corners = next(named(figure.axes[0], "corners"))
        assert corners.get_offsets().tolist() == [list(map(float, corner)) for corner in drawn]

    def test_the_same_steps_present_few_shapes(self, figure: Figure, example: Example) -> None:
        drawn = [(width, height) for _, _, width, height in rectangles(figure, "presented")]
        assert drawn == [(presented.width, presented.rows) for presented in example.presented]

    def test_the_cells_of_the_step_tile_its_rectangle(self, figure: Figure, example: Example) -> None:
        plan = example.shown
        areas = {
            part: sum(width * height for _, _, width, height in rectangles(figure, part))
            for part in ("live_cells", "ragged_padding", "width_padding", "row_padding")
        }
        ragged, width, row = paddings(plan)
        assert areas == {
            "live_cells": plan.live_cells,
            "ragged_padding": ragged,
            "width_padding": width,
            "row_padding": row,
        }

    def test_padding_is_hatched(self, figure: Figure) -> None:
        for part in ("width_padding", "row_padding"):
            assert all(patch.get_hatch() for patch in named(figure, part))

    def test_the_sink_is_past_the_last_block(self, figure: Figure) -> None:
        blocks = rectangles(figure, "block")
        ((x, _, _, _),) = rectangles(figure, "sink")
        assert len(blocks) == NUM_BLOCKS
        assert x > max(left + width for left, _, width, _ in blocks)

    def test_blocks_are_shaded_by_their_owner(self, figure: Figure, example: Example) -> None:
        colors = [patch.get_facecolor() for patch in named(figure, "block")]
        by_owner = dict(zip(example.owners.tolist(), colors, strict=True))
        assert colors == [by_owner[owner] for owner in example.owners.tolist()]
        assert len(set(by_owner.values())) == len(by_owner)
        assert by_owner[FREE] == (1, 1, 1, 1)

    def test_each_row_points_at_the_slot_it_writes_and_the_padded_one_at_the_sink_and_at_nothing(
        self, figure: Figure, example: Example
    ) -> None:
        plan = example.shown
        rows = list(named(figure, "row"))
        ((sink, _, width, _),) = rectangles(figure, "sink")
        *real, padded = [text.xy[0] for text in rows]
        assert real == [slot + 0.5 for slot in plan.write_snapshot[: plan.batch_size].tolist()]
        assert sink < padded < sink + width
        assert [text.get_text().splitlines()[1] for text in rows] == [
            *(f"reads {length}" for length in plan.context_snapshot[:3]),
            "reads nothing",
        ]
        assert rows[-1].get_text().endswith(f"writes slot {plan.sink_slot}")
        assert len(list(named(figure, "nothing"))) == 1

    def test_the_products_and_the_line_where_they_become_a_bill(self, figure: Figure) -> None:
        ax = figure.axes[3]
        assert [container[0].get_width() for container in ax.containers] == [576, 144, 36, 9]
        assert {"9 x 64 = 576", "9 x 16 = 144", "9 x 4 = 36", "9 x 1 = 9"} <= set(words_in(ax))
        (line,) = named(ax, "budget")
        assert list(line.get_xdata()) == [64, 64]
        assert [bool(container[0].get_hatch()) for container in ax.containers] == [True, True, False, False]

    def test_everything_is_inside_the_figure(self, figure: Figure) -> None:
        assert overhang(figure) <= 0.5


def test_the_tables_say_the_same(example: Example) -> None:
    of_run, of_products = shape.facts()
    said = dict(zip(*([str(cell) for cell in column.cells] for column in of_run.columns), strict=True))
    assert said == {
        "as it comes": "73 steps, 73 shapes",
        "bucketed": "7 used of 12, waste 38.2%",
        "one step": "3x33 run as 4x64",
        "  its cells": "72 live, 27 ragged, 93 width, 64 row padding",
        "  its padded rows": "1, read nothing, write slot 384",
        "the pool": "24 blocks of 16: slots 0 to 383, then the sink",
    }
    assert [str(cell) for cell in of_products.columns[1].cells] == [
        "9 x 64 = 576",
        "9 x 16 = 144",
        "9 x 4 = 36",
        "9 x 1 = 9",
    ]
    assert [str(cell) for cell in of_products.columns[2].cells] == ["over", "over", "within", "within"]
