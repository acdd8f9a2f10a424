"""What a run costs under a policy: cells, paddings and shapes, in closed form over segments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nanoserve.buckets import CaptureList, DecodePolicy, Shape
from nanoserve.steps import Steps

Lookup = Callable[[int, int], Shape | None]


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
    """Prices every step of a run without visiting it: a segment's padding is a difference of two prefix sums.

    Equals the sum over `bucket_run`. ValueError where a step is outside the policy's limits.
    """
    lookup: Lookup = policy.find if isinstance(policy, CaptureList) else policy.shape_for
    first, last = steps.width, steps.width + steps.steps - 1
    padded = width_padding = row_padding = off_list = 0
    per_shape: dict[Shape, int] = {}
    for rows in np.unique(steps.rows).tolist():
        chosen = steps.rows == rows
        low, high = first[chosen], last[chosen]
        below = 0
        for shape in _shapes_by_width(lookup, rows, int(low.min()), int(high.max())):
            count, width_sum = _overlap(low, high, below + 1, None if shape is None else shape.width)
            if shape is None:
                off_list += count
                padded += rows * width_sum
                break
            if count:
                per_shape[shape] = per_shape.get(shape, 0) + count
                padded += count * shape.cells
                width_padding += rows * (count * shape.width - width_sum)
                row_padding += count * (shape.rows - rows) * shape.width
            below = shape.width
    return RunCost(
        steps=steps.total_steps,
        open_shapes=count_open_shapes(steps),
        open_cells=int(steps.open_cells_each.sum()),
        live_cells=int(steps.live_cells.sum()),
        padded_cells=padded,
        width_padding=width_padding,
        row_padding=row_padding,
        shapes_available=policy.count,
        steps_per_shape=tuple(sorted(per_shape.items())),
        off_list_steps=off_list,
    )


def count_open_shapes(steps: Steps) -> int:
    """How many distinct `(rows, width)` the run has: the length of the union of its width intervals, row by row."""
    order = np.lexsort((steps.width, steps.rows))
    rows, first = steps.rows[order], steps.width[order]
    last = first + steps.steps[order] - 1
    # One number line with a gap between row counts, so that one running maximum serves all of them.
    offset = rows * (int(last.max(initial=0)) + 1)
    reached = np.maximum.accumulate(offset + last)
    covered = np.concatenate((np.zeros(1, np.int64), reached[:-1]))[: reached.size]
    return int(np.maximum(reached - np.maximum(covered, offset + first - 1), 0).sum())


def _shapes_by_width(lookup: Lookup, rows: int, low: int, high: int) -> list[Shape | None]:
    """The shapes that `rows` rows present as the width goes from `low` to `high`; None for the rest off the list."""
    shapes: list[Shape | None] = []
    width = low
    while width <= high:
        shape = lookup(rows, width)
        shapes.append(shape)
        if shape is None:
            break
        width = shape.width + 1
    return shapes


def _overlap(low: NDArray[np.int64], high: NDArray[np.int64], start: int, stop: int | None) -> tuple[int, int]:
    """How many of the widths in the intervals `low..high` fall in `start..stop`, and their sum."""
    first = np.maximum(low, start)
    last = high if stop is None else np.minimum(high, stop)
    count = np.maximum(last - first + 1, 0)
    return int(count.sum()), int((count * (first + last) // 2).sum())
