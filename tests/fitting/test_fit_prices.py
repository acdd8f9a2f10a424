"""The prices of a step: rows, cells and nanoseconds, elementwise over shapes that broadcast."""

from __future__ import annotations

import numpy as np

from nanoserve.fitting import price_cells, price_rows, price_time
from nanoserve.step_time import FixedStep, LinearStepTime, TableStepTime

ROWS, WIDTHS = np.array([[1], [4]]), np.array([10, 20, 30])


def test_prices_broadcast() -> None:
    assert price_rows(ROWS, WIDTHS).tolist() == [[1, 1, 1], [4, 4, 4]]
    assert price_cells(ROWS, WIDTHS).tolist() == [[10, 20, 30], [40, 80, 120]]
    assert price_time(LinearStepTime(500, 250, 12.5))(ROWS, WIDTHS).tolist() == [[875, 1000, 1125], [2000, 2500, 3000]]


def test_time_is_what_the_simulator_would_make_the_step_last() -> None:
    model = TableStepTime((2, 4, 8), (1e6, 2e6, 2e6))
    rows = np.arange(1, 10)
    assert price_time(model)(rows, np.array([7])).tolist() == [model.ns(int(r), int(r) * 7) for r in rows]
    assert price_time(model)(rows, np.array([7])).tolist()[:4] == [1_000_000, 1_000_000, 1_500_000, 2_000_000]


def test_a_fixed_step_costs_the_same_at_every_shape() -> None:
    assert price_time(FixedStep(25))(ROWS, WIDTHS).tolist() == [[25] * 3] * 2
