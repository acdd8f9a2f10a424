"""Labels beside points: none over another, none outside, the same ones every time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from figure_samples import box_of, overlapping
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.text import Annotation

from nanoserve_cli.figures import style
from nanoserve_cli.figures.labels import GID, Label, place

WORDS = ("pow2 128", "vllm-interactive 2048", "tgi", "gaudi-exp 512, lmdeploy 512")
NONE = np.zeros((0, 2))


def axes(height: float = 2.6) -> Axes:
    """Empty axes of a column's width, from 0 to 1 on both sides."""
    with style.applied():
        (found,) = style.add_panels(style.new_figure(style.COLUMN), style.COLUMN, [height], source="test")
    found.set_xlim(0, 1)
    found.set_ylim(0, 1)
    return found


def placed(ax: Axes, points: Sequence[tuple[float, float]], **more: object) -> list[Annotation]:
    labels = [Label(WORDS[at % len(WORDS)], x, y) for at, (x, y) in enumerate(points)]
    with style.applied():
        return place(ax, labels, **({"markers": np.array(points), "lines": NONE} | more))  # type: ignore[arg-type]


def is_led(annotation: Annotation) -> bool:
    return annotation.arrow_patch is not None


UNIT = st.floats(0, 1, allow_nan=False)


class TestPlaces:
    @settings(max_examples=12)
    @given(st.lists(st.tuples(UNIT, UNIT), min_size=1, max_size=18))
    def test_none_is_over_another_or_outside(self, points: list[tuple[float, float]]) -> None:
        ax = axes()
        boxes = [box_of(annotation) for annotation in placed(ax, points)]
        assert overlapping(boxes) == []
        frame = ax.get_window_extent()
        assert all(b[0] >= frame.x0 and b[1] >= frame.y0 and b[2] <= frame.x1 and b[3] <= frame.y1 for b in boxes)

    def test_a_crowd_in_one_place_is_spread_with_leaders(self) -> None:
        found = placed(axes(), [(0.5, 0.5)] * 10)
        assert len(found) == 10
        assert overlapping([box_of(annotation) for annotation in found]) == []
        assert sum(map(is_led, found)) >= 6

    def test_what_has_no_room_is_left_out_and_the_rest_stands(self) -> None:
        found = placed(axes(0.9), [(0.5, 0.5)] * 14)
        assert 0 < len(found) < 14
        assert overlapping([box_of(annotation) for annotation in found]) == []

    def test_a_lone_label_is_near_and_has_no_leader(self) -> None:
        (found,) = placed(axes(), [(0.5, 0.5)])
        assert not is_led(found)
        assert np.hypot(*found.xyann) < 60

    def test_the_side_it_likes(self) -> None:
        for toward, sign in ((45, 1), (225, -1)):
            ax = axes()
            with style.applied():
                (found,) = place(ax, [Label("a", 0.5, 0.5, toward=toward)], markers=NONE, lines=NONE)
            box, anchor = box_of(found), ax.transData.transform((0.5, 0.5))
            assert [np.sign((box[i] + box[i + 2]) / 2 - anchor[i]) for i in (0, 1)] == [sign, sign]

    def test_words_already_there_are_kept_free(self) -> None:
        ax = axes()
        frame = ax.get_window_extent()
        upper = np.array([frame.x0, frame.y0 + frame.height * 0.5, frame.x1, frame.y1])
        found = placed(ax, [(0.3, 0.52), (0.7, 0.52)], taken=[upper])
        assert all(box_of(annotation)[3] <= upper[1] for annotation in found)

    def test_a_marker_is_not_covered_where_there_is_room(self) -> None:
        ax = axes()
        points = [(0.5, 0.5), (0.55, 0.5), (0.5, 0.55), (0.45, 0.5), (0.5, 0.45)]
        pixels = ax.transData.transform(points)
        for annotation in placed(ax, points):
            x0, y0, x1, y1 = box_of(annotation)
            assert not [p for p in pixels if x0 < p[0] < x1 and y0 < p[1] < y1]


class TestDrawing:
    def test_the_same_points_give_the_same_offsets(self) -> None:
        points = [(x / 7, (x * 3 % 7) / 7) for x in range(8)]
        assert [a.xyann for a in placed(axes(), points)] == [a.xyann for a in placed(axes(), points)]

    @pytest.mark.parametrize("dpi", [72, 100, 600])
    def test_the_places_hold_at_another_resolution(self, dpi: int) -> None:
        ax = axes()
        found = placed(ax, [(0.5, 0.5)] * 8)
        ax.figure.dpi = dpi  # type: ignore[misc]
        with style.applied():
            assert overlapping([box_of(annotation) for annotation in found]) == []

    def test_they_are_known_by_their_name_and_say_their_words(self) -> None:
        found = placed(axes(), [(0.2, 0.2), (0.8, 0.8)])
        assert [(annotation.get_gid(), annotation.get_text()) for annotation in found] == [(GID, w) for w in WORDS[:2]]
