"""Traffic from a seed: lengths by distribution, arrivals as `vllm bench serve` draws them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoserve.workload import Workload
from nanoserve_cli.units import NS_PER_S
from nanoserve_cli.workload.fields import MAX_STAMP_NS, MAX_TOKENS

LENGTH_SYNTAX = "N | fixed:N | uniform:LO,HI | lognormal:MEAN,SIGMA[,MAX]"


@dataclass(frozen=True)
class FixedLength:
    """`N` or `fixed:N`: every request has `tokens` tokens."""

    tokens: int

    def __post_init__(self) -> None:
        _check_tokens(self.tokens)

    def draw(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """`n` lengths in tokens."""
        return np.full(n, self.tokens, np.int64)


@dataclass(frozen=True)
class UniformLength:
    """`uniform:LO,HI`: every whole number from `low` to `high`, both included, equally often."""

    low: int
    high: int

    def __post_init__(self) -> None:
        _check_tokens(self.low)
        _check_tokens(self.high)
        if self.low > self.high:
            raise ValueError(f"the lower bound {self.low} is above the upper bound {self.high}")

    def draw(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """`n` lengths in tokens."""
        return rng.integers(self.low, self.high, n, dtype=np.int64, endpoint=True)


@dataclass(frozen=True)
class LogNormalLength:
    """`lognormal:MEAN,SIGMA[,MAX]`: `exp` of a normal of deviation `sigma`, `mean` tokens on average.

    `mean` is the mean of the lengths themselves, so the normal is centred on `log(mean) - sigma**2 / 2`.
    A draw is rounded to the nearest whole number, then raised to 1 or cut to `highest`; the mean is that of
    the draws before those bounds.
    """

    mean: float
    sigma: float
    highest: int = MAX_TOKENS

    def __post_init__(self) -> None:
        _check_tokens(self.highest)
        if not (math.isfinite(self.mean) and self.mean > 0):
            raise ValueError(f"the mean must be a positive number of tokens, got {self.mean:g}")
        if not (math.isfinite(self.sigma) and self.sigma >= 0):
            raise ValueError(f"sigma must be 0 or more, got {self.sigma:g}")

    def draw(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """`n` lengths in tokens."""
        log_lengths = rng.normal(math.log(self.mean) - self.sigma**2 / 2, self.sigma, n)
        # Bounded before `exp` too, or a wide sigma would overflow it.
        lengths = np.exp(np.minimum(log_lengths, math.log(MAX_TOKENS)))
        return np.clip(np.rint(lengths), 1, self.highest).astype(np.int64)


LengthSpec = FixedLength | UniformLength | LogNormalLength


def parse_length(text: str) -> LengthSpec:
    """The distribution that `text` names in `LENGTH_SYNTAX`. Raises ValueError that gives the syntax."""
    kind, colon, arguments = text.strip().partition(":")
    if not colon:
        kind, arguments = "fixed", kind
    values = arguments.split(",")
    try:
        match kind, len(values):
            case "fixed", 1:
                return FixedLength(int(values[0]))
            case "uniform", 2:
                return UniformLength(int(values[0]), int(values[1]))
            case "lognormal", 2:
                return LogNormalLength(float(values[0]), float(values[1]))
            case "lognormal", 3:
                return LogNormalLength(float(values[0]), float(values[1]), int(values[2]))
    except ValueError as error:
        raise ValueError(f"bad length {text!r}: {error}; give {LENGTH_SYNTAX}") from None
    raise ValueError(f"bad length {text!r}: give {LENGTH_SYNTAX}")


class Streams(NamedTuple):
    """One generator a column, so that another rate leaves the lengths as they were."""

    arrival: np.random.Generator
    prompt: np.random.Generator
    output: np.random.Generator


def streams(seed: int) -> Streams:
    """The three independent generators of `seed`."""
    return Streams(*(np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(3)))


def arrivals(n: int, request_rate: float, burstiness: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """`n` arrivals in nanoseconds after the first, int64, at `request_rate` requests a second.

    The gaps are gamma distributed with shape `burstiness` and mean `1 / request_rate`: 1 is a Poisson
    process, below 1 is burstier, above 1 more even. An infinite rate is all requests at 0. Raises ValueError
    for a rate or burstiness that is not positive, and where the arrivals would leave 64-bit nanoseconds.
    """
    if not request_rate > 0:
        raise ValueError(f"the request rate must be positive, got {request_rate:g}")
    if not (burstiness > 0 and math.isfinite(burstiness)):
        raise ValueError(f"the burstiness must be positive, got {burstiness:g}")
    if math.isinf(request_rate) or n <= 1:
        return np.zeros(max(n, 0), np.int64)
    with np.errstate(all="ignore"):
        gaps_ns = np.rint(rng.gamma(burstiness, NS_PER_S / request_rate / burstiness, n - 1))
        fits = bool(gaps_ns.sum() < MAX_STAMP_NS)  # false for nan too
    if not fits:
        raise ValueError(
            f"{n} requests at {request_rate:g} a second, burstiness {burstiness:g}, take longer than 64-bit "
            "nanoseconds can tell"
        )
    return np.concatenate([np.zeros(1, np.int64), gaps_ns.astype(np.int64).cumsum()])


def synthetic_workload(
    num_requests: int,
    *,
    request_rate: float,
    burstiness: float,
    prompt_len: LengthSpec,
    output_len: LengthSpec,
    seed: int,
) -> Workload:
    """`num_requests` requests drawn from `seed`, the same for the same arguments.

    Raises ValueError for fewer than one, and as `arrivals` does.
    """
    if num_requests < 1:
        raise ValueError(f"the number of requests must be at least 1, got {num_requests}")
    rngs = streams(seed)
    return Workload(
        arrivals(num_requests, request_rate, burstiness, rngs.arrival),
        prompt_len.draw(num_requests, rngs.prompt),
        output_len.draw(num_requests, rngs.output),
    )


def _check_tokens(value: int) -> None:
    if not 1 <= value <= MAX_TOKENS:
        raise ValueError(f"a length must be from 1 to {MAX_TOKENS}, got {value}")
