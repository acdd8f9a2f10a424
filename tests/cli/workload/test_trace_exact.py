"""Text to integer nanoseconds, against exact fractions and the standard library's dates."""

from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoserve_cli.units import NS_PER_MS, NS_PER_S
from nanoserve_cli.workload.exact import datetime_ns, decimal_ns, whole_number

DIGITS = st.text("0123456789", min_size=1, max_size=25)


@given(sign=st.sampled_from(["", "-", "+"]), whole=DIGITS, fraction=DIGITS, exponent=st.integers(-30, 30))
def test_decimal_text_is_the_nearest_nanosecond_exactly(sign: str, whole: str, fraction: str, exponent: int) -> None:
    for text in (f"{sign}{whole}.{fraction}", f"{sign}{whole}.{fraction}e{exponent}"):
        for unit in (1, NS_PER_MS, NS_PER_S):
            assert decimal_ns(text, unit) == floor(Fraction(text) * unit + Fraction(1, 2))


@given(st.integers(0, 2**60), st.integers(0, 2**60))
def test_order_of_decimal_stamps_is_kept(a: int, b: int) -> None:
    first, second = sorted((a, b))
    assert decimal_ns(f"{first}e-12", NS_PER_S) <= decimal_ns(f"{second}e-12", NS_PER_S)


@given(
    st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)),
    st.integers(0, 999),
    st.integers(-14 * 60, 14 * 60),
    st.sampled_from(" T"),
)
def test_a_date_with_an_offset_is_the_instant_it_names(moment: datetime, ns: int, east: int, separator: str) -> None:
    aware = moment.replace(tzinfo=timezone(timedelta(minutes=east)))
    text = moment.isoformat(separator, "microseconds") + f"{ns:03d}" + aware.strftime("%z")
    since = aware - datetime(1970, 1, 1, tzinfo=UTC)
    assert datetime_ns(text) == since // timedelta(microseconds=1) * 1000 + ns


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1970-01-01 00:00:00", 0),
        ("1970-01-01T00:00:00.1Z", 100_000_000),
        ("2023-11-16 18:15:46.6805900", 1_700_158_546_680_590_000),
        ("2024-05-12 00:00:00.001163+00:00", 1_715_472_000_001_163_000),
        ("1970-01-01 01:30:00+0130", 0),
        ("1969-12-31 22:00:00-02", 0),
        (" 1970-01-01 00:00:01 ", NS_PER_S),
    ],
)
def test_dates_seen_in_traces(text: str, ns: int) -> None:
    assert datetime_ns(text) == ns


@pytest.mark.parametrize("text", ["", "nan", "inf", "1_000", "0x10", "1,5", ".", "1e", "1e999", "--1", "1" * 41, "٣"])
def test_what_is_no_decimal_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a decimal number"):
        decimal_ns(text, 1)


@pytest.mark.parametrize(
    "text", ["2023-13-01 00:00:00", "2023-02-29 00:00:00", "2023-01-01 00:60:00", "2023-01-01", "12:00"]
)
def test_impossible_dates_are_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the calendar words some of them
        datetime_ns(text)


@given(st.integers(-(10**18), 10**18), st.integers(0, 6))
def test_a_whole_number_may_be_written_with_a_point(value: int, zeros: int) -> None:
    assert whole_number(f"{value}.{'0' * zeros}") == value
    assert whole_number(f"{value}.{'0' * zeros}5") is None
