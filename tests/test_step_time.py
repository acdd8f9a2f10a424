"""How long a step lasts: each model's figures, what it refuses, and the text it is read from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoserve.step_time import FixedStep, LinearStepTime, StepTime, TableStepTime, parse_step_time


def test_a_fixed_step_lasts_as_long_whatever_runs() -> None:
    assert [FixedStep(25).ns(0, 0), FixedStep(25).ns(256, 2_097_152)] == [25, 25]


def test_a_linear_step_adds_its_rows_and_its_cells() -> None:
    model = LinearStepTime(100.0, 10.0, 0.25)
    assert model.ns(4, 4 * 128) == 100 + 40 + 128
    assert model.ns(4, 4 * 128 + 1) == 268  # 268.25
    assert model.ns(4, 4 * 128 + 3) == 269  # 268.75


def test_a_table_is_exact_at_its_entries_linear_between_and_constant_beyond() -> None:
    model = TableStepTime((2, 4, 12), (100.0, 200.0, 120.0))
    assert [model.ns(rows, rows * 7) for rows in (2, 4, 12)] == [100, 200, 120]
    assert [model.ns(rows, rows * 7) for rows in (3, 6, 8, 11)] == [150, 180, 160, 130]
    assert [model.ns(rows, rows * 7) for rows in (1, 13, 4096)] == [100, 120, 120]
    assert TableStepTime((8,), (3.0,)).ns(9, 9) == 3


def test_a_table_does_not_read_the_cells() -> None:
    assert TableStepTime((2, 4), (100.0, 200.0)).ns(3, 10**9) == 150


def test_a_step_that_only_prefills_is_the_constant_or_the_first_entry() -> None:
    assert LinearStepTime(100.0, 10.0, 0.25).ns(0, 0) == 100
    assert TableStepTime((2, 4), (100.0, 200.0)).ns(0, 0) == 100


@pytest.mark.parametrize("model", [LinearStepTime(0.0, 0.0, 0.1), TableStepTime((1, 3), (0.0, 0.4))])
def test_no_step_takes_no_time(model: StepTime) -> None:
    assert [model.ns(0, 0), model.ns(1, 1), model.ns(2, 2)] == [1, 1, 1]


@pytest.mark.parametrize("step_ns", [0, -25, 2.5, True])
def test_a_fixed_step_is_whole_nanoseconds(step_ns: int) -> None:
    with pytest.raises(ValueError, match=f"step_ns must be an integer of at least 1, got {step_ns}"):
        FixedStep(step_ns)


@pytest.mark.parametrize("name", ["t0_ns", "row_ns", "cell_ns"])
@pytest.mark.parametrize("value", [-0.5, float("nan"), float("inf")])
def test_a_linear_model_takes_finite_times_only(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a finite number of nanoseconds, 0 or more, got {value}"):
        LinearStepTime(**{"t0_ns": 1.0, "row_ns": 1.0, "cell_ns": 1.0, name: value})


@pytest.mark.parametrize(
    ("rows", "times", "named"),
    [
        ((), (), "got 0 and 0"),
        ((1, 2), (5.0,), "got 2 and 1"),
        ((0, 2), (5.0, 6.0), "at least 1, got 0"),
        ((1, 4, 4), (5.0, 6.0, 7.0), "strictly ascending: 4 comes after 4"),
        ((4, 2), (5.0, 6.0), "strictly ascending: 2 comes after 4"),
        ((1, 2), (5.0, -1.0), "the time of 2 rows .* got -1.0"),
        ((1, 2), (float("nan"), 6.0), "the time of 1 rows .* got nan"),
    ],
)
def test_a_table_that_measured_nothing_sensible_is_refused(
    rows: tuple[int, ...], times: tuple[float, ...], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        TableStepTime(rows, times)


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("25", FixedStep(25_000_000)),
        ("0.5", FixedStep(500_000)),
        ("0.000001", FixedStep(1)),
        ("linear:20,0.05,0.0000012", LinearStepTime(20e6, 50_000.0, 1.2)),
        ("linear:0,0,0", LinearStepTime(0.0, 0.0, 0.0)),
        ("table:1=5,8=5.25,256=31.5", TableStepTime((1, 8, 256), (5e6, 5.25e6, 31.5e6))),
    ],
)
def test_a_text_is_read_and_given_back(text: str, model: FixedStep | LinearStepTime | TableStepTime) -> None:
    assert parse_step_time(text) == model
    assert model.render() == text


TIMES = st.floats(0, 1e15)


@given(
    st.one_of(
        st.builds(FixedStep, st.integers(1, 10**15)),
        st.builds(LinearStepTime, TIMES, TIMES, TIMES),
        st.dictionaries(st.integers(1, 4096), TIMES, min_size=1).map(
            lambda table: TableStepTime(tuple(sorted(table)), tuple(table[rows] for rows in sorted(table)))
        ),
    )
)
def test_every_model_is_read_back_from_its_text(model: FixedStep | LinearStepTime | TableStepTime) -> None:
    assert parse_step_time(model.render()) == model


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "'' is no number of milliseconds"),
        ("fast", "'fast' is no number of milliseconds"),
        ("0", "step_ns must be an integer of at least 1, got 0"),
        ("-25", "step_ns must be an integer of at least 1, got -25000000"),
        ("0.0000001", "0.0000001 ms is no whole number of nanoseconds"),
        ("nan", "nan ms is no length of a step"),
        ("inf", "inf ms is no length of a step"),
        ("1e300", "1e300 ms is no length of a step"),
        ("1e999999999999999999", "'1e999999999999999999' is no number of milliseconds"),
        ("linear:1,2", "linear takes three numbers, got 2"),
        ("linear:1,2,x", "'x' is no number of milliseconds"),
        ("linear:1,-2,3", "row_ns must be a finite number of nanoseconds, 0 or more, got -2000000.0"),
        ("table:", "'' is no number of rows"),
        ("table:1=5,x=6", "'x' is no number of rows"),
        ("table:-1=5", "'-1' is no number of rows"),
        ("table:1=5,2", "'' is no number of milliseconds"),
        ("table:8=5,4=6", "the table's rows must be strictly ascending: 4 comes after 8"),
        ("cubic:1,2,3", "no model is called 'cubic'"),
    ],
)
def test_any_other_text_is_one_line_with_the_reason_and_the_forms(text: str, reason: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        parse_step_time(text)
    assert str(raised.value) == (
        f"step time {text!r}: {reason}; "
        "give 25 (ms a step), linear:T0,A,B (ms, ms a row, ms a cell) or table:ROWS=MS,ROWS=MS,..."
    )
