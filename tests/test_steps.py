"""A run as segments: what the recorder merges, what a run refuses, and what it unfolds to."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

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


LAST = 10_000


def record_between(steps: Steps, start_step: int, stop_step: int) -> Steps:
    """The run unfolded, and those of its steps recorded one by one."""
    recorder = StepsRecorder()
    for segment in steps:
        first_live = (segment.live_cells - segment.rows * segment.steps * (segment.steps - 1) // 2) // segment.steps
        for j in range(segment.steps):
            if start_step <= segment.start_step + j < stop_step:
                live = first_live + j * segment.rows
                recorder.add(segment.rows, segment.width + j, live, step=segment.start_step + j)
    return recorder.steps()


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
    merged = record_between(steps, 0, LAST)
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


@given(runs(MAX_ROWS, MAX_WIDTH), st.integers(0, 200), st.integers(0, 200))
def test_a_part_of_a_recorded_run_is_what_recording_only_that_part_gives(steps: Steps, start: int, length: int) -> None:
    recorded = record_between(steps, 0, LAST)
    assert recorded.between(start, start + length) == record_between(recorded, start, start + length)


@given(runs(MAX_ROWS, MAX_WIDTH), st.lists(st.integers(0, 300), min_size=1, max_size=4))
def test_the_parts_of_a_run_add_up_to_it(steps: Steps, cuts: list[int]) -> None:
    parts = [steps.between(start, stop) for start, stop in pairwise([0, *sorted(cuts), LAST])]
    assert sum((Counter(part.histogram()) for part in parts), Counter()) == steps.histogram()
    assert sum(part.total_steps for part in parts) == steps.total_steps
    assert sum(int(part.open_cells_each.sum()) for part in parts) == int(steps.open_cells_each.sum())
    assert sum(int(part.live_cells.sum()) for part in parts) == int(steps.live_cells.sum())
    assert [shape for part in parts for shape in part.open_shapes()] == list(steps.open_shapes())


def test_a_part_keeps_the_runs_clock_and_cuts_the_segments_at_its_ends() -> None:
    steps = Steps.of([Segment(2, 3, 10, 4, 90), Segment(9, 1, 5, 2, 11)])  # 18, 21, 24, 27 live; 5, 6
    assert list(steps.between(3, 5)) == [Segment(3, 3, 11, 2, 45)]
    assert list(steps.between(5, 10)) == [Segment(5, 3, 13, 1, 27), Segment(9, 1, 5, 1, 5)]
    assert list(steps.between(6, 9)) == list(steps.between(4, 4)) == list(steps.between(11, 99)) == []
    assert steps.between(2, 11) == steps.between(0, LAST) == steps
    assert list(Steps.of([]).between(0, 5)) == []


def test_a_part_of_a_run_is_cut_and_not_unfolded() -> None:
    steps, rows = 10**9, 3
    first, second = (
        Steps.of([Segment(0, rows, 1, steps, rows * steps * (steps + 1) // 2)]).between(*part)
        for part in [(0, 10**8), (10**8, steps)]
    )
    assert list(first) == [Segment(0, rows, 1, 10**8, rows * 10**8 * (10**8 + 1) // 2)]
    assert list(second) == [
        Segment(10**8, rows, 10**8 + 1, 9 * 10**8, rows * (steps * (steps + 1) - 10**8 * (10**8 + 1)) // 2)
    ]


def test_a_part_that_no_run_has_is_refused() -> None:
    steps = Steps.of([Segment(0, 1, 5, 1, 5), Segment(1, 2, 5, 2, 21)])
    with pytest.raises(ValueError, match="stop at step 3, before its start at 4"):
        steps.between(4, 3)
    # 21 live cells are not a + (a + 2): nothing says how many of them the first step has.
    with pytest.raises(ValueError, match=r"segment 1 cannot be cut: 21 live cells.*2 steps.*2 a step"):
        steps.between(0, 2)
    assert steps.between(1, 3) == Steps.of([Segment(1, 2, 5, 2, 21)])


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
