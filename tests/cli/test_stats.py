"""Distributions: numpy's percentiles, and never of zero samples."""

from __future__ import annotations

import numpy as np
import pytest

from nanoserve_cli.stats import Percentiles, Spread, percentiles


def test_no_figure_is_made_of_zero_samples() -> None:
    assert percentiles([]) is None
    assert percentiles(np.array([])) is None
    assert Spread.of(np.array([])) is None


def test_one_sample_is_every_percentile() -> None:
    assert percentiles([7]) == Percentiles(samples=1, mean=7.0, p50=7.0, p90=7.0, p99=7.0)
    assert Spread.of(np.array([7.0])) == Spread(samples=1, median=7.0, low=7.0, high=7.0)


def test_percentiles_interpolate_between_samples() -> None:
    """0..100: the p-th percentile is p; of (0, 1) the 90th is 0.9."""
    found = percentiles(range(101))
    assert found is not None
    assert (found.samples, found.mean, found.p50, found.p90, found.p99) == (101, 50.0, 50.0, 90.0, 99.0)
    two = percentiles([1, 0])
    assert two is not None
    assert (two.p50, two.p90, two.p99) == pytest.approx((0.5, 0.9, 0.99))


def test_a_spread_is_the_median_between_its_quartiles() -> None:
    assert Spread.of(np.array([4.0, 0.0, 3.0, 1.0, 2.0])) == Spread(samples=5, median=2.0, low=1.0, high=3.0)


def test_order_does_not_matter_and_the_input_is_left_as_it_was() -> None:
    values = [3.0, 1.0, 2.0]
    assert percentiles(values) == percentiles(sorted(values))
    assert values == [3.0, 1.0, 2.0]


def test_figures_are_plain_floats_so_that_they_go_into_json() -> None:
    found = percentiles(np.array([1, 2, 3]))
    assert found is not None
    assert {type(v) for v in (found.mean, found.p50, found.p90, found.p99)} == {float}
    assert type(found.samples) is int
