"""What a run costs under a policy: cells, paddings and shapes, in closed form over segments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import attrgetter, itemgetter

import numpy as np
from numpy.typing import ArrayLike

from nanoserve.buckets import CaptureList, DecodePolicy, Shape
from nanoserve.steps import Column, Steps

# A lookup of rows x widths is done in blocks of at most so many, to stay in cache and bounded in memory.
LOOKUP_BLOCK = 1 << 16

_width_of = attrgetter("width")


@dataclass(frozen=True)
class RunCost:
    """One run under one policy. Cells are rows x columns summed over the steps.

    `steps_per_shape` is what the run presented on the list, ascending; `off_list_steps` ran eager and
    unpadded (always 0 under a policy). `padded_cells = live + ragged + width + row padding`.
    """

    steps: int
    open_shapes: int
    open_cells: int
    live_cells: int
    padded_cells: int
    width_padding: int
    row_padding: int
    shapes_available: int
    steps_per_shape: tuple[tuple[Shape, int], ...]
    off_list_steps: int

    @property
    def ragged_padding(self) -> int:
        """`open - live`: rows shorter than the longest of their step."""
        return self.open_cells - self.live_cells

    @property
    def shapes_used(self) -> int:
        """How many shapes of the set the run presented."""
        return len(self.steps_per_shape)

    @property
    def waste(self) -> float:
        """`1 - open / padded`: what the policy costs. 0.0 for a run of no steps."""
        return 1.0 - self.open_cells / self.padded_cells if self.padded_cells else 0.0

    @property
    def total_waste(self) -> float:
        """`1 - live / padded`: what the rectangle costs. 0.0 for a run of no steps."""
        return 1.0 - self.live_cells / self.padded_cells if self.padded_cells else 0.0


def price_run(steps: Steps, policy: DecodePolicy | CaptureList) -> RunCost:
    """Prices every step of a run without visiting it. To price many policies over one run, index it: `StepsIndex`.

    Equals the sum over `bucket_run`. ValueError where a step is outside the policy's limits.
    """
    return StepsIndex(steps).price(policy)


@dataclass(frozen=True, slots=True, eq=False, init=False)
class StepsIndex:
    """A run arranged for counting: how many steps have so many rows and at most that width, by binary search.

    `steps`, `open_shapes`, `open_cells` and `live_cells` are the run's totals; `rows` its distinct row counts,
    ascending; `widest` its largest width, 0 for a run of no steps. Memory follows the segments, never the steps.
    Raises ValueError for a run whose sums may not fit in 64 bits.
    """

    steps: int
    open_shapes: int
    open_cells: int
    live_cells: int
    rows: Column
    widest: int
    _line: _Line

    def __init__(self, steps: Steps) -> None:
        rows, rank = np.unique(steps.rows, return_inverse=True)
        widest = int((steps.width + steps.steps - 1).max(initial=0))
        stride = widest + 1  # Width 0, where nothing is, parts one row count from the next.
        most_rows = int(rows.max(initial=0))
        if max(2 * most_rows * widest * steps.total_steps, (rows.size + 1) * stride) >= 1 << 63:
            raise ValueError(
                f"{steps.total_steps} steps up to {most_rows}x{widest} may sum beyond 64 bits: price the run in parts"
            )
        first = rank * stride + steps.width
        line = _Line.of(first, first + steps.steps, stride)
        object.__setattr__(self, "steps", steps.total_steps)
        object.__setattr__(self, "open_shapes", line.covered)
        object.__setattr__(self, "open_cells", int(steps.open_cells_each.sum()))
        object.__setattr__(self, "live_cells", int(steps.live_cells.sum()))
        object.__setattr__(self, "rows", rows)
        object.__setattr__(self, "widest", widest)
        object.__setattr__(self, "_line", line)

    def steps_within(self, rows: ArrayLike, width: ArrayLike) -> Column:
        """How many steps have exactly `rows` rows and at most `width` columns; arrays are broadcast together."""
        start, place = self._places(rows, width)
        return self._line.steps_to(place) - self._line.steps_to(start)

    def widths_within(self, rows: ArrayLike, width: ArrayLike) -> Column:
        """The sum of the widths of the steps that `steps_within` counts."""
        start, place = self._places(rows, width)
        return self._line.widths_to(place) - self._line.widths_to(start)

    def histogram(self, row_edges: Sequence[int] | Column, width_edges: Sequence[int] | Column) -> Column:
        """Steps by ascending edges: `[i, j]` counts rows in `(row_edges[i-1], row_edges[i]]`, widths likewise.

        The first of either axis is from 0; steps past a last edge are not counted. ValueError for edges that are not
        strictly ascending integers of at least 1.
        """
        widths = _check_edges("width_edges", width_edges)
        ends = np.searchsorted(self.rows, _check_edges("row_edges", row_edges), "right")
        return np.stack([self._by_width(self.rows[a:b], widths)[0] for a, b in pairwise((0, *ends.tolist()))])

    def price(self, policy: DecodePolicy | CaptureList) -> RunCost:
        """What the run costs under a policy or a capture list. ValueError where a step is outside a policy's limits.

        Row counts that present the same shapes are priced together, by their steps between one width and the next.
        """
        if self.steps and not isinstance(policy, CaptureList):
            policy.shape_for(int(self.rows[-1]), self.widest)
        per_shape, widened, listed_open = self._present(policy)
        graph_cells = sum(count * shape.cells for shape, count in per_shape.items())
        return RunCost(
            steps=self.steps,
            open_shapes=self.open_shapes,
            open_cells=self.open_cells,
            live_cells=self.live_cells,
            padded_cells=graph_cells + self.open_cells - listed_open,
            width_padding=widened - listed_open,
            row_padding=graph_cells - widened,
            shapes_available=policy.count,
            steps_per_shape=tuple(sorted(per_shape.items(), key=itemgetter(0))),
            off_list_steps=self.steps - per_shape.total(),
        )

    def _present(self, policy: DecodePolicy | CaptureList) -> tuple[Counter[Shape], int, int]:
        """Steps of each shape used; their cells at the graph's width with their own rows; and their open cells."""
        per_shape: Counter[Shape] = Counter()
        widened = 0
        reach: list[int] = []  # How wide the list is for each row count: past it, a step is off the list.
        for shapes, group in groupby(self.rows.tolist(), policy.shapes_for_rows):
            rows = np.array(list(group), np.int64)
            reach += [shapes[-1].width if shapes else 0] * rows.size
            if not shapes:
                continue
            steps, row_steps = self._by_width(rows, np.fromiter(map(_width_of, shapes), np.int64, len(shapes)))
            used = np.flatnonzero(steps)
            for at, count, own_rows in zip(used.tolist(), steps[used].tolist(), row_steps[used].tolist(), strict=True):
                per_shape[shapes[at]] += count
                widened += own_rows * shapes[at].width
        return per_shape, widened, int(self.rows @ self.widths_within(self.rows, np.array(reach, np.int64)))

    def _places(self, rows: ArrayLike, width: ArrayLike) -> tuple[Column, Column]:
        """Where on the line the row count starts, and where `width` is; the start too for rows that the run lacks."""
        rank = np.searchsorted(self.rows, rows)
        known = rank < np.searchsorted(self.rows, rows, "right")
        start = rank * self._line.stride
        return start, start + known * np.clip(width, 0, self._line.stride - 1)

    def _by_width(self, rows: Column, widths: Column) -> tuple[Column, Column]:
        """Steps of these row counts between one of the ascending `widths` and the next; the sum of their rows."""
        steps, row_steps = np.zeros((2, widths.size), np.int64)
        block = max(1, LOOKUP_BLOCK // widths.size)
        for at in range(0, rows.size, block):
            some = rows[at : at + block]
            within = self.steps_within(some[:, None], widths)
            steps += within.sum(axis=0)
            row_steps += some @ within
        return np.diff(steps, prepend=0), np.diff(row_steps, prepend=0)


@dataclass(frozen=True, slots=True, eq=False)
class _Line:
    """Intervals of widths, those of each row count on a stretch of `stride` places of its own, as breakpoints.

    From each `place` to the next there are `density` intervals over every place; `steps_before` and `widths_before`
    are the sums over all places before it. A place's width is what it is past the start of its stretch.
    """

    stride: int
    place: Column
    density: Column
    steps_before: Column
    widths_before: Column

    @classmethod
    def of(cls, first: Column, past: Column, stride: int) -> _Line:
        """The intervals from `first` to just before `past`."""
        place = np.unique(np.concatenate((np.zeros(1, np.int64), first, past)))
        density = np.searchsorted(np.sort(first), place, "right") - np.searchsorted(np.sort(past), place, "right")
        changes = np.diff(density, prepend=-1) != 0
        place, density = place[changes], density[changes]
        length = np.diff(place)
        steps = density[:-1] * length
        widths = steps * (2 * (place[:-1] % stride) + length - 1) // 2
        return cls(stride, place, density, _sums_before(steps), _sums_before(widths))

    @property
    def covered(self) -> int:
        """How many places at least one interval covers."""
        return int(np.diff(self.place)[self.density[:-1] > 0].sum())

    def steps_to(self, place: Column) -> Column:
        """How many (interval, place) pairs there are up to `place`, itself included."""
        at = np.searchsorted(self.place, place, "right") - 1
        return self.steps_before[at] + self.density[at] * (place - self.place[at] + 1)

    def widths_to(self, place: Column) -> Column:
        """The sum of their widths: an arithmetic series from the breakpoint on."""
        at = np.searchsorted(self.place, place, "right") - 1
        count = place - self.place[at] + 1
        series: Column = self.density[at] * count * (2 * (self.place[at] % self.stride) + count - 1) // 2
        return self.widths_before[at] + series


def _sums_before(values: Column) -> Column:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(values)))


def _check_edges(name: str, edges: Sequence[int] | Column) -> Column:
    values = np.asarray(edges)
    if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer) or (np.diff(values, prepend=0) < 1).any():
        raise ValueError(f"{name} must be strictly ascending integers of at least 1, got {edges!r}")
    return values.astype(np.int64)
