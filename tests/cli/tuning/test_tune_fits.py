"""Fits of a part: the solvers' own optimum, a prior chosen without looking at what is held out, one list for loads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tune_cases import drawn, evidence, recorded, rules, run_of

from nanoserve.buckets import DecodeBuckets
from nanoserve.fitting import Axis, StepsHistogram, fit_product, fit_rows, fit_staircase, price_cells
from nanoserve.steps import Steps
from nanoserve_cli.tuning import fits
from nanoserve_cli.tuning.evidence import Load, Part
from nanoserve_cli.tuning.fits import PREMIUM, PRIORS, PSEUDO_COUNT, UNTIMED_PRIOR, Rules, choose_prior, fit, with_prior
from nanoserve_cli.tuning.scoring import CELLS, ROWS

LOAD = evidence(drawn(150)).loads[0]
"""Requests of mixed lengths on up to 16 rows of 256 columns."""


class TestOneLoad:
    def test_the_curve_is_the_staircase_solvers(self) -> None:
        found, rule = fit(LOAD, CELLS, rules(), 0.0, 1000, 12), rules()
        solved = fit_staircase(LOAD.fit.histogram, rule.rows, rule.widths, 12)
        assert [(p.best, p.cost, p.graphs) for p in found.curve.points] == [
            (p.best, p.cost, p.graphs) for p in solved.points
        ]
        product = fit_product(LOAD.fit.histogram, rule.rows, rule.widths, 8, bound=solved.at(8).cost)
        assert (found.product, found.gap) == (product.best, product.gap)
        assert found.gap is not None
        assert found.gap >= 0

    def test_the_curve_of_rows_is_the_row_solvers(self) -> None:
        found = fit(LOAD, ROWS, rules(), 0.0, 1000, 12)
        solved = fit_rows(LOAD.fit.histogram.rows_only(), Axis(16), 12)
        assert [(p.best.shapes, p.cost) for p in found.curve.points] == [
            (DecodeBuckets(16, 256, rows=p.best, widths=[256]).shapes, p.cost) for p in solved.points
        ]
        assert found.product is None

    def test_what_is_proposed_at_a_budget(self) -> None:
        found = fit(LOAD, CELLS, rules(), 0.0, 1000, 12)
        staircase, product = found.candidates(8)
        assert staircase.policy == found.curve.at(8).best
        assert (staircase.name, product.name) == ("fitted staircase", "fitted product")
        assert max(staircase.policy.count, product.policy.count) <= 8
        (rows,) = fit(LOAD, ROWS, rules(), 0.0, 1000, 99).candidates(99)
        assert rows.policy.count <= 16, "no more graphs than there are rows"

    @pytest.mark.parametrize(
        "axis", [Axis(16, 8), Axis(16, forced=(3, 5)), Axis(16, max_pad=0.5), Axis(16, 4, forced=(1,), max_pad=0.75)]
    )
    def test_constraints_reach_the_solver(self, axis: Axis) -> None:
        found = fit(LOAD, CELLS, Rules(axis, Axis(256, 64), 16), 1e-2, 1000, 16)
        for one in found.candidates(16):
            rows = sorted({shape.rows for shape in one.policy.shapes})
            assert set(axis.forced) <= set(rows)
            assert all(top % axis.granularity == 0 or top in (*axis.forced, 16) for top in rows)
            for below, top in zip([0, *rows], rows, strict=False):
                assert (top - below - 1) / top <= (axis.max_pad or 1.0)
            assert {shape.width % 64 for shape in one.policy.shapes} == {0}

    def test_constraints_that_no_list_keeps_say_so(self) -> None:
        with pytest.raises(ValueError, match=r"4 shapes are too few: max_pad 0\.1 up to 16 takes at least"):
            fit(LOAD, CELLS, Rules(Axis(16, max_pad=0.1), Axis(256, 64), 4), 0.0, 1000, 4)
        with pytest.raises(ValueError, match=r"max_pad 0\.5 cannot be kept: 1 goes up to 8 at least"):
            fit(LOAD, ROWS, Rules(Axis(16, 8, max_pad=0.5), Axis(256), 16), 0.0, 1000, 16)


class TestPrior:
    @given(st.integers(1, 20), st.integers(1, 40), st.integers(1, 5), st.integers(1, 9), st.floats(1e-4, 2))
    def test_rounded_up_it_is_the_librarys(self, rows: int, width: int, by_rows: int, by: int, share: float) -> None:
        rule = Rules(Axis(rows, by_rows), Axis(width, by), 1)
        seen = StepsHistogram.counted(np.array([1, rows]), np.array([width, 1]), np.array([3, 4]))
        whole = seen.with_prior(share, rows, width)
        whole = whole.bucket_rows(rule.rows.allowed.tolist()).bucket_widths(rule.widths.allowed.tolist())
        found = with_prior(seen, share, CELLS, rule)
        assert (found.rows.tolist(), found.width.tolist()) == (whole.rows.tolist(), whole.width.tolist())
        assert found.weight == pytest.approx(whole.weight)

    def test_of_rows_it_is_over_rows(self) -> None:
        seen = StepsHistogram.of_rows({3: 10})
        found = with_prior(seen, 0.5, ROWS, Rules(Axis(5), Axis(4096), 1))
        assert found.rows.tolist() == [1, 2, 3, 4, 5]
        assert found.weight == pytest.approx([1, 1, 11, 1, 1])
        assert with_prior(seen, 0, ROWS, Rules(Axis(5), Axis(4096), 1)) is seen

    def test_the_largest_within_the_premium_is_chosen(self) -> None:
        chosen = choose_prior(LOAD, CELLS, rules())
        assert LOAD.inner is not None
        before, after = LOAD.inner
        costs = {}
        for share in PRIORS:
            seen = with_prior(before.histogram, share, CELLS, rules())
            best = fit_staircase(seen, rules().rows, rules().widths, 8).at(8).best
            costs[share] = after.histogram.presented(best).priced(price_cells)
        allowed = [share for share, cost in costs.items() if cost <= (1 + PREMIUM) * min(costs.values())]
        assert chosen == max(allowed)

    def test_a_prior_that_costs_nothing_is_taken_whole_and_one_that_costs_much_not_at_all(self) -> None:
        def chosen(steps: Steps, maximum: int, budget: int) -> float:
            load = recorded(steps, None, inner=(Part.of(steps), Part.of(steps))).loads[0]
            return choose_prior(load, ROWS, Rules(Axis(maximum), Axis(256), budget))

        assert chosen(run_of((3, 1, 100), (9, 1, 100)), 16, 3) == max(PRIORS), "3, 9 and 16, whatever the prior"
        few = run_of(*[(rows, 1, 25) for rows in (1, 2, 3, 4)])
        assert chosen(few, 256, 4) == min(PRIORS), "any more takes a bucket of the four away"

    def test_without_time_it_is_a_fixed_one(self) -> None:
        untimed = replace(LOAD, inner=None)
        assert choose_prior(untimed, CELLS, rules()) == UNTIMED_PRIOR

    def test_it_weighs_as_some_requests_at_least(self) -> None:
        assert fit(LOAD, ROWS, rules(), None, 5, 8).prior == PSEUDO_COUNT / 5
        assert fit(LOAD, ROWS, rules(), 1e-3, 5, 8).prior == 1e-3, "one that is given is taken as it is"
        assert fit(LOAD, ROWS, rules(), None, 10**9, 8).prior in PRIORS

    def test_an_unseen_size_is_not_left_to_the_maximum(self) -> None:
        steps = run_of((2, 1, 5000), (3, 1, 5000))
        load = recorded(steps, None).loads[0]
        narrow = fit(load, ROWS, rules(budget=5), 0.0, 1000, 5).curve.at(5).best
        wide = fit(load, ROWS, rules(budget=5), 1e-2, 1000, 5).curve.at(5).best
        assert isinstance(narrow, DecodeBuckets)
        assert isinstance(wide, DecodeBuckets)
        assert narrow.rows == (2, 3, 16)
        assert len(wide.rows) == 5
        assert set(wide.rows) > {2, 3}


class TestHeldOut:
    """Nothing of the part held out may reach a fitted list."""

    @pytest.mark.parametrize("objective", [CELLS, ROWS], ids=["cells", "rows"])
    def test_another_held_out_part_gives_the_same_fit(self, objective: Any) -> None:
        found = fit(LOAD, objective, rules(), None, 150, 12)
        other = replace(LOAD, held=Part.of(run_of((16, 100, 150), (1, 1, 3))))
        assert other.held is not LOAD.held
        assert fit(other, objective, rules(), None, 150, 12) == found

    def test_it_is_not_even_read(self) -> None:
        class Sealed:
            def __getattr__(self, name: str) -> Any:
                raise AssertionError(f"the held-out part was asked for its {name}")

        sealed: Any = Sealed()
        assert fit(replace(LOAD, held=sealed), CELLS, rules(), None, 150, 12).prior in PRIORS

    def test_the_solvers_see_the_fit_part_and_its_two_halves_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[float] = []

        def spy(histogram: StepsHistogram, *rest: Any) -> Any:
            seen.append(histogram.total)
            return fit_staircase(histogram, *rest)

        monkeypatch.setattr(fits, "fit_staircase", spy)
        fit(LOAD, CELLS, rules(), None, 150, 12)
        assert LOAD.inner is not None
        inner, whole = LOAD.inner[0].histogram.total, LOAD.fit.histogram.total
        priors = [total / inner - 1 for total in seen[:-1]]
        assert priors == pytest.approx(PRIORS)
        assert whole < seen[-1] <= whole * (1 + max(PRIORS))


class TestSeveralLoads:
    LOADS = evidence(drawn(150), loads=(0.5, 2.0), limits=(16, 256)).loads

    def test_the_mean_is_the_best_for_their_mixture(self) -> None:
        lists, search = fits.robust(self.LOADS, CELLS, rules(), "mean", 1e-2, 150)
        assert search is None
        assert [one.name for one in lists] == ["mean of loads, staircase", "mean of loads, product"]

        def mean_cost(policy: Any) -> float:
            scorers = [CELLS.scorer(load.fit) for load in self.LOADS]
            return sum(float(scorer.score(policy).cost / scorer.open) for scorer in scorers)

        own = [fit(load, CELLS, rules(), 1e-2, 150, 8).curve.at(8).best for load in self.LOADS]
        assert mean_cost(lists[0].policy) <= 1.01 * min(mean_cost(one) for one in own)

    def test_the_minimax_has_the_least_worst_regret(self) -> None:
        (one,), search = fits.robust(self.LOADS, CELLS, rules(), "minimax", 1e-2, 150)
        assert search is not None
        assert one.policy == search.best
        assert 1.0 <= search.bound <= search.worst
        assert min(search.regrets) >= 1.0 - 1e-12, "no list beats a load's own optimum under the same cost"
        mean, _ = fits.robust(self.LOADS, CELLS, rules(), "mean", 1e-2, 150)
        regrets = []
        for load in self.LOADS:
            seen = with_prior(load.fit.histogram.normalised(), 1e-2, CELLS, rules())
            own = fit_staircase(seen, rules().rows, rules().widths, 8).at(8)
            regrets.append(seen.presented(mean[0].policy).priced(price_cells) / own.cost)
        assert search.worst <= max(regrets) + 1e-12

    def test_rows_too(self) -> None:
        loads = [
            Load(1.0, Part(StepsHistogram.of_rows({rows: weight}), None), None) for rows, weight in ((3, 10), (12, 7))
        ]
        (one,), _ = fits.robust(loads, ROWS, rules(budget=3), "mean", 0.0, 150)
        assert one.policy.shapes == DecodeBuckets(16, 256, rows=[3, 12, 16], widths=[256]).shapes

    def test_a_busy_load_counts_for_no_more_than_a_quiet_one(self) -> None:
        mixed = fits.mixture(self.LOADS, CELLS)
        for load in self.LOADS:
            alone = StepsHistogram.mixture([(load.fit.histogram, 1 / load.fit.histogram.priced(price_cells))])
            assert alone.priced(price_cells) == pytest.approx(1.0)
        assert mixed.fit.histogram.priced(price_cells) == pytest.approx(len(self.LOADS))
        assert mixed.held is None
        assert mixed.inner is not None
        assert [part.histogram.priced(price_cells) for part in mixed.inner] == pytest.approx([2.0, 2.0])

    def test_a_load_without_time_leaves_none_to_choose_a_prior_by(self) -> None:
        assert fits.mixture([self.LOADS[0], replace(self.LOADS[1], inner=None)], CELLS).inner is None
        lists, _ = fits.robust([replace(one, inner=None) for one in self.LOADS], ROWS, rules(), "mean", None, 150)
        assert lists[0].policy.count <= 8

    def test_the_held_out_parts_are_not_read(self) -> None:
        class Sealed:
            def __getattr__(self, name: str) -> Any:
                raise AssertionError(f"the held-out part was asked for its {name}")

        sealed: Any = Sealed()
        loads = [replace(one, held=sealed) for one in self.LOADS]
        for how in ("mean", "minimax"):
            assert fits.robust(loads, CELLS, rules(), how, None, 150) == fits.robust(
                self.LOADS, CELLS, rules(), how, None, 150
            )
