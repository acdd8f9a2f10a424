"""A run as segments: what the recorder merges, what a run refuses, and what it unfolds to."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shape_strategies import MAX_ROWS, MAX_WIDTH, runs

from nanoserve import Segment, Shape, Steps, StepsRecorder


def record(*steps: tuple[int, int, int]) -> list[Segment]:
    recorder = StepsRecorder()
    for rows, width, live in steps:
        recorder.add(rows, width, live)
    return list(recorder.steps())


def test_lockstep_decoding_is_one_segment_however_long() -> None:
    assert record(*((3, 16 + j, 3 * (16 + j)) for j in range(1, 513))) == [Segment(0, 3, 17, 512, 418_560)]


def test_a_segment_ends_where_rows_or_width_or_the_live_cells_jump() -> None:
    assert record((2, 10, 12), (2, 11, 14), (3, 12, 20)) == [Segment(0, 2, 10, 2, 26), Segment(2, 3, 12, 1, 20)]
    assert record((2, 10, 12), (2, 12, 14)) == [Segment(0, 2, 10, 1, 12), Segment(1, 2, 12, 1, 14)]
    # One row finished and one was admitted between two steps: same rows, width grows by one, live cells tell.
    assert record((2, 10, 20), (2, 11, 15)) == [Segment(0, 2, 10, 1, 20), Segment(1, 2, 11, 1, 15)]


def test_a_width_that_stays_or_shrinks_starts_a_segment() -> None:
    assert [s.width for s in record((1, 5, 5), (1, 5, 5), (1, 4, 4), (1, 5, 5))] == [5, 5, 4]


def test_a_gap_on_the_clock_starts_a_segment() -> None:
    recorder = StepsRecorder()
    recorder.add(1, 5, 5, step=3)
    recorder.add(1, 6, 6)
    recorder.add(1, 7, 7, step=9)
    assert list(recorder.steps()) == [Segment(3, 1, 5, 2, 11), Segment(9, 1, 7, 1, 7)]


def test_steps_may_be_read_while_recording_goes_on() -> None:
    recorder = StepsRecorder()
    assert len(recorder.steps()) == 0
    assert recorder.steps().total_steps == 0
    recorder.add(1, 5, 5)
    early = recorder.steps()
    recorder.add(1, 6, 6)
    assert list(early) == [Segment(0, 1, 5, 1, 5)]
    assert list(recorder.steps()) == [Segment(0, 1, 5, 2, 11)]


@pytest.mark.parametrize(
    ("rows", "width", "live"),
    [(0, 5, 0), (1, 0, 0), (3, 5, 2), (3, 5, 16), (-1, 5, 5)],
)
def test_a_step_that_is_no_rectangle_is_refused_and_leaves_no_trace(rows: int, width: int, live: int) -> None:
    recorder = StepsRecorder()
    recorder.add(1, 4, 4)
    with pytest.raises(ValueError, match=f"{rows} rows, width {width} and {live} live"):
        recorder.add(rows, width, live)
    recorder.add(1, 5, 5)
    assert list(recorder.steps()) == [Segment(0, 1, 4, 2, 9)]


def test_the_longest_row_is_as_long_as_the_step_is_wide() -> None:
    # FAULT: width 100 means one row of 100 tokens, so 3 rows hold at least 102; 3 live cells are accepted.
    with pytest.raises(ValueError, match="3 rows, width 100 and 3 live"):
        StepsRecorder().add(3, 100, 3)


def test_a_recorder_never_goes_back_in_time() -> None:
    recorder = StepsRecorder()
    with pytest.raises(ValueError, match="step -1"):
        recorder.add(1, 4, 4, step=-1)
    recorder.add(1, 4, 4, step=2)
    with pytest.raises(ValueError, match=r"step 2 was already recorded.*3"):
        recorder.add(1, 5, 5, step=2)


@given(runs(MAX_ROWS, MAX_WIDTH))
def test_recording_the_unfolded_run_gives_the_same_run(steps: Steps) -> None:
    """Merging may join two segments that continue each other; nothing else may change."""
    recorder = StepsRecorder()
    for segment in steps:
        first_live = (segment.live_cells - segment.rows * segment.steps * (segment.steps - 1) // 2) // segment.steps
        for j in range(segment.steps):
            recorder.add(segment.rows, segment.width + j, first_live + j * segment.rows, step=segment.start_step + j)
    merged = recorder.steps()
    assert len(merged) <= len(steps)
    assert merged.histogram() == steps.histogram()
    assert list(merged.open_shapes()) == list(steps.open_shapes())
    assert int(merged.live_cells.sum()) == int(steps.live_cells.sum())


@given(runs(MAX_ROWS, MAX_WIDTH))
def test_histogram_open_shapes_and_closed_forms_agree(steps: Steps) -> None:
    shapes = list(steps.open_shapes())
    assert steps.total_steps == len(shapes)
    assert int(steps.open_cells_each.sum()) == sum(shape.cells for shape in shapes)
    assert steps.histogram() == Counter((shape.rows, shape.width) for shape in shapes)


def test_a_segment_unfolds_to_one_shape_a_step() -> None:
    steps = Steps.of([Segment(0, 2, 5, 3, 30), Segment(7, 1, 9, 1, 9)])
    assert list(steps.open_shapes()) == [Shape(2, 5), Shape(2, 6), Shape(2, 7), Shape(1, 9)]
    assert steps.histogram() == {(2, 5): 1, (2, 6): 1, (2, 7): 1, (1, 9): 1}


def test_equality_is_by_value() -> None:
    segment = Segment(0, 2, 5, 3, 30)
    assert Steps.of([segment]) == Steps.of([segment])
    assert Steps.of([segment]) != Steps.of([segment._replace(live_cells=29)])
    assert Steps.of([segment]) != Steps.of([])
    assert Steps.of([]) != "steps"


@pytest.mark.parametrize(
    ("segments", "named"),
    [
        ([Segment(-1, 1, 5, 1, 5)], "segment 0: start_step.*-1"),
        ([Segment(0, 0, 5, 1, 5)], "segment 0: rows.*0"),
        ([Segment(0, 1, 5, 1, 5), Segment(1, 1, 0, 1, 1)], "segment 1: width.*0"),
        ([Segment(0, 1, 5, 0, 5)], "segment 0: steps.*0"),
        ([Segment(0, 1, 5, 2, 11), Segment(1, 1, 5, 1, 5)], "segment 1 starts before"),
        ([Segment(5, 1, 5, 1, 5), Segment(0, 1, 5, 1, 5)], "segment 1 starts before"),
        ([Segment(0, 2, 5, 2, 23)], "segment 0: 23 live cells.*2 steps.*2x5"),
        ([Segment(0, 2, 5, 2, 3)], "segment 0: 3 live cells"),
    ],
)
def test_a_run_that_never_happened_is_refused(segments: list[Segment], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Steps.of(segments)


def test_columns_of_different_length_are_refused() -> None:
    one, two = np.ones(1, np.int64), np.ones(2, np.int64)
    with pytest.raises(ValueError, match=r"differ in length: \[1, 2\]"):
        Steps(one, one, one, one, two)


@given(st.integers(1, 40), st.integers(1, 200), st.integers(1, 2000))
def test_the_full_rectangle_is_the_most_a_segment_can_hold(rows: int, width: int, steps: int) -> None:
    full = rows * sum(range(width, width + steps))
    assert Steps.of([Segment(0, rows, width, steps, full)]).open_cells_each.tolist() == [full]
    with pytest.raises(ValueError, match="live cells do not fit"):
        Steps.of([Segment(0, rows, width, steps, full + 1)])
