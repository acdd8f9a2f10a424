"""The best product `rows x widths` under a budget of shapes: a search, with the staircase optimum as its bound.

Given the widths, the best rows are one exact solve on one axis, and the other way round. Alternating the two never
raises the cost and ends where neither ladder can be improved alone. That is a local optimum, so it is run for every
split of the budget from several width ladders: every width, only the largest, and what suits every row and only the
largest in as few widths as the split has.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from nanoserve.buckets import DecodeBuckets
from nanoserve.fitting.axis import Axis, check_budget
from nanoserve.fitting.curve import Curve
from nanoserve.fitting.histogram import StepsHistogram
from nanoserve.fitting.ladder import Ladder
from nanoserve.fitting.one_axis import fit_rows, fit_widths
from nanoserve.fitting.prices import Cost, Price, price_cells

Split = tuple[int, int]


@dataclass(frozen=True)
class FittedProduct:
    """A product, what the run costs under it, and the cost that no policy of as many shapes can beat, where known."""

    best: DecodeBuckets
    cost: Cost
    bound: Cost | None = None

    @property
    def graphs(self) -> int:
        """How many shapes it has: at most the budget."""
        return self.best.count

    @property
    def split(self) -> Split:
        """How many row buckets, and how many width buckets."""
        return len(self.best.rows), len(self.best.widths)

    @property
    def gap(self) -> float | None:
        """How much more than the bound it costs, as a share of the bound; None without one."""
        return None if self.bound is None else self.cost / self.bound - 1.0


def fit_product(
    histogram: StepsHistogram,
    rows: Axis,
    widths: Axis,
    budget: int,
    price: Price = price_cells,
    *,
    bound: Cost | None = None,
) -> FittedProduct:
    """A product of at most `budget` shapes that no change of one of its ladders improves.

    A local optimum. Every product is a staircase: give the cost of the best staircase of the same budget as `bound`,
    and the result tells the gap. Of products found that cost the same it is the one with fewest shapes, then with the
    lowest row ladder. ValueError where the constraints need more shapes than `budget`, or the traffic goes beyond a
    maximum.
    """
    check_budget(rows, widths, budget)
    search = _Search.of(histogram, rows, widths, budget, price)
    splits = _splits(rows.fewest, widths.fewest, budget)
    starts = search.starts({n for _, n in splits})
    best = min(search.descend(split, start) for split in splits for start in starts)
    policy = DecodeBuckets(rows.maximum, widths.maximum, rows=best.rows, widths=best.widths)
    return FittedProduct(policy, best.cost, bound)


class _Product(NamedTuple):
    """In the order in which one is preferred."""

    cost: Cost
    graphs: int
    rows: Ladder
    widths: Ladder


@dataclass(frozen=True, eq=False)
class _Search:
    """The exact solves on each axis, done once for each ladder of the other."""

    histogram: StepsHistogram
    rows: Axis
    widths: Axis
    budget: int
    price: Price
    _rows_for: dict[Ladder, Curve[Ladder]] = field(default_factory=dict)
    _widths_for: dict[Ladder, Curve[Ladder]] = field(default_factory=dict)

    @classmethod
    def of(cls, histogram: StepsHistogram, rows: Axis, widths: Axis, budget: int, price: Price) -> _Search:
        """With the traffic rounded up to the candidates of both axes, which no ladder of them can tell apart."""
        row_tops = rows.candidates(histogram.rows, "rows").tops.tolist()
        width_tops = widths.candidates(histogram.width, "width").tops.tolist()
        return cls(histogram.bucket_widths(width_tops).bucket_rows(row_tops), rows, widths, budget, price)

    def rows_for(self, widths: Ladder) -> Curve[Ladder]:
        """The best row ladders under a width ladder."""
        if widths not in self._rows_for:
            most = self.budget // self.widths.fewest
            self._rows_for[widths] = fit_rows(self.histogram.bucket_widths(widths), self.rows, most, self.price)
        return self._rows_for[widths]

    def widths_for(self, rows: Ladder) -> Curve[Ladder]:
        """The best width ladders under a row ladder."""
        if rows not in self._widths_for:
            most = self.budget // self.rows.fewest
            self._widths_for[rows] = fit_widths(self.histogram.bucket_rows(rows), self.widths, most, self.price)
        return self._widths_for[rows]

    def starts(self, sizes: set[int]) -> list[Ladder]:
        """Width ladders to start from: every width, one width, and the best of `sizes` for every row and for one."""
        open_rows = tuple(sorted({*self.histogram.rows.tolist(), self.rows.maximum}))
        open_widths = tuple(sorted({*self.histogram.width.tolist(), self.widths.maximum}))
        suited = (self.widths_for(rows).at(size).best for rows in (open_rows, (self.rows.maximum,)) for size in sizes)
        return sorted({open_widths, (self.widths.maximum,), *suited})

    def descend(self, split: Split, widths: Ladder) -> _Product:
        """Alternates from a width ladder until neither axis improves."""
        most_rows, most_widths = split
        best: _Product | None = None
        while True:
            rows = self.rows_for(widths).at(most_rows).best
            fitted = self.widths_for(rows).at(most_widths)
            if best is not None and fitted.cost >= best.cost:
                return best
            best = _Product(fitted.cost, len(rows) * fitted.graphs, rows, fitted.best)
            widths = fitted.best


def _splits(fewest_rows: int, fewest_widths: int, budget: int) -> list[Split]:
    """The splits `(rows, widths)` of a budget in which neither number could be larger."""
    most_rows: dict[int, int] = {}
    for rows in range(fewest_rows, budget // fewest_widths + 1):
        most_rows[budget // rows] = rows
    return [(rows, widths) for widths, rows in most_rows.items()]
