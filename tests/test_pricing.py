"""Pricing in closed form equals walking the run step by step, for every policy and every list."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shape_strategies import MAX_ROWS, MAX_WIDTH, capture_lists, policies, runs

from nanoserve import (
    CaptureList,
    DecodeBuckets,
    RunCost,
    Segment,
    Shape,
    Steps,
    bucket_run,
    padded_cells,
    price_run,
    waste,
)
from nanoserve.pricing import count_open_shapes


def check_padding_identity(cost: RunCost) -> None:
    assert cost.padded_cells == cost.live_cells + cost.ragged_padding + cost.width_padding + cost.row_padding
    assert min(cost.ragged_padding, cost.width_padding, cost.row_padding) >= 0
    assert sum(count for _, count in cost.steps_per_shape) + cost.off_list_steps == cost.steps
    assert 0.0 <= cost.waste <= cost.total_waste <= 1.0


@settings(max_examples=200)
@given(st.data())
def test_price_run_is_the_sum_over_bucket_run(data: st.DataObject) -> None:
    policy = data.draw(policies())
    steps = data.draw(runs(policy.max_batch_size, policy.max_model_len))
    opened = list(steps.open_shapes())
    presented = bucket_run(opened, policy)
    cost = price_run(steps, policy)

    assert cost.steps == len(opened)
    assert cost.open_shapes == len(set(opened))
    assert cost.open_cells == sum(shape.cells for shape in opened)
    assert cost.live_cells == int(steps.live_cells.sum())
    assert cost.padded_cells == padded_cells(opened, policy)
    assert cost.width_padding == sum(o.rows * (p.width - o.width) for o, p in zip(opened, presented, strict=True))
    assert cost.row_padding == sum((p.rows - o.rows) * p.width for o, p in zip(opened, presented, strict=True))
    assert cost.steps_per_shape == tuple(sorted(Counter(presented).items()))
    assert cost.shapes_used == len(set(presented))
    assert cost.shapes_available == policy.count
    assert cost.off_list_steps == 0
    assert cost.waste == waste(opened, policy)
    check_padding_identity(cost)


@settings(max_examples=200)
@given(capture_lists(), runs(MAX_ROWS, MAX_WIDTH))
def test_off_an_incomplete_list_a_step_runs_eager_unpadded_and_counted(captured: CaptureList, steps: Steps) -> None:
    opened = list(steps.open_shapes())
    found = [captured.find(shape.rows, shape.width) for shape in opened]
    cost = price_run(steps, captured)

    assert cost.off_list_steps == found.count(None)
    assert cost.padded_cells == sum((f or o).cells for o, f in zip(opened, found, strict=True))
    assert cost.steps_per_shape == tuple(sorted(Counter(f for f in found if f).items()))
    assert cost.shapes_available == captured.count
    check_padding_identity(cost)


@given(runs(MAX_ROWS, MAX_WIDTH))
def test_open_shapes_are_counted_as_a_set_would(steps: Steps) -> None:
    assert count_open_shapes(steps) == len(set(steps.open_shapes()))


@pytest.mark.parametrize(
    ("segments", "count"),
    [
        ([], 0),
        ([Segment(0, 1, 5, 3, 18)], 3),
        ([Segment(0, 1, 5, 10, 95), Segment(10, 1, 7, 2, 15)], 10),  # inside
        ([Segment(0, 1, 5, 3, 18), Segment(3, 1, 8, 2, 17)], 5),  # adjacent
        ([Segment(0, 1, 5, 3, 18), Segment(3, 2, 5, 3, 36)], 6),  # the same widths of other rows
        ([Segment(0, 2, 50, 1, 100), Segment(1, 1, 5, 1, 5), Segment(2, 3, 1, 1, 3)], 3),
    ],
)
def test_intervals_of_widths_are_joined_row_by_row(segments: list[Segment], count: int) -> None:
    assert count_open_shapes(Steps.of(segments)) == count


@pytest.mark.parametrize(
    ("steps", "percent", "open_cells", "padded", "used"),
    [(8, "35.9%", 492, 768, 1), (64, "54.5%", 9_312, 20_480, 1), (512, "38.5%", 418_560, 680_960, 5)],
)
def test_the_seed_runs_are_one_segment(steps: int, percent: str, open_cells: int, padded: int, used: int) -> None:
    run = Steps.of([Segment(0, 3, 17, steps, open_cells)])
    cost = price_run(run, DecodeBuckets(8, 16 + steps))
    assert (cost.open_cells, cost.padded_cells, cost.shapes_used, cost.open_shapes) == (open_cells, padded, used, steps)
    assert f"{cost.waste:.1%}" == percent
    # Every row is as long as the longest in a lockstep run: the rectangle wastes nothing beside the policy.
    assert cost.ragged_padding == 0
    assert cost.total_waste == cost.waste


def test_no_steps_cost_nothing() -> None:
    cost = price_run(Steps.of([]), DecodeBuckets(8, 100))
    assert (cost.steps, cost.padded_cells, cost.open_shapes, cost.shapes_used) == (0, 0, 0, 0)
    assert (cost.waste, cost.total_waste) == (0.0, 0.0)
    assert cost.shapes_available == 4


@pytest.mark.parametrize("segment", [Segment(0, 9, 5, 1, 45), Segment(0, 1, 100, 2, 201), Segment(0, 1, 101, 1, 101)])
def test_a_step_beyond_the_policy_is_an_error_and_not_off_list(segment: Segment) -> None:
    with pytest.raises(ValueError, match="outside this policy"):
        price_run(Steps.of([segment]), DecodeBuckets(8, 100))


def test_a_million_steps_are_priced_without_visiting_them() -> None:
    steps = 1_000_000
    cost = price_run(
        Steps.of([Segment(0, 4, 1, steps, 4 * steps * (steps + 1) // 2)]),
        DecodeBuckets(4, steps, width_multiple=1 << 16),
    )
    assert cost.steps == cost.open_shapes == steps
    assert cost.steps_per_shape[0] == (Shape(4, 1 << 16), 1 << 16)
