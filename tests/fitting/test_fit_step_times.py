"""From measured times to a model: a line or a table, whichever describes shapes that it did not see."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoserve.fitting import StepTimeFit, TimedShapes, fit_step_time
from nanoserve.fitting.step_times import fit_linear, fit_table
from nanoserve.step_time import LinearStepTime, StepTime, TableStepTime, parse_step_time

GRID = [(rows, width) for rows in (1, 2, 4, 8, 16, 32) for width in (128, 256, 512, 1024)]


def timed(times: dict[tuple[int, int], float], steps: dict[tuple[int, int], int] | None = None) -> TimedShapes:
    rows, width = np.array(list(times), np.int64).T
    counts = np.array([(steps or {}).get(shape, 1) for shape in times], np.int64)
    return TimedShapes(rows, width, counts, np.array(list(times.values()), np.float64))


def times_of(model: StepTime) -> dict[tuple[int, int], float]:
    return {(rows, width): float(model.ns(rows, rows * width)) for rows, width in GRID}


def fitted(shapes: TimedShapes, max_batch_size: int = 1) -> StepTimeFit:
    return fit_step_time(shapes, max_batch_size)


def columns(shapes: TimedShapes) -> Any:
    return shapes.where(np.ones(shapes.rows.size, bool))


class TestLinear:
    @given(st.floats(1e5, 1e8), st.floats(0, 1e6), st.floats(0, 1e3))
    def test_a_line_is_found_again(self, t0: float, row: float, cell: float) -> None:
        found = fitted(timed(times_of(LinearStepTime(t0, row, cell))))
        assert found.error < 1e-4
        for rows, width in GRID:
            expected = t0 + row * rows + cell * rows * width
            assert found.model.ns(rows, rows * width) == pytest.approx(expected, rel=1e-4, abs=2)

    @given(st.lists(st.floats(1e5, 1e8), min_size=len(GRID), max_size=len(GRID)))
    def test_a_larger_shape_is_never_faster(self, ns: list[float]) -> None:
        found = fit_linear(columns(timed(dict(zip(GRID, ns, strict=True)))))
        assert min(found.t0_ns, found.row_ns, found.cell_ns) >= 0
        assert max(found.t0_ns, found.row_ns, found.cell_ns) > 0

    def test_falling_times_are_a_constant(self) -> None:
        found = fit_linear(columns(timed({(rows, 128): 2e7 - rows * 1e5 for rows in (1, 2, 4, 8, 16)})))
        assert (found.row_ns, found.cell_ns) == (0.0, 0.0)
        assert 1.8e7 < found.t0_ns < 2e7

    def test_no_other_coefficients_miss_by_less(self) -> None:
        draw = np.random.default_rng(4)
        times = {
            shape: float(1e6 + 3e4 * shape[0] + 20 * shape[0] * shape[1]) * draw.uniform(0.7, 1.4) for shape in GRID
        }
        shapes = timed(times, {shape: int(draw.integers(1, 50)) for shape in GRID})
        best = fit_linear(columns(shapes))

        def missed(t0: float, row: float, cell: float) -> float:
            predicted = t0 + row * shapes.rows + cell * shapes.rows * shapes.width
            return float(shapes.steps @ (predicted / shapes.ns - 1) ** 2)

        least = missed(best.t0_ns, best.row_ns, best.cell_ns)
        for _ in range(300):
            t0, row, cell = np.array([best.t0_ns, best.row_ns, best.cell_ns]) * draw.uniform(0.8, 1.2, 3)
            assert missed(t0, row, cell) >= least * (1 - 1e-6)

    def test_what_is_printed_is_the_model(self) -> None:
        found = fitted(timed(times_of(LinearStepTime(1234567.891, 45678.9123, 281.6831234)))).model
        assert found.render() == "linear:1.23457,0.0456789,0.000281683"
        assert parse_step_time(found.render()) == found


class TestTable:
    def test_tiles_are_a_table(self) -> None:
        """Matrix tiles of 8 rows: every shape of 1 to 8 rows takes as long, whatever its width."""
        steps = TableStepTime((1, 8, 9, 16, 17, 32), (1e6, 1e6, 5e6, 5e6, 9e6, 9e6))
        rows = (1, 2, 3, 5, 8, 9, 11, 14, 16, 17, 20, 25, 32)
        found = fitted(timed({(r, w): float(steps.ns(r, r * w)) for r in rows for w in (128, 512, 1024)}))
        assert found.name == "table"
        assert found.errors["table"] < 0.05 < found.errors["linear"]
        assert [found.model.ns(r, r * 128) for r in rows] == [steps.ns(r, 0) for r in rows]

    def test_one_that_ends_below_the_largest_batch_is_not_kept(self) -> None:
        """Past its end a table is constant, and more rows would look free."""
        tiles = timed({(r, w): 1e6 * -(-r // 8) for r in (1, 4, 8, 9, 12, 16) for w in (128, 512)})
        assert fitted(tiles, 16).name == "table"
        beyond = fitted(tiles, 17)
        assert (beyond.name, beyond.most_rows, beyond.most_width) == ("linear", 16, 512)
        assert beyond.model.ns(64, 0) > beyond.model.ns(16, 0)

    def test_a_row_bucket_is_the_median_of_its_steps(self) -> None:
        times = {(4, 128): 3e6, (4, 256): 5e6, (4, 512): 9e6, (8, 128): 1e7}
        found = fit_table(columns(timed(times, {(4, 256): 3})))
        assert (found.rows, found.times_ns) == ((4, 8), (5e6, 1e7))
        assert fit_table(columns(timed(times, {(4, 512): 9}))).times_ns == (9e6, 1e7)

    def test_it_never_falls(self) -> None:
        found = fit_table(columns(timed({(1, 9): 4e6, (2, 9): 3e6, (4, 9): 6e6})))
        assert found.times_ns == (4e6, 4e6, 6e6)


class TestErrors:
    def test_they_are_of_shapes_left_out(self) -> None:
        """Every fifth shape is left out in turn; by hand."""
        draw = np.random.default_rng(5)
        times = {shape: 1e6 + 2e4 * shape[0] * draw.uniform(0.5, 1.5) for shape in GRID}
        shapes = timed(times)
        squares = []
        for fold in range(5):
            out = np.arange(len(GRID)) % 5 == fold
            model = fit_linear(shapes.where(~out))
            squares += [
                (model.ns(r, r * w) / times[r, w] - 1) ** 2 for (r, w), gone in zip(GRID, out, strict=True) if gone
            ]
        assert fitted(shapes).errors["linear"] == pytest.approx(np.sqrt(np.mean(squares)))

    def test_a_shape_weighs_by_its_steps(self) -> None:
        times = times_of(LinearStepTime(1e6, 1e5, 10.0))
        times[32, 1024] *= 3
        rare = fitted(timed(times, dict.fromkeys(GRID, 100) | {(32, 1024): 1}))
        often = fitted(timed(times, dict.fromkeys(GRID, 1) | {(32, 1024): 100}))
        assert rare.error < 0.1 < often.error

    def test_the_chosen_one_has_the_smaller_error(self) -> None:
        found = fitted(timed(times_of(LinearStepTime(1e6, 1e5, 10.0))))
        assert found.error == min(found.errors.values())

    def test_three_shapes_are_enough(self) -> None:
        found = fitted(timed({(1, 128): 1e6, (2, 128): 2e6, (4, 128): 4e6}))
        assert found.name == "linear"
        assert found.error < 1e-3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": [1, 2]}, "the columns differ in length: 2 rows, 3 widths, 3 steps, 3 times"),
        ({"ns": [1.0, 2.0, 0.0]}, "a step takes a finite time above 0"),
        ({"ns": [1.0, 2.0, float("nan")]}, "a step takes a finite time above 0"),
        ({"steps": [1, 2, 0]}, "a measured shape has at least one row, one column and one step"),
        ({"width": [1, 0, 1]}, "a measured shape has at least one row, one column and one step"),
    ],
)
def test_what_is_no_measurement(changes: dict[str, list[float]], message: str) -> None:
    given_columns: dict[str, list[float]] = {"rows": [1, 2, 4], "width": [8, 8, 8], "steps": [1, 1, 1], "ns": [1, 2, 3]}
    arrays = {
        name: np.array(values, np.float64 if name == "ns" else np.int64)
        for name, values in (given_columns | changes).items()
    }
    with pytest.raises(ValueError, match=message):
        TimedShapes(**arrays)


def test_two_shapes_are_too_few() -> None:
    with pytest.raises(ValueError, match="a model of step times needs at least 3 measured shapes, got 2"):
        timed({(1, 128): 1e6, (2, 128): 2e6})
