"""What one step costs at the shape it runs as: rows, cells, or seconds. The fits minimise the sum of it over a run.

A price takes the graph rows and graph widths of many steps at once, as arrays that broadcast, and never falls as
either grows. Everything in `nanoserve.fitting` goes through such a callable, so a price of your own is one function.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nanoserve.step_time import StepTime

IntArray = NDArray[np.int64]
Amounts = NDArray[Any]
"""Weights, prices and costs: int64 where all that went in is integer, so that sums are exact, else float64."""

Cost = int | float

LARGEST_TOTAL = 1 << 60
"""Integer costs stay below this; what cannot be reached costs twice as much, and two such sums still fit 64 bits."""


class Price(Protocol):
    """The price of a step that runs as `graph_rows x graph_width`, elementwise; integers stay integers."""

    def __call__(self, graph_rows: IntArray, graph_width: IntArray, /) -> Amounts:
        """An array of the broadcast shape of the two."""
        ...


def price_rows(graph_rows: IntArray, graph_width: IntArray, /) -> Amounts:
    """Padded rows: what a paged read computes outside attention."""
    return np.broadcast_arrays(graph_rows, graph_width)[0]


def price_cells(graph_rows: IntArray, graph_width: IntArray, /) -> Amounts:
    """Padded cells, as `price_run` counts them."""
    return graph_rows * graph_width


def price_time(model: StepTime) -> Price:
    """Nanoseconds of a step, as a model of step times has them: what the simulator would make it last."""
    lasts = np.vectorize(model.ns, otypes=[np.int64])

    def price(graph_rows: IntArray, graph_width: IntArray, /) -> Amounts:
        rows, cells = np.broadcast_arrays(graph_rows, graph_rows * graph_width)
        shapes, at = np.unique(np.stack([rows.ravel(), cells.ravel()]), axis=1, return_inverse=True)
        ns: Amounts = lasts(*shapes)[at].reshape(rows.shape)
        return ns

    return price


def prices_of(price: Price, graph_rows: IntArray, graph_width: IntArray) -> Amounts:
    """`price` as int64 or float64 of the broadcast shape; ValueError where it is not a finite number above 0."""
    prices = np.asarray(price(graph_rows, graph_width))
    prices = prices.astype(np.int64 if prices.dtype.kind in "iu" else np.float64, copy=False)
    if not (np.isfinite(prices) & (prices > 0)).all():
        raise ValueError("a price must be a finite number above 0 at every shape")
    return np.broadcast_to(prices, np.broadcast_shapes(graph_rows.shape, graph_width.shape))


def check_total(largest_price: Cost, total_weight: Cost) -> None:
    """ValueError where an integer cost could leave 64 bits."""
    exact = isinstance(largest_price, int) and isinstance(total_weight, int)
    if exact and largest_price * total_weight >= LARGEST_TOTAL:
        raise ValueError(
            f"{total_weight} steps at a price of up to {largest_price} do not add up in 64 bits: scale the weights down"
        )
