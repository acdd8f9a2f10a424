"""Small random cases for the fits, and the oracle: every ladder there is, priced step by step in plain Python."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
from hypothesis import strategies as st

from nanoserve.fitting import Axis, Price, StepsHistogram, price_cells, price_rows, price_time
from nanoserve.step_time import TableStepTime

Ladder = tuple[int, ...]


def affine(rows: Any, width: Any) -> Any:
    """Integer seconds, so to say: a constant, a share by rows and one by cells."""
    return 50 + 7 * rows + rows * width


def tiled(rows: Any, width: Any) -> Any:
    """Flat within tiles of 4 rows and 3 columns: many ladders cost the same."""
    return -(-rows // 4) * -(-width // 3)


EXACT = (price_rows, price_cells, affine, tiled)


def price_seconds(graph_rows: np.ndarray, graph_width: np.ndarray, /) -> np.ndarray:
    """A price in floats."""
    return 4e-3 + 1.3e-5 * graph_rows + 7.7e-8 * (graph_rows * graph_width)


SECONDS = (price_seconds, price_time(TableStepTime((1, 3, 6), (1e8, 1e8, 3.5e8))))


def price_at(price: Price, rows: int, width: int) -> Any:
    """The price of one shape, as a Python number."""
    return np.asarray(price(np.array([rows]), np.array([width]))).item()


@st.composite
def histograms(draw: Callable[..., Any], max_rows: int, max_width: int, *, floats: bool = False) -> StepsHistogram:
    """A few sizes, most of them missing."""
    size = st.tuples(st.integers(1, max_rows), st.integers(1, max_width))
    weight = st.floats(0.01, 9.0) if floats else st.integers(1, 40)
    weights = draw(st.dictionaries(size, weight, min_size=1, max_size=12))
    rows, width = np.array(list(weights), np.int64).T
    return StepsHistogram.counted(rows, width, np.array(list(weights.values())))


@st.composite
def axes(draw: Callable[..., Any], maximum: int) -> Axis:
    """Rules that some ladder satisfies: where `max_pad` is set, every size may be a top."""
    forced = tuple(draw(st.sets(st.integers(1, maximum), max_size=2)))
    if draw(st.booleans()):
        return Axis(maximum, 1, forced, draw(st.sampled_from((0.0, 0.2, 0.3, 0.5, 0.6, 0.75))))
    return Axis(maximum, draw(st.integers(1, 4)), forced)


def allowed_ladders(axis: Axis) -> Iterator[Ladder]:
    """Every ladder that satisfies the rule, straight from its words."""
    tops = [t for t in range(1, axis.maximum) if t % axis.granularity == 0 or t in axis.forced]
    for count in range(len(tops) + 1):
        for chosen in combinations(tops, count):
            ladder = (*chosen, axis.maximum)
            if set(axis.forced) <= set(ladder) and worst_pad(ladder) <= pad_limit(axis):
                yield ladder


def worst_pad(ladder: Ladder) -> Fraction:
    """The largest share of padding of any size: each size is looked at."""
    tops = {size: ladder[bisect_left(ladder, size)] for size in range(1, ladder[-1] + 1)}
    return max(Fraction(top - size, top) for size, top in tops.items())


def pad_limit(axis: Axis) -> Fraction:
    """The bound as the decimal that was written."""
    return Fraction(1) if axis.max_pad is None else Fraction(str(axis.max_pad))


def entries(histogram: StepsHistogram) -> list[tuple[int, int, Any]]:
    """`(rows, width, weight)` as Python numbers."""
    return list(zip(histogram.rows.tolist(), histogram.width.tolist(), histogram.weight.tolist(), strict=True))


def total_cost(histogram: StepsHistogram, price: Price, rows: Ladder | None, widths: Ladder | None) -> Any:
    """What the run costs under a product; None leaves an axis open."""

    def top(size: int, ladder: Ladder | None) -> int:
        return size if ladder is None else ladder[bisect_left(ladder, size)]

    return sum(weight * price_at(price, top(r, rows), top(w, widths)) for r, w, weight in entries(histogram))


class AllStaircases:
    """Every staircase of two rules with its cost: `(cost, shapes, {row bucket: widths})`."""

    def __init__(self, histogram: StepsHistogram, price: Price, rows: Axis, widths: Axis) -> None:
        self.histogram, self.price, self.rows = histogram, price, rows
        self.width_ladders = list(allowed_ladders(widths))
        self.costs: dict[tuple[int, int], list[tuple[Any, Ladder]]] = {}

    def __iter__(self) -> Iterator[tuple[Any, int, dict[int, Ladder]]]:
        for row_ladder in allowed_ladders(self.rows):
            choices = (self.row_bucket(below, top) for below, top in pairwise((0, *row_ladder)))
            for chosen in product(*choices):
                ladders = {top: widths for top, (_, widths) in zip(row_ladder, chosen, strict=True)}
                yield sum(cost for cost, _ in chosen), sum(map(len, ladders.values())), ladders

    def row_bucket(self, below: int, top: int) -> list[tuple[Any, Ladder]]:
        """The cost of the steps of `below + 1` to `top` rows, under every width ladder."""
        if (below, top) not in self.costs:
            held = [entry for entry in entries(self.histogram) if below < entry[0] <= top]
            self.costs[below, top] = [
                (sum(n * price_at(self.price, top, ladder[bisect_left(ladder, w)]) for _, w, n in held), ladder)
                for ladder in self.width_ladders
            ]
        return self.costs[below, top]
