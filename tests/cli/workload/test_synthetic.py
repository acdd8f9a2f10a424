"""Synthetic traffic: what a length text means, what a rate and a burstiness mean, and what a seed fixes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoserve.workload import Workload
from nanoserve_cli.units import NS_PER_S
from nanoserve_cli.workload.synthetic import (
    FixedLength,
    LengthSpec,
    LogNormalLength,
    UniformLength,
    arrivals,
    parse_length,
    synthetic_workload,
)

N = 200_000


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("128", FixedLength(128)),
        ("fixed:128", FixedLength(128)),
        (" uniform:16,64 ", UniformLength(16, 64)),
        ("lognormal:512,1.5", LogNormalLength(512.0, 1.5)),
        ("lognormal:512.5,0,4096", LogNormalLength(512.5, 0.0, 4096)),
    ],
)
def test_length_texts(text: str, spec: LengthSpec) -> None:
    assert parse_length(text) == spec


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "invalid literal"),
        ("0", "from 1 to 2147483647, got 0"),
        ("-5", "got -5"),
        ("12.5", "invalid literal"),
        ("uniform:5", "give N"),
        ("uniform:9,5", "the lower bound 9 is above the upper bound 5"),
        ("uniform:0,5", "got 0"),
        ("lognormal:nan,1", "the mean must be a positive number of tokens, got nan"),
        ("lognormal:0,1", "the mean must be"),
        ("lognormal:10,-1", "sigma must be 0 or more, got -1"),
        ("lognormal:10,inf", "sigma must be 0 or more, got inf"),
        ("lognormal:10,1,0", "got 0"),
        ("poisson:5", "give N"),
    ],
)
def test_a_bad_length_text_is_quoted_with_its_fault_and_the_syntax(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        parse_length(text)
    assert str(caught.value).startswith(f"bad length {text!r}: ")
    assert str(caught.value).endswith("N | fixed:N | uniform:LO,HI | lognormal:MEAN,SIGMA[,MAX]")


def test_uniform_lengths_include_both_bounds_equally() -> None:
    values, counts = np.unique(UniformLength(3, 5).draw(N, rng()), return_counts=True)
    assert values.tolist() == [3, 4, 5]
    assert np.allclose(counts / N, 1 / 3, atol=0.01)


def test_the_lognormal_mean_is_the_mean_of_the_lengths_and_not_of_their_logs() -> None:
    lengths = LogNormalLength(500, 0.8).draw(N, rng())
    assert lengths.mean() == pytest.approx(500, rel=0.01)
    assert np.log(lengths).std() == pytest.approx(0.8, rel=0.01)
    assert np.median(lengths) == pytest.approx(500 * np.exp(-0.32), rel=0.01)


def test_lognormal_lengths_are_bounded_without_overflow() -> None:
    lengths = LogNormalLength(1e9, 5.0, 4096).draw(1000, rng())
    assert (lengths.min(), lengths.max()) == (1, 4096)
    assert LogNormalLength(1e300, 0.0).draw(2, rng()).tolist() == [2**31 - 1] * 2
    assert LogNormalLength(7, 0.0).draw(2, rng()).tolist() == [7, 7]


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_are_gamma_with_the_burstiness_as_shape(burstiness: float) -> None:
    gaps = np.diff(arrivals(N, 8.0, burstiness, rng())) / NS_PER_S
    assert gaps.mean() == pytest.approx(1 / 8, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.02)


def test_an_infinite_rate_is_everything_at_once() -> None:
    assert arrivals(3, float("inf"), 1.0, rng()).tolist() == [0, 0, 0]


@given(
    n=st.integers(0, 50),
    rate=st.floats(1e-3, 1e6),
    burstiness=st.floats(0.05, 50),
    seed=st.integers(0, 2**32),
)
def test_arrivals_start_at_zero_and_never_go_back(n: int, rate: float, burstiness: float, seed: int) -> None:
    times = arrivals(n, rate, burstiness, rng(seed))
    assert times.dtype == np.int64
    assert times.size == n
    assert not times[:1].any()
    assert (np.diff(times) >= 0).all()


@pytest.mark.parametrize(
    ("rate", "burstiness", "says"),
    [
        (0.0, 1.0, "the request rate must be positive, got 0"),
        (-1.0, 1.0, "the request rate must be positive, got -1"),
        (float("nan"), 1.0, "the request rate must be positive, got nan"),
        (1.0, 0.0, "the burstiness must be positive, got 0"),
        (1.0, float("inf"), "the burstiness must be positive, got inf"),
        (1e-12, 1.0, "longer than 64-bit nanoseconds can tell"),
    ],
)
def test_impossible_rates_are_refused(rate: float, burstiness: float, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        arrivals(10, rate, burstiness, rng())


def workload(n: int = 50, *, rate: float = 4.0, seed: int = 1, prompt: str = "uniform:1,999") -> Workload:
    return synthetic_workload(
        n,
        request_rate=rate,
        burstiness=1.0,
        prompt_len=parse_length(prompt),
        output_len=parse_length("lognormal:100,1"),
        seed=seed,
    )


def same(a: Workload, b: Workload) -> dict[str, bool]:
    return {
        name: np.array_equal(getattr(a, name), getattr(b, name)) for name in ("arrival_ns", "prompt_len", "output_len")
    }


def test_a_seed_fixes_the_workload_and_another_changes_all_of_it() -> None:
    assert all(same(workload(), workload()).values())
    assert not any(same(workload(), workload(seed=2)).values())


def test_a_column_does_not_depend_on_how_another_is_drawn() -> None:
    assert same(workload(), workload(rate=9.0)) == {
        "arrival_ns": False,
        "prompt_len": True,
        "output_len": True,
    }
    assert same(workload(), workload(prompt="7")) == {
        "arrival_ns": True,
        "prompt_len": False,
        "output_len": True,
    }


def test_more_requests_begin_with_the_same_ones() -> None:
    assert all(same(workload(80).head(50), workload(50)).values())


def test_no_requests_is_refused() -> None:
    with pytest.raises(ValueError, match="must be at least 1, got 0"):
        workload(0)
