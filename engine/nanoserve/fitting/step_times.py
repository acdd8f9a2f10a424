"""From the measured times of steps to a model of them: a line in rows and cells, or a table by rows.

The line is `t0 + a * graph_rows + b * graph_cells` by least squares with no coefficient below 0: a larger shape is
never faster. The table holds the median of every number of graph rows, never falling, since matrix tiles make steps
where a line has none. Which one describes the machine is decided on shapes that the fit did not see. What is made
small, and what decides, is the miss relative to the measured time, each shape weighing by the steps that it ran.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from nanoserve.step_time import LinearStepTime, TableStepTime

FOLDS = 5
DIGITS = 6
"""Significant digits of a fitted coefficient: what is printed is the model that was used."""


@dataclass(frozen=True, eq=False)
class TimedShapes:
    """Measured shapes as arrays of one length: graph rows and graph width, steps that ran so (int64), median ns
    (float64).

    ValueError where the lengths differ, fewer than three shapes were measured, one has no row, column or step, or a
    time is not above 0.
    """

    rows: NDArray[np.int64]
    width: NDArray[np.int64]
    steps: NDArray[np.int64]
    ns: NDArray[np.float64]

    def __post_init__(self) -> None:
        sizes = {"rows": self.rows.size, "widths": self.width.size, "steps": self.steps.size, "times": self.ns.size}
        if len(set(sizes.values())) > 1:
            raise ValueError("the columns differ in length: " + ", ".join(f"{n} {what}" for what, n in sizes.items()))
        if self.rows.size < 3:
            raise ValueError(f"a model of step times needs at least 3 measured shapes, got {self.rows.size}")
        if min(int(column.min()) for column in (self.rows, self.width, self.steps)) < 1:
            raise ValueError("a measured shape has at least one row, one column and one step")
        if not (np.isfinite(self.ns) & (self.ns > 0)).all():
            raise ValueError("a step takes a finite time above 0")

    def where(self, chosen: NDArray[np.bool_]) -> Columns:
        """The columns of some shapes."""
        return self.rows[chosen], self.width[chosen], self.steps[chosen], self.ns[chosen]


Columns = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]
"""Graph rows, graph widths, steps and ns."""

StepModel = LinearStepTime | TableStepTime


@dataclass(frozen=True)
class StepTimeFit:
    """The model chosen, its name, the error of each on shapes it was not fitted to, and how far was measured.

    `errors` are root mean squares of `predicted / measured - 1`: what a gain in predicted time must exceed to be one.
    """

    model: StepModel
    name: str
    errors: dict[str, float]
    most_rows: int
    most_width: int

    @property
    def error(self) -> float:
        """The chosen model's."""
        return self.errors[self.name]


def fit_step_time(timed: TimedShapes, max_batch_size: int) -> StepTimeFit:
    """Fits both models and keeps the one with the smaller error on the shapes left out, every fifth in turn.

    A table is constant past its last row bucket, where more rows would look free: one that ends below
    `max_batch_size` is not kept.
    """
    fits: dict[str, Callable[[Columns], StepModel]] = {"linear": fit_linear, "table": fit_table}
    order = np.lexsort((timed.width, timed.rows))
    fold = np.empty(order.size, np.int64)
    fold[order] = np.arange(order.size) % min(FOLDS, order.size)
    errors = {}
    for name, fit in fits.items():
        squares = 0.0
        for left_out in np.unique(fold).tolist():
            squares += _squares(fit(timed.where(fold != left_out)), timed.where(fold == left_out))
        errors[name] = float(np.sqrt(squares / int(timed.steps.sum())))
    most = int(timed.rows.max()), int(timed.width.max())
    name = min(errors, key=lambda name: errors[name]) if most[0] >= max_batch_size else "linear"
    return StepTimeFit(fits[name](timed.where(np.ones(order.size, bool))), name, errors, *most)


def _squares(model: StepModel, columns: Columns) -> float:
    """The squared misses of a model, added up over the steps."""
    rows, width, steps, ns = columns
    predicted = np.array([model.ns(r, r * w) for r, w in zip(rows.tolist(), width.tolist(), strict=True)])
    return float(steps @ (predicted / ns - 1) ** 2)


def fit_linear(columns: Columns) -> LinearStepTime:
    """Least squares over the three coefficients, none below 0: the best of every subset that keeps to that."""
    rows, width, steps, ns = columns
    weight = np.sqrt(steps)
    terms = np.stack([np.ones(rows.size), rows, rows * width], axis=1) / ns[:, None]
    scale = terms.max(axis=0)
    matrix = terms / scale * weight[:, None]
    best, least = np.zeros(3), np.inf
    for count in range(1, 4):
        for chosen in map(list, combinations(range(3), count)):
            solved = np.linalg.lstsq(matrix[:, chosen], weight, rcond=None)[0]
            miss = float(((matrix[:, chosen] @ solved - weight) ** 2).sum())
            if (solved >= 0).all() and miss < least:
                best, least = np.zeros(3), miss
                best[chosen] = solved / scale[chosen]
    return LinearStepTime(*(float(f"{value:.{DIGITS}g}") for value in best))


def fit_table(columns: Columns) -> TableStepTime:
    """The median time of every number of rows, raised to what fewer rows took where it lies below."""
    rows, _, steps, ns = columns
    buckets = np.unique(rows)
    medians = [_median(ns[rows == bucket], steps[rows == bucket]) for bucket in buckets.tolist()]
    rising = np.maximum.accumulate(np.round(medians))
    return TableStepTime(tuple(buckets.tolist()), tuple(rising.tolist()))


def _median(values: NDArray[np.float64], weights: NDArray[np.int64]) -> float:
    """The least value that half of the weight does not exceed."""
    order = np.argsort(values)
    reached = weights[order].cumsum()
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])
