"""The peak of a live set and the placement of values in one block, against brute force."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoserve.liveness import ALIGNMENT, Lifetime, live_peak, place

SPANS = [(0, 0), (0, 1), (1, 1), (1, 2), (0, 2)]


@st.composite
def lifetimes(draw: st.DrawFn, most: int = 12) -> list[Lifetime]:
    first = draw(st.lists(st.integers(0, 9), max_size=most))
    return [Lifetime(draw(st.integers(0, 3000)), at, at + draw(st.integers(0, 6))) for at in first]


def brute_peak(values: list[Lifetime]) -> int:
    moments = range(max((value.last for value in values), default=0) + 1)
    return max(sum(value.padded for value in values if value.first <= at <= value.last) for at in moments)


def assert_sound(values: list[Lifetime]) -> int:
    """No two that live at one time overlap, and everything lies within what was asked for. Returns the bytes."""
    offsets, nbytes = place(values)
    assert len(offsets) == len(values)
    for i, (value, offset) in enumerate(zip(values, offsets, strict=True)):
        assert offset >= 0
        assert offset % ALIGNMENT == 0
        assert offset + value.padded <= nbytes
        for other, its in zip(values[:i], offsets[:i], strict=True):
            if value.first <= other.last and other.first <= value.last:
                assert offset + value.padded <= its or its + other.padded <= offset
    assert live_peak(values) <= nbytes <= sum(value.padded for value in values)
    return nbytes


def test_alignment_is_cudas_512_bytes() -> None:
    assert ALIGNMENT == 512
    assert [Lifetime(n, 0, 0).padded for n in (0, 1, 512, 513, 1024)] == [0, 512, 512, 1024, 1024]


def test_nothing_needs_nothing() -> None:
    assert live_peak([]) == 0
    assert place([]) == ((), 0)


def test_a_value_is_alive_at_its_first_and_at_its_last_operation() -> None:
    """The reader of the last operation writes its own result while its operand is still needed."""
    assert live_peak([Lifetime(512, 0, 1), Lifetime(512, 1, 2)]) == 1024
    assert live_peak([Lifetime(512, 0, 0), Lifetime(512, 1, 2)]) == 512


def test_a_chain_needs_two_places_however_long() -> None:
    chain = [Lifetime(512, at, at + 1) for at in range(50)]
    assert live_peak(chain) == 1024
    assert assert_sound(chain) == 1024


def test_values_that_never_meet_lie_in_one_place() -> None:
    values = [Lifetime(size, at, at) for at, size in enumerate((100, 4000, 700, 2048))]
    assert place(values) == ((0, 0, 0, 0), 4096)


def test_a_small_value_takes_the_gap_between_two_large_ones() -> None:
    """The gap that a dead value left, not the end of the block."""
    values = [Lifetime(4096, 0, 9), Lifetime(2048, 0, 4), Lifetime(1024, 0, 9), Lifetime(512, 5, 9)]
    assert assert_sound(values) == live_peak(values) == 7168


def test_a_value_of_no_bytes_disturbs_nobody() -> None:
    assert assert_sound([Lifetime(0, 0, 5), Lifetime(512, 0, 5), Lifetime(0, 2, 2)]) == 512


@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_small_case_is_sound_and_its_peak_is_the_slow_one(count: int) -> None:
    """All of a few spans in three sizes: 3,375 cases of three values."""
    kinds = [Lifetime(nbytes, *span) for nbytes in (1, 600, 1500) for span in SPANS]
    for values in map(list, product(kinds, repeat=count)):
        assert live_peak(values) == brute_peak(values)
        assert_sound(values)


@given(lifetimes())
@settings(max_examples=300)
def test_the_peak_is_the_slow_one(values: list[Lifetime]) -> None:
    assert live_peak(values) == (brute_peak(values) if values else 0)


@given(lifetimes(most=25))
@settings(max_examples=300)
def test_placement_never_overlaps_live_values_and_never_beats_the_peak(values: list[Lifetime]) -> None:
    assert_sound(values)


@given(lifetimes(most=25))
def test_placement_is_the_same_every_time(values: list[Lifetime]) -> None:
    assert place(values) == place(list(values))


@given(lifetimes(most=25))
def test_later_or_longer_or_larger_never_lowers_the_peak(values: list[Lifetime]) -> None:
    longer = [Lifetime(value.nbytes, value.first, value.last + 1) for value in values]
    larger = [Lifetime(value.nbytes + 512, value.first, value.last) for value in values]
    assert live_peak(longer) >= live_peak(values)
    assert live_peak(larger) >= live_peak(values)
    peaks = [live_peak(values[:count]) for count in range(len(values) + 1)]
    assert all(before <= after for before, after in pairwise(peaks))
