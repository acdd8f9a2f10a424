"""The best staircases: row buckets with width ladders of their own, under one budget of shapes, exactly.

What a staircase costs is a sum over its row buckets, so it is found in two solves. With candidate rows `r(0..n-1)`
and widths `w(0..m-1)`, let `ladder(b, q, a)` be the least cost of all steps above `r(a-1)` up to `r(b)` in one row
bucket with top `r(b)` and exactly `q` widths: the recurrence of `nanoserve.fitting.ladder` over the widths, for every
interval of rows at once. Then the least cost to hold the first `b + 1` candidate rows with exactly `s` shapes is

    best(b + 1, s) = min over q < s, a <= b of best(a, s - q) + ladder(b, q, a),        best(0, 0) = 0.

The first takes about `n^2 m^2 B / 4` additions for a budget of `B` shapes, the second `n^2 B^2 / 4`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nanoserve.buckets import StaircaseBuckets
from nanoserve.fitting.axis import Axis, Candidates, check_budget
from nanoserve.fitting.curve import Curve, Fitted
from nanoserve.fitting.histogram import StepsHistogram
from nanoserve.fitting.ladder import Ladder, best_paths, unreachable
from nanoserve.fitting.prices import Amounts, Price, check_total, price_cells, prices_of

_BATCH = 128  # row intervals at a time: the layers of their width solves stay in the cache


def fit_staircase(
    histogram: StepsHistogram, rows: Axis, widths: Axis, budget: int, price: Price = price_cells
) -> Curve[StaircaseBuckets]:
    """The best staircase for every number of shapes up to `budget`.

    Exact: no staircase whose row ladder `rows` allows, and each of whose width ladders `widths` allows, costs less. Of
    those that cost the same it is the one of fewest shapes; then, from the largest row bucket down, the one with
    fewest widths in it, then with the lowest next row bucket; its ladders are chosen as in `best_paths`.
    ValueError where the constraints need more shapes than `budget`, or the traffic goes beyond a maximum.
    """
    check_budget(rows, widths, budget)
    grid = _Grid.of(histogram, rows, widths, price)
    ladders = [_interval_costs(grid, b, budget) for b in range(grid.rows.tops.size)]
    best = _partitions(ladders, budget)
    least = rows.fewest * widths.fewest
    points: list[Fitted[StaircaseBuckets]] = []
    for shapes in range(least, budget + 1):
        cost = best[-1, shapes].item()
        if points and cost >= points[-1].cost:
            points.append(points[-1])
            continue
        buckets = dict(grid.row_bucket(*bucket) for bucket in _trace(ladders, best, shapes))
        points.append(Fitted(StaircaseBuckets(rows.maximum, widths.maximum, buckets), cost, shapes))
    return Curve(least, tuple(points))


@dataclass(frozen=True, eq=False)
class _Grid:
    """The traffic and the prices on the grid of candidate rows x candidate widths.

    `below[a, c]` is the weight of the first `a` rows and `c` widths, `[n + 1, m + 1]`; `prices` is `[n, m]`.
    """

    rows: Candidates
    widths: Candidates
    below: Amounts
    prices: Amounts

    @classmethod
    def of(cls, histogram: StepsHistogram, rows: Axis, widths: Axis, price: Price) -> _Grid:
        row_tops = rows.candidates(histogram.rows, "rows")
        width_tops = widths.candidates(histogram.width, "width")
        prices = prices_of(price, row_tops.tops[:, None], width_tops.tops)
        check_total(prices.max().item(), histogram.total)
        if (np.diff(prices, axis=0) < 0).any() or (np.diff(prices, axis=1) < 0).any():
            raise ValueError("the price falls as the shape grows: it must never fall")
        below = np.zeros((row_tops.tops.size + 1, width_tops.tops.size + 1), histogram.weight.dtype)
        at = (row_tops.position(histogram.rows) + 1, width_tops.position(histogram.width) + 1)
        np.add.at(below, at, histogram.weight)
        return cls(row_tops, width_tops, below.cumsum(axis=0).cumsum(axis=1), prices)

    def row_bucket(self, a: int, b: int, widths: int) -> tuple[int, Ladder]:
        """The top of the row bucket that holds candidates `a..b`, and its best ladder of `widths` widths."""
        weight = self.below[b + 1] - self.below[a]
        m = self.widths.tops.size
        costs = self.prices[b][:, None] * (weight[1:, None] - weight[:-1])
        j, i = np.indices((m, m))
        costs[(i > j) | (i < self.widths.reach[:, None])] = unreachable(costs.dtype)
        path = best_paths(costs, widths)[-1]
        assert path is not None
        return int(self.rows.tops[b]), tuple(self.widths.tops[list(path.tops)].tolist())


def _interval_costs(grid: _Grid, b: int, most: int) -> Amounts:
    """`ladder(b, q, a)` as `[most + 1, b + 1]`: every row interval that ends at candidate `b`."""
    dtype = np.result_type(grid.below, grid.prices)
    costs = np.full((most + 1, b + 1), unreachable(dtype), dtype)
    for start in range(int(grid.rows.reach[b]), b + 1, _BATCH):
        batch = slice(start, min(start + _BATCH, b + 1))
        weight = np.ascontiguousarray((grid.below[b + 1] - grid.below[batch]).T)
        costs[:, batch] = _width_solves(weight, grid.prices[b], grid.widths.reach, most)
    return costs


def _width_solves(weight: Amounts, prices: Amounts, reach: Amounts, most: int) -> Amounts:
    """The recurrence over widths for a batch of row intervals: `[most + 1, batch]`, exactly 0, 1, ... widths.

    `weight[c]` is what each interval holds of the first `c` widths, `[m + 1, batch]`.
    """
    m = len(prices)
    dtype = np.result_type(weight, prices)
    best = np.full((most + 1, m + 1, weight.shape[1]), unreachable(dtype), dtype)
    best[0, 0] = 0
    for j in range(m):
        held = slice(int(reach[j]), j + 1)
        layers = min(most, j + 1)
        cost = prices[j] * (weight[j + 1] - weight[held])
        best[1 : layers + 1, j + 1] = (best[:layers, held] + cost).min(axis=1)
    return best[:, m]


def _partitions(ladders: list[Amounts], budget: int) -> Amounts:
    """`best(m, s)` of the module, `[n + 1, budget + 1]`."""
    dtype = ladders[0].dtype
    best = np.full((len(ladders) + 1, budget + 1), unreachable(dtype), dtype)
    best[0, 0] = 0
    for b, costs in enumerate(ladders):
        for shapes in range(1, budget + 1):
            best[b + 1, shapes] = _choices(costs, best, shapes).min()
    return best


def _choices(costs: Amounts, best: Amounts, shapes: int) -> Amounts:
    """What each last row bucket costs with the best of what is below it: `[q - 1, a]`, `shapes` in all."""
    b = costs.shape[1] - 1
    return costs[1 : shapes + 1] + best[: b + 1, :shapes].T[::-1]


def _trace(ladders: list[Amounts], best: Amounts, shapes: int) -> list[tuple[int, int, int]]:
    """The row buckets `(a, b, widths)` of the best staircase of exactly `shapes`, ascending."""
    buckets = []
    held = len(ladders)
    while held:
        choices = _choices(ladders[held - 1], best, shapes)
        widths, a = np.unravel_index(int(choices.argmin()), choices.shape)
        buckets.append((int(a), held - 1, int(widths) + 1))
        held, shapes = int(a), shapes - int(widths) - 1
    return buckets[::-1]
