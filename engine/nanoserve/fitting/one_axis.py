"""The best ladders on one axis while the other stays as it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nanoserve.fitting.axis import Axis, Candidates
from nanoserve.fitting.curve import Curve, Fitted
from nanoserve.fitting.histogram import StepsHistogram
from nanoserve.fitting.ladder import Ladder, best_paths, unreachable
from nanoserve.fitting.prices import Amounts, IntArray, Price, check_total, price_rows, prices_of


def fit_rows(histogram: StepsHistogram, axis: Axis, most: int, price: Price = price_rows) -> Curve[Ladder]:
    """The best row ladder of every size up to `most`, while each step keeps its own width.

    Exact: no ladder that `axis` allows costs less. Bucket the histogram's widths first where the engine does.
    ValueError where `axis` allows no ladder of `most` buckets, or holds no step as large as the traffic's.
    """
    return _fit(_Entries("rows", histogram.rows, histogram.width, histogram.weight), axis, most, price)


def fit_widths(histogram: StepsHistogram, axis: Axis, most: int, price: Price) -> Curve[Ladder]:
    """The best width ladder of every size up to `most`, while each step keeps its own rows; else as `fit_rows`."""
    order = np.argsort(histogram.width, kind="stable")
    entries = _Entries("width", histogram.width[order], histogram.rows[order], histogram.weight[order])
    return _fit(entries, axis, most, lambda width, rows: price(rows, width))


@dataclass(frozen=True, eq=False)
class _Entries:
    """A histogram seen from the axis `what`: ascending `values` on it, `others` across it."""

    what: str
    values: IntArray
    others: IntArray
    weight: Amounts


def _fit(entries: _Entries, axis: Axis, most: int, price: Price) -> Curve[Ladder]:
    """`price` takes the value on the axis first."""
    axis.check_count(most, entries.what)
    candidates = axis.candidates(entries.values, entries.what)
    largest = prices_of(price, np.array([axis.maximum]), entries.others).max().item()
    check_total(largest, entries.weight.sum().item())
    paths = best_paths(_bucket_costs(entries, candidates, price), most)
    tops = candidates.tops.tolist()
    points = tuple(Fitted(tuple(tops[j] for j in path.tops), path.cost, len(path.tops)) for path in paths if path)
    return Curve(axis.fewest, points)


def _bucket_costs(entries: _Entries, candidates: Candidates, price: Price) -> Amounts:
    """`cost[j, i]` of `nanoserve.fitting.ladder`: what is held at candidates `i..j`, each at the price of top `j`."""
    n = candidates.tops.size
    costs: Amounts | None = None
    for j, held in enumerate(_held_at_each_top(entries, candidates, price)):
        if costs is None:
            costs = np.full((n, n), unreachable(held.dtype), held.dtype)
        reach = candidates.reach[j]
        costs[j, reach : j + 1] = np.cumsum(held[::-1])[::-1][reach:]
    assert costs is not None
    return costs


def _held_at_each_top(entries: _Entries, candidates: Candidates, price: Price) -> Iterator[Amounts]:
    """For each top `j`: what the entries of each candidate `0..j` cost there. ValueError where the price falls."""
    position = candidates.position(entries.values)
    seen, starts = np.unique(position, return_index=True)
    ends = np.searchsorted(position, np.arange(candidates.tops.size), side="right")
    known = np.searchsorted(seen, np.arange(candidates.tops.size), side="right")
    before: Amounts = np.zeros(0, np.int64)
    for j, top in enumerate(candidates.tops):
        costs = entries.weight[: ends[j]] * prices_of(price, top[None], entries.others[: ends[j]])
        held = np.zeros(j + 1, costs.dtype)
        if known[j]:
            held[seen[: known[j]]] = np.add.reduceat(costs, starts[: known[j]])
        if (held[:j] < before).any():
            raise ValueError(f"the price falls as {entries.what} grow to {top}: it must never fall with the shape")
        before = held
        yield held
