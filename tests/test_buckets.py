"""The shape policy: seed numbers to the digit, ladders, lookups, and lists that may be incomplete."""

from __future__ import annotations

from bisect import bisect_left
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shape_strategies import MAX_ROWS, MAX_WIDTH, capture_lists, ladders, policies

from nanoserve import (
    CaptureList,
    DecodeBuckets,
    DecodePolicy,
    DecodeShape,
    Shape,
    StaircaseBuckets,
    bucket_for,
    bucket_run,
    padded_cells,
    round_up,
    waste,
)

Policy = DecodeBuckets | StaircaseBuckets


def lockstep(steps: int) -> tuple[list[Shape], DecodeBuckets]:
    """The seed's run: 3 rows of an 8-row cache, a 16-token prompt, `max_model_len = 16 + steps`."""
    return [Shape(3, 16 + j) for j in range(1, steps + 1)], DecodeBuckets(8, 16 + steps)


# The seed measurement.


@pytest.mark.parametrize(
    ("steps", "open_count", "bucketed_count", "percent", "open_cells", "padded"),
    [
        (8, 8, 1, "35.9%", 492, 768),
        (64, 64, 1, "54.5%", 9_312, 20_480),
        (128, 128, 2, "53.6%", 30_912, 66_560),
        (512, 512, 5, "38.5%", 418_560, 680_960),
    ],
)
def test_the_seed_table_to_the_digit(
    steps: int, open_count: int, bucketed_count: int, percent: str, open_cells: int, padded: int
) -> None:
    shapes, buckets = lockstep(steps)
    assert len(set(shapes)) == open_count
    assert len(set(bucket_run(shapes, buckets))) == bucketed_count
    assert sum(shape.cells for shape in shapes) == open_cells
    assert padded_cells(shapes, buckets) == padded
    assert f"{waste(shapes, buckets):.1%}" == percent
    assert waste(shapes, buckets) == 1 - open_cells / padded


@pytest.mark.parametrize(("multiple", "widths", "count"), [(128, 64, 576), (512, 16, 144), (2048, 4, 36), (8192, 1, 9)])
def test_the_product_of_256_rows_and_8192_tokens(multiple: int, widths: int, count: int) -> None:
    buckets = DecodeBuckets(256, 8192, width_multiple=multiple)
    assert (len(buckets.rows), len(buckets.widths), buckets.count) == (9, widths, count)
    assert len(set(buckets.shapes)) == count


# Ladders.


@pytest.mark.parametrize(
    ("most", "rows"),
    [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (6, (1, 2, 4, 6)), (8, (1, 2, 4, 8)), (9, (1, 2, 4, 8, 9))],
)
def test_row_buckets_are_powers_of_two_and_the_maximum(most: int, rows: tuple[int, ...]) -> None:
    assert DecodeBuckets(most, 128).rows == rows


@pytest.mark.parametrize(
    ("longest", "multiple", "widths"),
    [
        (1, 128, (1,)),
        (127, 128, (127,)),
        (128, 128, (128,)),
        (129, 128, (128, 129)),
        (24, 8, (8, 16, 24)),
        (5, 1, (1, 2, 3, 4, 5)),
    ],
)
def test_width_buckets_are_multiples_and_the_maximum(longest: int, multiple: int, widths: tuple[int, ...]) -> None:
    assert DecodeBuckets(1, longest, width_multiple=multiple).widths == widths


def test_the_last_width_is_max_model_len_and_never_the_multiple_past_it() -> None:
    buckets = DecodeBuckets(8, 8000)
    assert buckets.widths[-2:] == (7936, 8000)
    assert buckets.width_bucket(7990) == 8000
    assert buckets.shape_for(3, 7990) == Shape(4, 8000)
    with pytest.raises(ValueError, match=r"8001.*8000"):
        buckets.width_bucket(8001)
    with pytest.raises(ValueError, match=r"8001.*8000"):
        buckets.shape_for(1, 8001)


def test_explicit_ladders_are_taken_as_they_are() -> None:
    buckets = DecodeBuckets(8, 100, rows=[3, 8], widths=[7, 50, 100])
    assert (buckets.rows, buckets.widths, buckets.count) == ((3, 8), (7, 50, 100), 6)
    assert buckets.shapes == tuple(Shape(r, w) for r in (3, 8) for w in (7, 50, 100))


REFUSED = [
    ([0, 8], "0"),
    ([-1, 8], "-1"),
    ([4, 2, 8], "2 comes after 4"),
    ([2, 2, 8], "2 comes after 2"),
    ([1, 2, 4], "4"),
    ([1, 16], "16"),
    ([8, 16], "16"),
    ([1.5, 8], r"1\.5"),
    ([True, 8], "True"),
    ([], "8"),
]


@pytest.mark.parametrize(("ladder", "named"), REFUSED)
def test_an_unsound_ladder_is_refused_by_name_on_either_axis(ladder: list[int], named: str) -> None:
    with pytest.raises(ValueError, match=rf"rows.*{named}"):
        DecodeBuckets(8, 8, rows=ladder)
    with pytest.raises(ValueError, match=rf"widths.*{named}"):
        DecodeBuckets(8, 8, widths=ladder)
    with pytest.raises(ValueError, match=rf"widths of 8 rows.*{named}"):
        StaircaseBuckets(8, 8, {8: ladder})


@pytest.mark.parametrize(("ladders", "named"), [({4: [8], 2: [8], 8: [8]}, "2"), ({4: [8]}, "4"), ({}, "8")])
def test_a_staircase_needs_sound_row_buckets(ladders: dict[int, list[int]], named: str) -> None:
    with pytest.raises(ValueError, match=rf"rows.*{named}"):
        StaircaseBuckets(8, 8, ladders)


@pytest.mark.parametrize(
    ("arguments", "options", "named"),
    [
        ((0, 8), {}, "max_batch_size.*0"),
        ((8, 0), {}, "max_model_len.*0"),
        ((-3, 8), {"rows": [8]}, "max_batch_size.*-3"),
        ((8, -3), {"widths": [8]}, "max_model_len.*-3"),
        ((8, 8), {"width_multiple": 0}, "width_multiple.*0"),
        ((8, 8), {"width_multiple": -128}, "width_multiple.*-128"),
    ],
)
def test_limits_below_one_are_refused(arguments: tuple[int, int], options: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        DecodeBuckets(*arguments, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", [DecodeBuckets(6, 40, width_multiple=16), StaircaseBuckets(6, 40, {6: [16, 40]})])
@pytest.mark.parametrize(
    ("rows", "width", "numbers"), [(7, 1, "7.*6"), (0, 1, "0.*6"), (-1, 1, "-1.*6"), (1, 41, "41.*40"), (1, 0, "0.*40")]
)
def test_out_of_range_names_both_numbers(policy: Policy, rows: int, width: int, numbers: str) -> None:
    with pytest.raises(ValueError, match=numbers):
        policy.shape_for(rows, width)


# Lookups.


@given(policies())
def test_shape_for_covers_is_idempotent_and_stays_in_the_set(policy: Policy) -> None:
    for rows, width in product(range(1, policy.max_batch_size + 1), range(1, policy.max_model_len + 1)):
        shape = policy.shape_for(rows, width)
        assert shape.rows >= rows
        assert shape.width >= width
        assert shape in policy.shapes
        assert policy.shape_for(shape.rows, shape.width) == shape
        for between in range(width, shape.width + 1):
            assert policy.shape_for(rows, between) == shape


@given(policies())
def test_shape_for_is_monotone(policy: Policy) -> None:
    """More rows never give fewer graph rows; more columns at the same rows never a smaller shape."""
    for width in range(1, policy.max_model_len + 1):
        graph_rows = [policy.shape_for(rows, width).rows for rows in range(1, policy.max_batch_size + 1)]
        assert graph_rows == sorted(graph_rows)
    for rows in range(1, policy.max_batch_size + 1):
        shapes = [policy.shape_for(rows, width) for width in range(1, policy.max_model_len + 1)]
        assert [shape.width for shape in shapes] == sorted(shape.width for shape in shapes)
        assert {shape.rows for shape in shapes} == {shapes[0].rows}


@given(policies())
def test_lookup_is_the_smallest_covering_row_bucket_then_the_smallest_width_in_it(policy: Policy) -> None:
    for rows, width in product(range(1, policy.max_batch_size + 1), range(1, policy.max_model_len + 1)):
        row_bucket = min(s.rows for s in policy.shapes if s.rows >= rows)
        least = min(s.width for s in policy.shapes if s.rows == row_bucket and s.width >= width)
        assert policy.shape_for(rows, width) == Shape(row_bucket, least)
        assert policy.row_bucket(rows) == row_bucket


@given(policies())
def test_the_first_wide_enough_of_shapes_for_rows_is_shape_for(policy: Policy) -> None:
    for rows in range(1, policy.max_batch_size + 1):
        shapes = policy.shapes_for_rows(rows)
        widths = [shape.width for shape in shapes]
        assert widths == sorted(set(widths))
        assert widths[-1] == policy.max_model_len
        for width in range(1, policy.max_model_len + 1):
            assert shapes[bisect_left(widths, width)] == policy.shape_for(rows, width)


@pytest.mark.parametrize("policy", [DecodeBuckets(6, 40, width_multiple=16), StaircaseBuckets(6, 40, {6: [16, 40]})])
@pytest.mark.parametrize("rows", [7, 0, -1])
def test_shapes_for_rows_outside_the_limits_names_both_numbers(policy: Policy, rows: int) -> None:
    with pytest.raises(ValueError, match=rf"{rows} rows.*6"):
        policy.shapes_for_rows(rows)


def test_rows_of_one_bucket_have_the_same_tuple_of_shapes() -> None:
    """Pricing groups row counts by it: a new tuple each time would cost a comparison of every shape."""
    buckets = DecodeBuckets(6, 40, width_multiple=16)
    assert buckets.shapes_for_rows(3) is buckets.shapes_for_rows(4)
    assert buckets.shapes_for_rows(4) == (Shape(4, 16), Shape(4, 32), Shape(4, 40))
    captured = CaptureList(buckets.shapes)
    assert captured.shapes_for_rows(3) is captured.shapes_for_rows(4)
    assert captured.shapes_for_rows(4) == buckets.shapes_for_rows(4)


@given(policies())
def test_the_set_is_ascending_without_repeats_and_count_is_its_size(policy: Policy) -> None:
    assert list(policy.shapes) == sorted(set(policy.shapes))
    assert policy.count == len(policy.shapes)
    assert policy.shapes[-1] == Shape(policy.max_batch_size, policy.max_model_len)
    assert isinstance(policy, DecodePolicy)
    assert "\n" not in policy.render()
    assert str(policy.count) in policy.render()


@given(st.data())
def test_a_product_is_the_staircase_whose_ladders_are_all_the_same(data: st.DataObject) -> None:
    rows, widths = data.draw(ladders(MAX_ROWS)), data.draw(ladders(MAX_WIDTH))
    flat = DecodeBuckets(MAX_ROWS, MAX_WIDTH, rows=rows, widths=widths)
    stairs = StaircaseBuckets(MAX_ROWS, MAX_WIDTH, dict.fromkeys(rows, widths))
    assert flat.shapes == stairs.shapes
    assert flat.count == stairs.count
    for n, w in product(range(1, MAX_ROWS + 1), range(1, MAX_WIDTH + 1)):
        assert flat.shape_for(n, w) == stairs.shape_for(n, w)


def test_a_staircase_may_widen_its_columns_as_rows_grow() -> None:
    stairs = StaircaseBuckets(8, 64, {2: [16, 32, 64], 8: [64]})
    assert [str(stairs.shape_for(r, w)) for r, w in [(1, 5), (2, 17), (3, 5), (8, 64)]] == [
        "2x16",
        "2x32",
        "8x64",
        "8x64",
    ]


@pytest.mark.parametrize("policy", [DecodeBuckets(2, 8), StaircaseBuckets(2, 8, {2: [8]})])
def test_a_policy_is_a_value(policy: Policy) -> None:
    """It can be a key, and looking shapes up (which fills caches) changes neither its hash nor its equality."""
    again = DecodeBuckets(2, 8) if isinstance(policy, DecodeBuckets) else StaircaseBuckets(2, 8, {2: [8]})
    before = hash(policy)
    policy.shape_for(1, 1)
    assert policy == again
    assert hash(policy) == before == hash(again)


# Shapes and arithmetic.


def test_a_shape_is_ordered_named_and_priced() -> None:
    assert DecodeShape is Shape
    assert Shape(3, 17).cells == 51
    assert str(Shape(3, 17)) == "3x17"
    assert Shape(2, 100) < Shape(3, 1) < Shape(3, 2)


@pytest.mark.parametrize(("rows", "width"), [(0, 1), (1, 0), (-1, 5)])
def test_a_shape_has_a_row_and_a_column(rows: int, width: int) -> None:
    with pytest.raises(ValueError, match=f"{rows}x{width}"):
        Shape(rows, width)


@pytest.mark.parametrize("query_len", [0, 2, -1])
def test_one_query_token_a_row_until_speculative_decoding_exists(query_len: int) -> None:
    with pytest.raises(ValueError, match=rf"query_len.*{query_len}"):
        Shape(1, 1, query_len)
    with pytest.raises(ValueError, match=rf"query_len.*{query_len}"):
        DecodeBuckets(2, 8).shape_for(1, 1, query_len)
    assert Shape(1, 1, query_len=1) == Shape(1, 1)


def test_bucket_for_is_exact_on_the_boundaries() -> None:
    ladder = (4096, 8192)
    assert [bucket_for(v, ladder) for v in (1, 4095, 4096, 4097, 8192)] == [4096, 4096, 4096, 8192, 8192]
    for value in (0, -1, 8193):
        with pytest.raises(ValueError, match=rf"{value} is outside.*8192"):
            bucket_for(value, ladder)
    with pytest.raises(ValueError, match=r"empty ladder.*5"):
        bucket_for(5, ())


@given(st.integers(0, 10_000), st.integers(1, 500))
def test_round_up_is_the_smallest_multiple_that_holds_the_value(value: int, multiple: int) -> None:
    rounded = round_up(value, multiple)
    assert rounded % multiple == 0
    assert value <= rounded < value + multiple


@pytest.mark.parametrize("multiple", [0, -4])
def test_round_up_refuses_a_multiple_below_one(multiple: int) -> None:
    with pytest.raises(ValueError, match=str(multiple)):
        round_up(3, multiple)


def test_a_run_of_no_steps_wastes_nothing() -> None:
    buckets = DecodeBuckets(2, 8)
    assert bucket_run((), buckets) == ()
    assert padded_cells((), buckets) == 0
    assert waste((), buckets) == 0.0


def test_a_run_may_be_given_once_as_an_iterator() -> None:
    """`waste` looks at the run twice: an iterator exhausted by the first look would give 100%."""
    shapes, buckets = lockstep(8)
    assert waste(iter(shapes), buckets) == waste(shapes, buckets)


# Capture lists.


@given(capture_lists())
def test_find_is_the_fewest_rows_then_the_least_width_that_cover(captured: CaptureList) -> None:
    for rows, width in product(range(1, MAX_ROWS + 2), range(1, MAX_WIDTH + 2)):
        covering = [s for s in captured.shapes if s.rows >= rows and s.width >= width]
        assert captured.find(rows, width) == min(covering, default=None)


@given(capture_lists())
def test_the_first_wide_enough_of_shapes_for_rows_is_what_find_finds(captured: CaptureList) -> None:
    for rows in range(1, MAX_ROWS + 2):
        shapes = captured.shapes_for_rows(rows)
        widths = [shape.width for shape in shapes]
        assert widths == sorted(set(widths))
        for width in range(1, MAX_WIDTH + 2):
            at = bisect_left(widths, width)
            assert captured.find(rows, width) == (shapes[at] if at < len(shapes) else None)


def test_past_a_buckets_last_width_the_next_bucket_with_more_goes_on() -> None:
    captured = CaptureList([Shape(2, 8), Shape(2, 16), Shape(4, 12), Shape(8, 8), Shape(8, 20), Shape(8, 24)])
    assert captured.shapes_for_rows(1) == (Shape(2, 8), Shape(2, 16), Shape(8, 20), Shape(8, 24))
    assert captured.shapes_for_rows(3) == (Shape(4, 12), Shape(8, 20), Shape(8, 24))
    assert captured.shapes_for_rows(8) == (Shape(8, 8), Shape(8, 20), Shape(8, 24))
    assert captured.shapes_for_rows(9) == ()
    with pytest.raises(ValueError, match=r"at least one row.*-1"):
        captured.shapes_for_rows(-1)


@given(capture_lists())
def test_complete_adds_the_maxima_and_nothing_else(captured: CaptureList) -> None:
    policy = captured.complete(MAX_ROWS, MAX_WIDTH)
    added = {Shape(rows, MAX_WIDTH) for rows in {MAX_ROWS, *(s.rows for s in captured.shapes)}}
    assert set(policy.shapes) == set(captured.shapes) | added
    assert policy.shape_for(MAX_ROWS, MAX_WIDTH) == Shape(MAX_ROWS, MAX_WIDTH)
    assert CaptureList(policy.shapes).complete(MAX_ROWS, MAX_WIDTH) == policy


def test_a_capture_list_is_sorted_without_repeats() -> None:
    captured = CaptureList([Shape(4, 16), Shape(2, 8), Shape(4, 16)])
    assert captured.shapes == (Shape(2, 8), Shape(4, 16))
    assert captured.count == 2
    assert captured == CaptureList(iter([Shape(2, 8), Shape(4, 16)]))
    assert "\n" not in captured.render()


def test_beyond_the_top_there_is_no_graph_and_below_it_no_gap() -> None:
    captured = CaptureList([Shape(2, 8), Shape(8, 4)])
    assert captured.find(2, 8) == Shape(2, 8)
    assert captured.find(2, 9) is None
    assert captured.find(3, 4) == Shape(8, 4)
    assert captured.find(3, 5) is None
    assert captured.find(9, 1) is None


def test_a_capture_list_refuses_what_it_cannot_mean() -> None:
    with pytest.raises(ValueError, match="at least one shape"):
        CaptureList([])
    with pytest.raises(ValueError, match="0x4"):
        CaptureList([Shape(1, 1)]).find(0, 4)
    for limits in [(3, 16), (4, 15)]:
        with pytest.raises(ValueError, match=rf"4x16.*{limits[0]}x{limits[1]}"):
            CaptureList([Shape(4, 16)]).complete(*limits)
