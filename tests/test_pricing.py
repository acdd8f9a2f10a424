"""Pricing in closed form equals walking the run step by step, for every policy and every list."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import product
from time import process_time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shape_strategies import LARGEST, MAX_ROWS, MAX_WIDTH, capture_lists, ladders, policies, runs

from nanoserve import (
    CaptureList,
    DecodeBuckets,
    DecodePolicy,
    RunCost,
    Segment,
    Shape,
    StaircaseBuckets,
    Steps,
    bucket_run,
    padded_cells,
    price_run,
    waste,
)
from nanoserve.pricing import StepsIndex


def check_padding_identity(cost: RunCost) -> None:
    assert cost.padded_cells == cost.live_cells + cost.ragged_padding + cost.width_padding + cost.row_padding
    assert min(cost.ragged_padding, cost.width_padding, cost.row_padding) >= 0
    assert sum(count for _, count in cost.steps_per_shape) + cost.off_list_steps == cost.steps
    assert 0.0 <= cost.waste <= cost.total_waste <= 1.0


def a_long_run(segments: int) -> Steps:
    """Segments of 1 to 8 steps at random within 256 rows and 8192 columns: their intervals meet and overlap anyhow."""
    draw = np.random.default_rng(20)
    rows, width = draw.integers(1, 257, segments), draw.integers(1, 8186, segments)
    steps = draw.integers(1, 9, segments)
    full = rows * (steps * width + steps * (steps - 1) // 2)
    return Steps(np.cumsum(steps) - steps, rows, width, steps, full)


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


@given(st.lists(st.one_of(capture_lists(), policies(LARGEST)), max_size=4), runs(MAX_ROWS, MAX_WIDTH))
def test_one_index_prices_every_policy_as_pricing_each_alone_would(
    choices: list[DecodePolicy | CaptureList], steps: Steps
) -> None:
    index = StepsIndex(steps)
    assert [index.price(choice) for choice in choices * 2] == [price_run(steps, choice) for choice in choices] * 2


def test_row_counts_that_share_a_graph_are_counted_in_it_together() -> None:
    """1 row too wide for the 2-row graph and 3 rows of any width replay the same one; 9 rows replay none."""
    captured = CaptureList([Shape(2, 8), Shape(8, 16)])
    run = Steps.of(
        [Segment(0, 1, 8, 2, 17), Segment(2, 3, 4, 1, 12), Segment(3, 1, 16, 2, 33), Segment(5, 9, 4, 2, 81)]
    )
    cost = price_run(run, captured)
    assert cost.steps_per_shape == ((Shape(2, 8), 1), (Shape(8, 16), 3))
    assert cost.off_list_steps == 3
    assert cost.padded_cells == 16 + 3 * 128 + 17 + 81
    assert cost.width_padding == (16 - 9) + 3 * (16 - 4)
    assert cost.row_padding == 8 + 7 * 16 + 5 * 16 + 7 * 16


@settings(max_examples=50)
@given(runs(MAX_ROWS, MAX_WIDTH))
def test_the_index_counts_steps_and_sums_widths_as_walking_the_run_would(steps: Steps) -> None:
    index, opened = StepsIndex(steps), list(steps.open_shapes())
    rows, width = np.arange(MAX_ROWS + 2), np.arange(-1, MAX_WIDTH + 3)
    counts, sums = index.steps_within(rows[:, None], width), index.widths_within(rows[:, None], width)
    assert counts.dtype == sums.dtype == np.int64
    for i, j in product(range(rows.size), range(width.size)):
        within = [shape.width for shape in opened if shape.rows == rows[i] and shape.width <= width[j]]
        assert (counts[i, j], sums[i, j]) == (len(within), sum(within))


@given(runs(MAX_ROWS, MAX_WIDTH))
def test_the_index_knows_the_totals_of_its_run(steps: Steps) -> None:
    index, opened = StepsIndex(steps), list(steps.open_shapes())
    assert index.steps == len(opened)
    assert index.open_cells == sum(shape.cells for shape in opened)
    assert index.live_cells == sum(segment.live_cells for segment in steps)
    assert index.rows.tolist() == sorted({shape.rows for shape in opened})
    assert index.widest == max((shape.width for shape in opened), default=0)


@given(runs(MAX_ROWS, MAX_WIDTH))
def test_open_shapes_are_counted_as_a_set_would(steps: Steps) -> None:
    assert StepsIndex(steps).open_shapes == len(set(steps.open_shapes()))


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
    assert StepsIndex(Steps.of(segments)).open_shapes == count


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


@given(runs(MAX_ROWS, MAX_WIDTH))
def test_the_histogram_by_every_row_and_width_is_the_runs_own(steps: Steps) -> None:
    table = StepsIndex(steps).histogram(range(1, MAX_ROWS + 1), range(1, MAX_WIDTH + 1))
    assert table.dtype == np.int64
    assert table.shape == (MAX_ROWS, MAX_WIDTH)
    counted = {(int(i) + 1, int(j) + 1): int(table[i, j]) for i, j in np.argwhere(table)}
    assert counted == steps.histogram()


@given(runs(MAX_ROWS, MAX_WIDTH), ladders(MAX_ROWS + 3), ladders(MAX_WIDTH - 20))
def test_a_histogram_bin_is_past_the_edge_before_and_up_to_its_own(
    steps: Steps, row_edges: tuple[int, ...], width_edges: tuple[int, ...]
) -> None:
    table = StepsIndex(steps).histogram(np.array(row_edges), width_edges)
    expected = np.zeros((len(row_edges), len(width_edges)), np.int64)
    for (rows, width), count in steps.histogram().items():
        if width <= width_edges[-1]:
            expected[bisect_left(row_edges, rows), bisect_left(width_edges, width)] += count
    assert table.tolist() == expected.tolist()


@pytest.mark.parametrize("edges", [(), (0, 4), (4, 4), (5, 4), (1.5, 4), ((1, 2), (3, 4))])
def test_edges_that_bin_nothing_or_not_exactly_are_refused_by_name(edges: tuple[int, ...]) -> None:
    index = StepsIndex(Steps.of([Segment(0, 1, 5, 1, 5)]))
    with pytest.raises(ValueError, match=r"row_edges must be strictly ascending integers.*\("):
        index.histogram(edges, (8,))
    with pytest.raises(ValueError, match=r"width_edges must be strictly ascending integers.*\("):
        index.histogram((8,), edges)


def test_no_steps_cost_nothing() -> None:
    cost = price_run(Steps.of([]), DecodeBuckets(8, 100))
    assert (cost.steps, cost.padded_cells, cost.open_shapes, cost.shapes_used) == (0, 0, 0, 0)
    assert (cost.waste, cost.total_waste) == (0.0, 0.0)
    assert cost.shapes_available == 4


@pytest.mark.parametrize(
    ("segment", "numbers"),
    [
        (Segment(0, 9, 5, 1, 45), "9 rows are outside this policy.*8"),
        (Segment(0, 1, 100, 2, 201), "101 is outside this policy.*100"),
        (Segment(0, 1, 150, 1, 150), "150 is outside this policy.*100"),
    ],
)
@pytest.mark.parametrize("policy", [DecodeBuckets(8, 100), StaircaseBuckets(8, 100, {2: [100], 8: [50, 100]})])
def test_a_step_beyond_the_policy_is_an_error_and_not_off_list(
    segment: Segment, numbers: str, policy: DecodePolicy
) -> None:
    within = Segment(9, 2, 10, 3, 60)
    with pytest.raises(ValueError, match=numbers):
        price_run(Steps.of([segment, within]), policy)


def test_a_million_steps_are_priced_without_visiting_them() -> None:
    steps = 1_000_000
    cost = price_run(
        Steps.of([Segment(0, 4, 1, steps, 4 * steps * (steps + 1) // 2)]),
        DecodeBuckets(4, steps, width_multiple=1 << 16),
    )
    assert cost.steps == cost.open_shapes == steps
    assert cost.steps_per_shape[0] == (Shape(4, 1 << 16), 1 << 16)


def test_two_hundred_million_steps_of_many_row_counts_are_exact() -> None:
    """`rows` rows are `rows` columns wide at first: 200 segments of a million steps each."""
    each = 1_000_000
    run = Steps.of(
        [
            Segment((rows - 1) * each, rows, rows, each, rows * (each * rows + each * (each - 1) // 2))
            for rows in range(1, 201)
        ]
    )
    cost = price_run(run, DecodeBuckets(200, 1_000_199, rows=[100, 200], widths=[500_000, 1_000_199]))
    narrow = [sum(500_000 - rows + 1 for rows in some) for some in (range(1, 101), range(101, 201))]
    wide = [100 * each - steps for steps in narrow]
    shapes = [Shape(100, 500_000), Shape(100, 1_000_199), Shape(200, 500_000), Shape(200, 1_000_199)]
    counts = [narrow[0], wide[0], narrow[1], wide[1]]
    assert cost.steps == cost.open_shapes == 200_000_000
    assert cost.steps_per_shape == tuple(zip(shapes, counts, strict=True))
    assert cost.padded_cells == sum(shape.cells * count for shape, count in zip(shapes, counts, strict=True))
    check_padding_identity(cost)


def test_a_run_whose_sums_may_pass_64_bits_is_refused_and_not_wrapped() -> None:
    wide = 1 << 21
    few = Segment(0, 1, 1, wide, wide * (wide + 1) // 2)
    with pytest.raises(ValueError, match=f"{wide + 1} steps up to {1 << 22}x{wide}.*64 bits.*parts"):
        StepsIndex(Steps.of([few, Segment(wide, 1 << 22, 1, 1, 1 << 22)]))
    assert StepsIndex(Steps.of([few, Segment(wide, 1 << 19, 1, 1, 1 << 19)])).open_shapes == wide + 1


def test_a_lookup_in_small_blocks_is_the_lookup_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    index, policy = StepsIndex(a_long_run(300)), DecodeBuckets(256, 8192, width_multiple=512)
    cost, table = index.price(policy), index.histogram((3, 100, 256), policy.widths)
    for block in (1, 50):
        monkeypatch.setattr("nanoserve.pricing.LOOKUP_BLOCK", block)
        assert index.price(policy) == cost
        assert index.histogram((3, 100, 256), policy.widths).tolist() == table.tolist()


def test_three_hundred_policies_over_thirty_thousand_segments_take_seconds() -> None:
    """A fit prices hundreds of policies over one run: looking at every segment for every shape takes far longer."""
    steps = a_long_run(30_000)
    policies = [
        *(DecodeBuckets(256, 8192, width_multiple=64 * n) for n in range(1, 101)),
        *(DecodeBuckets(256, 8192, rows=[n, 256], width_multiple=256) for n in range(1, 101)),
        *(StaircaseBuckets(256, 8192, {n: range(512, 8193, 512), 256: [4096, 8192]}) for n in range(1, 101)),
    ]
    began = process_time()
    index = StepsIndex(steps)
    costs = [index.price(policy) for policy in policies]
    took = process_time() - began
    assert took < 3
    for cost in costs:
        assert sum(count for _, count in cost.steps_per_shape) == steps.total_steps
        assert sum(shape.cells * count for shape, count in cost.steps_per_shape) == cost.padded_cells
        check_padding_identity(cost)
