"""Hypothesis strategies for policies, capture lists and runs, shared by the tests of buckets and of pricing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from nanoserve import CaptureList, DecodeBuckets, Segment, Shape, StaircaseBuckets, Steps

MAX_ROWS = 12
MAX_WIDTH = 60


def ladders(maximum: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Strictly ascending, positive, ending at `maximum`."""
    return st.sets(st.integers(1, maximum), max_size=6).map(lambda values: tuple(sorted({*values, maximum})))


Limits = st.SearchStrategy[tuple[int, int]]
LIMITS: Limits = st.tuples(st.integers(1, MAX_ROWS), st.integers(1, MAX_WIDTH))
LARGEST: Limits = st.just((MAX_ROWS, MAX_WIDTH))


@st.composite
def products(draw: Callable[..., Any], limits: Limits) -> DecodeBuckets:
    rows, width = draw(limits)
    return DecodeBuckets(rows, width, rows=draw(ladders(rows)), widths=draw(ladders(width)))


@st.composite
def staircases(draw: Callable[..., Any], limits: Limits) -> StaircaseBuckets:
    rows, width = draw(limits)
    return StaircaseBuckets(rows, width, {r: draw(ladders(width)) for r in draw(ladders(rows))})


def policies(limits: Limits = LIMITS) -> st.SearchStrategy[DecodeBuckets | StaircaseBuckets]:
    return st.one_of(products(limits), staircases(limits))


def capture_lists() -> st.SearchStrategy[CaptureList]:
    """Any shapes at all: mostly incomplete, some beyond every step, some with gaps on one axis only."""
    shape = st.builds(Shape, st.integers(1, MAX_ROWS), st.integers(1, MAX_WIDTH))
    return st.sets(shape, min_size=1, max_size=12).map(CaptureList)


@st.composite
def runs(draw: Callable[..., Any], max_rows: int, max_width: int) -> Steps:
    """Segments in time order within the limits, with gaps in time, repeats and overlaps in width."""
    segments, clock = [], 0
    for _ in range(draw(st.integers(0, 8))):
        clock += draw(st.integers(0, 3))
        rows, width = draw(st.integers(1, max_rows)), draw(st.integers(1, max_width))
        steps = draw(st.integers(1, max_width - width + 1))
        first_live = draw(st.integers(width + rows - 1, rows * width))
        segments.append(Segment(clock, rows, width, steps, steps * first_live + rows * steps * (steps - 1) // 2))
        clock += steps
    return Steps.of(segments)
