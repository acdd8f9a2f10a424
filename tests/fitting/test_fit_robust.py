"""One list for several loads: the worst regret goes down, and the bound says how far it could."""

from __future__ import annotations

import pytest
from fitting_cases import Ladder, allowed_ladders, histograms
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoserve.fitting import Axis, Robust, StepsHistogram, fit_rows, minimax, price_rows

AXIS, SIZE = Axis(12), 3
QUIET = StepsHistogram.of_rows({rows: 10 for rows in range(1, 7)})
BUSY = StepsHistogram.of_rows({rows: 10 for rows in range(7, 13)})


def fit(histogram: StepsHistogram) -> Ladder:
    return fit_rows(histogram, AXIS, SIZE).at(SIZE).best


def cost(histogram: StepsHistogram, ladder: Ladder) -> float:
    return histogram.bucket_rows(ladder).priced(price_rows)


def regrets(loads: list[StepsHistogram], ladder: Ladder) -> tuple[float, ...]:
    return tuple(cost(load, ladder) / cost(load, fit(load)) for load in loads)


@settings(max_examples=60)
@given(st.lists(histograms(12, 1), min_size=1, max_size=3))
def test_the_worst_regret_lies_between_the_best_of_all_lists_and_every_load_alone(loads: list[StepsHistogram]) -> None:
    robust = minimax(loads, fit, cost, rounds=8)
    own = [cost(load, fit(load)) for load in loads]
    worst_of_each = {
        ladder: max(cost(load, ladder) / least for load, least in zip(loads, own, strict=True))
        for ladder in allowed_ladders(AXIS)
        if len(ladder) <= SIZE
    }
    assert robust.regrets == regrets(loads, robust.best)
    assert robust.worst == max(robust.regrets) == worst_of_each[robust.best]
    assert 1.0 <= robust.bound <= min(worst_of_each.values()) * (1 + 1e-12) <= robust.worst * (1 + 1e-12)
    assert robust.worst <= min(worst_of_each[fit(load)] for load in loads)
    assert sum(robust.weights) == pytest.approx(1.0)


@settings(max_examples=20)
@given(st.lists(histograms(12, 1), min_size=1, max_size=3))
def test_the_list_is_the_fit_to_the_mixture_it_names(loads: list[StepsHistogram]) -> None:
    robust = minimax(loads, fit, cost, rounds=4)
    parts = [(load, weight / cost(load, fit(load))) for load, weight in zip(loads, robust.weights, strict=True)]
    assert cost(StepsHistogram.mixture(parts), robust.best) == pytest.approx(
        cost(StepsHistogram.mixture(parts), fit(StepsHistogram.mixture(parts))), rel=1e-12
    )


def test_two_loads_share_the_graphs() -> None:
    loads = [QUIET, BUSY]
    assert (fit(QUIET), regrets(loads, fit(QUIET))) == ((3, 6, 12), (1.0, 1.2))
    assert (fit(BUSY), regrets(loads, fit(BUSY))) == ((8, 10, 12), (16 / 9, 1.0))
    assert fit(StepsHistogram.mixture([(QUIET, 1), (BUSY, 1)])) == (4, 8, 12)
    robust = minimax(loads, fit, cost)
    assert (robust.best, robust.regrets) == ((3, 7, 12), (10 / 9, 67 / 60))
    assert 1.114 < robust.bound < robust.worst


def test_a_load_alone_has_no_regret() -> None:
    assert minimax([QUIET], fit, cost, rounds=2) == Robust(fit(QUIET), (1.0,), (1.0,), 1.0)


def test_no_load_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one load"):
        minimax([], fit, cost)
