"""The gates on a policy's arithmetic: each returns its figure, or says figure, limit and what to change."""

from __future__ import annotations

import pytest

from nanoserve import (
    CAPTURE_LIMIT,
    DEFAULT_WASTE_LIMIT,
    RECOMPILE_LIMIT,
    BucketsUnsound,
    DecodeBuckets,
    GateError,
    Shape,
    bucket_run,
    check_capture_budget,
    check_run_closed,
    check_shape_in_set,
    check_waste_bounded,
    waste,
)

BUCKETS = DecodeBuckets(8, 528)
RUN = tuple(Shape(3, width) for width in range(17, 529))


def test_the_limits_are_the_compilers_and_the_seeds() -> None:
    assert (RECOMPILE_LIMIT, CAPTURE_LIMIT, DEFAULT_WASTE_LIMIT) == (8, 64, 0.9)


def test_the_recompile_limit_is_dynamos_own() -> None:
    torch = pytest.importorskip("torch")
    assert torch._dynamo.config.recompile_limit == RECOMPILE_LIMIT


def test_a_shape_of_the_set_passes_and_comes_back() -> None:
    assert check_shape_in_set(Shape(4, 128), BUCKETS) == Shape(4, 128)


@pytest.mark.parametrize("shape", [Shape(3, 128), Shape(4, 127), Shape(16, 128), Shape(4, 4096)])
def test_a_shape_outside_the_set_is_named(shape: Shape) -> None:
    with pytest.raises(BucketsUnsound, match=rf"{shape} is not in the closed set.*shape_for.*20 shapes"):
        check_shape_in_set(shape, BUCKETS)


def test_a_bucketed_run_is_closed() -> None:
    assert check_run_closed(bucket_run(RUN, BUCKETS), BUCKETS) == 5


def test_an_open_run_is_not_closed() -> None:
    with pytest.raises(BucketsUnsound, match="3x17 is not in the closed set"):
        check_run_closed(RUN, BUCKETS)


def test_the_run_counts_distinct_presented_shapes_and_not_the_set_or_the_steps() -> None:
    """The set has 20 shapes and the run 1,000 steps; the compiler meets one."""
    assert check_run_closed([Shape(4, 128)] * 1000, BUCKETS, limit=1) == 1


def test_more_presented_shapes_than_the_compiler_keeps_is_an_error() -> None:
    presented = BUCKETS.shapes[:9]
    assert check_run_closed(presented[:8], BUCKETS) == 8
    assert check_run_closed(presented, BUCKETS, limit=9) == 9
    with pytest.raises(BucketsUnsound, match=r"9 distinct shapes.*keeps 8.*widen the buckets") as caught:
        check_run_closed(presented, BUCKETS)
    assert (caught.value.figure, caught.value.limit) == (9, 8)


def test_the_capture_budget_counts_the_whole_set() -> None:
    assert check_capture_budget(DecodeBuckets(256, 8192, width_multiple=2048)) == 36
    assert check_capture_budget(DecodeBuckets(1, 64, width_multiple=1)) == 64
    with pytest.raises(BucketsUnsound, match=r"576 shapes.*budget of 64.*coarsen") as caught:
        check_capture_budget(DecodeBuckets(256, 8192))
    assert (caught.value.figure, caught.value.limit) == (576, 64)
    assert check_capture_budget(DecodeBuckets(256, 8192), limit=576) == 576


def test_waste_is_returned_and_bounded() -> None:
    share = waste(RUN, BUCKETS)
    assert check_waste_bounded(RUN, BUCKETS) == share
    assert check_waste_bounded(RUN, BUCKETS, limit=share) == share
    with pytest.raises(BucketsUnsound, match=r"38\.5%.*30\.0%.*refine") as caught:
        check_waste_bounded(RUN, BUCKETS, limit=0.3)
    assert (caught.value.figure, caught.value.limit) == (share, 0.3)


def test_a_policy_of_one_huge_shape_is_taken_for_a_mistake() -> None:
    with pytest.raises(BucketsUnsound, match=r"97\.0%.*90\.0%"):
        check_waste_bounded([Shape(3, 22)], DecodeBuckets(8, 272, rows=[8], widths=[272]))


def test_a_gate_given_no_step_raises_though_no_steps_waste_nothing() -> None:
    """A gate that passes on nothing guards nothing: an empty trace would keep CI green for ever."""
    assert waste((), BUCKETS) == 0.0
    with pytest.raises(BucketsUnsound, match=r"check_run_closed.*no steps"):
        check_run_closed((), BUCKETS)
    with pytest.raises(BucketsUnsound, match=r"check_waste_bounded.*no steps"):
        check_waste_bounded(iter(()), BUCKETS)


def test_a_gate_is_an_assertion_that_python_o_cannot_remove() -> None:
    assert issubclass(BucketsUnsound, GateError)
    assert issubclass(GateError, AssertionError)
    error = GateError("said", figure=2, limit=1)
    assert (str(error), error.figure, error.limit) == ("said", 2, 1)
    assert (GateError("said").figure, GateError("said").limit) == (None, None)
