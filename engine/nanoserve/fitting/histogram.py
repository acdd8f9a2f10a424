"""How often a run had each size: the only thing about the traffic that a fit looks at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nanoserve.buckets import DecodePolicy
from nanoserve.fitting.prices import LARGEST_TOTAL, Amounts, Cost, IntArray, Price, check_total, prices_of
from nanoserve.steps import Steps


@dataclass(frozen=True, eq=False)
class StepsHistogram:
    """Weight of the steps of each size `(rows, width)`: three arrays of one length, ascending by rows, then width.

    Weights are positive: int64 counts, which every fit adds up exactly, or float64 shares. Where only rows are known
    the width is 1. Build one with `of`, `of_rows` or `counted`; the constructor checks and raises ValueError.
    """

    rows: IntArray
    width: IntArray
    weight: Amounts

    def __post_init__(self) -> None:
        if not self.rows.size == self.width.size == self.weight.size:
            raise ValueError(f"{self.rows.size} rows, {self.width.size} widths and {self.weight.size} weights differ")
        if not self.rows.size:
            raise ValueError("a histogram needs at least one step: there is nothing to fit")
        if self.rows.dtype != np.int64 or self.width.dtype != np.int64 or self.weight.dtype not in (np.int64, float):
            raise ValueError(f"sizes must be int64, weights int64 or float64, got {self.weight.dtype} weights")
        if int(self.rows.min()) < 1 or int(self.width.min()) < 1:
            raise ValueError("a step has at least one row and one column")
        if not (np.isfinite(self.weight) & (self.weight > 0)).all():
            raise ValueError("weights must be finite and above 0: leave sizes without steps out")
        if self.weight.dtype == np.int64 and self.weight.sum(dtype=np.float64) >= LARGEST_TOTAL:
            raise ValueError(f"{self.weight.sum(dtype=np.float64):.3g} steps do not add up in 64 bits: scale them down")
        more_rows, more_width = np.diff(self.rows), np.diff(self.width)
        if not ((more_rows > 0) | ((more_rows == 0) & (more_width > 0))).all():
            raise ValueError("sizes must be strictly ascending by rows, then width: use StepsHistogram.counted")

    @classmethod
    def counted(cls, rows: IntArray, width: IntArray, weight: Amounts) -> StepsHistogram:
        """Sizes in any order, added up where they repeat; those of weight 0 are dropped."""
        order = np.lexsort((width, rows))
        rows, width, weight = rows[order], width[order], weight[order]
        new = np.ones(rows.size, bool)
        new[1:] = (np.diff(rows) != 0) | (np.diff(width) != 0)
        starts = np.flatnonzero(new)
        if starts.size < rows.size:
            weight = np.add.reduceat(weight, starts)
            rows, width = rows[starts], width[starts]
        kept = weight != 0
        return cls(rows[kept], width[kept], weight[kept])

    @classmethod
    def of(cls, steps: Steps) -> StepsHistogram:
        """The histogram of a run, from its segments: a segment opens at its first width and closes after its last.

        Equals `steps.histogram()`, without visiting a step; memory goes with the widest segment, not with the run.
        """
        parts = [_counts_by_width(steps, rows) for rows in np.unique(steps.rows).tolist()]
        if not parts:
            raise ValueError("a run of no steps has no histogram: there is nothing to fit")
        rows, width, weight = (np.concatenate(column) for column in zip(*parts, strict=True))
        return cls(rows, width, weight)

    @classmethod
    def of_rows(cls, weights: Mapping[int, Cost]) -> StepsHistogram:
        """A source that knows rows only (a paged read, a server's log): every width is 1, so cells are rows."""
        rows = np.array(list(weights), np.int64)
        values = list(weights.values())
        exact = all(isinstance(value, (int, np.integer)) for value in values)
        return cls.counted(rows, np.ones_like(rows), np.array(values, np.int64 if exact else np.float64))

    @classmethod
    def mixture(cls, parts: Iterable[tuple[StepsHistogram, Cost]]) -> StepsHistogram:
        """The sum of histograms, each times its factor. Integer factors of integer histograms stay exact.

        A long run counts for more than a short one; `normalised()` the parts first for each to count by its factor.
        """
        chosen = [(part, factor) for part, factor in parts if factor != 0]
        if any(factor < 0 for _, factor in chosen):
            raise ValueError("a mixture adds histograms up: no factor may be below 0")
        if not chosen:
            raise ValueError("a mixture needs at least one histogram with a factor above 0")
        return cls.counted(
            np.concatenate([part.rows for part, _ in chosen]),
            np.concatenate([part.width for part, _ in chosen]),
            np.concatenate([part.weight * factor for part, factor in chosen]),
        )

    def normalised(self) -> StepsHistogram:
        """The same shares with a total weight of 1."""
        return StepsHistogram(self.rows, self.width, self.weight / self.total)

    def with_prior(self, share: float, max_batch_size: int, max_model_len: int) -> StepsHistogram:
        """This traffic plus `share` of its weight, spread evenly over all sizes up to the maxima.

        Keeps unseen sizes sane. Every size becomes an entry: 24 bytes each. ValueError for a negative share.
        """
        if not share >= 0:
            raise ValueError(f"a prior is a share of at least 0, got {share}")
        if share == 0:
            return self
        rows = np.repeat(np.arange(1, max_batch_size + 1), max_model_len)
        width = np.tile(np.arange(1, max_model_len + 1), max_batch_size)
        even = np.full(rows.size, share * self.total / rows.size)
        return self.mixture([(self, 1), (StepsHistogram(rows, width, even), 1)])

    @property
    def total(self) -> Cost:
        """The weight of all steps."""
        total: Cost = self.weight.sum().item()
        return total

    def __len__(self) -> int:
        return self.rows.size

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StepsHistogram):
            return NotImplemented
        mine, theirs = (self.rows, self.width, self.weight), (other.rows, other.width, other.weight)
        return all(np.array_equal(a, b) for a, b in zip(mine, theirs, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def priced(self, price: Price) -> Cost:
        """What the run costs where every step runs at the size it has here: the sum of weight times price."""
        prices = prices_of(price, self.rows, self.width)
        check_total(prices.max().item(), self.total)
        cost: Cost = (self.weight * prices).sum().item()
        return cost

    def rows_only(self) -> StepsHistogram:
        """The weights by rows, all widths forgotten."""
        return StepsHistogram.counted(self.rows, np.ones_like(self.width), self.weight)

    def bucket_rows(self, ladder: Sequence[int]) -> StepsHistogram:
        """The same steps with their rows rounded up to an ascending ladder; ValueError beyond it."""
        return StepsHistogram.counted(_rounded_up(self.rows, ladder, "rows"), self.width, self.weight)

    def bucket_widths(self, ladder: Sequence[int]) -> StepsHistogram:
        """The same steps with their widths rounded up to an ascending ladder; ValueError beyond it."""
        return StepsHistogram.counted(self.rows, _rounded_up(self.width, ladder, "width"), self.weight)

    def presented(self, policy: DecodePolicy) -> StepsHistogram:
        """The same steps at the shapes they run as: its entries are the shapes used. ValueError beyond the limits."""
        graph_rows, graph_width = np.empty_like(self.rows), np.empty_like(self.width)
        for rows, part in self.by_rows():
            widths = self.width[part]
            at = 0
            while at < widths.size:
                shape = policy.shape_for(rows, int(widths[at]))
                end = int(np.searchsorted(widths, shape.width, side="right"))
                graph_rows[part][at:end], graph_width[part][at:end] = shape.rows, shape.width
                at = end
        return StepsHistogram.counted(graph_rows, graph_width, self.weight)

    def by_rows(self) -> Iterator[tuple[int, slice]]:
        """Each number of rows, and where its entries are."""
        values, starts = np.unique(self.rows, return_index=True)
        ends = [*starts[1:].tolist(), self.rows.size]
        for rows, start, end in zip(values.tolist(), starts.tolist(), ends, strict=True):
            yield rows, slice(start, end)


def _counts_by_width(steps: Steps, rows: int) -> tuple[IntArray, IntArray, IntArray]:
    """The entries of one number of rows."""
    chosen = steps.rows == rows
    first = steps.width[chosen]
    after = first + steps.steps[chosen]
    lowest, span = int(first.min()), int(after.max() - first.min()) + 1
    opened = np.bincount(first - lowest, minlength=span) - np.bincount(after - lowest, minlength=span)
    counts = np.cumsum(opened)
    seen = np.flatnonzero(counts)
    return np.full(seen.size, rows, np.int64), seen + lowest, counts[seen]


def _rounded_up(values: IntArray, ladder: Sequence[int], what: str) -> IntArray:
    tops = np.asarray(ladder, np.int64)
    if not tops.size or not (np.diff(tops) > 0).all():
        raise ValueError(f"a ladder of {what} must be strictly ascending, got {tuple(ladder)}")
    if int(values.max()) > int(tops[-1]):
        raise ValueError(f"the histogram has steps of {what} {int(values.max())}; the ladder ends at {int(tops[-1])}")
    return tops[np.searchsorted(tops, values)]
