"""Running requests sampled over time: the weighting of samples, Prometheus text, a CSV with a sample a line."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nanoserve_cli.observed.model import Decode
from nanoserve_cli.observed.settings import ServerSettings
from nanoserve_cli.units import NS_PER_MS, NS_PER_S
from nanoserve_cli.workload.errors import RowError
from nanoserve_cli.workload.exact import datetime_ns, decimal_ns, whole_number
from nanoserve_cli.workload.fields import MAX_STAMP_NS, MAX_TOKENS
from nanoserve_cli.workload.stamps import in_time_order

LONGEST_GAP = 5
"""Gaps of more than so many times the median are not bridged: the sample before one weighs a median gap."""

LONGEST_INTERVAL_S = 3600
"""Nor are gaps of more than an hour, which are no sampling: a server was down, or two files became one."""

_NO_TIME = -1
_GAUGE = re.compile(r"(?<!\w)(?:vllm[:_]num_requests_running|sglang[:_]num_running_reqs)(?!\w)")
_LABELS_AND_VALUE = re.compile(r"(?:\{((?:[^\"}]|\"(?:[^\"\\]|\\.)*\")*)\})?\s+(\S+)(?:\s+(\d+(?:\.\d+)?))?\s*")
_LABEL = re.compile(r"(\w+)=\"((?:[^\"\\]|\\.)*)\"")
_COPIES = ("tp_rank", "pp_rank", "moe_ep_rank")


class Series:
    """The samples of one engine: times in nanoseconds, in the order of the file, or -1 where there is none."""

    def __init__(self) -> None:
        self.times = array("q")
        self.rows = array("q")

    def add(self, time: int | None, rows: int) -> None:
        """One more sample."""
        self.times.append(_NO_TIME if time is None else time)
        self.rows.append(rows)


@dataclass(frozen=True, eq=False)
class Weighed:
    """Samples of one or more engines, in time order: int64 ns (-1 without time), int64 rows, float64 seconds.

    `interval` is the median gap in seconds, None where no two samples tell one. `unbridged` counts the gaps
    that were too long, `out_of_order` the samples that stood after a later one.
    """

    times: NDArray[np.int64]
    rows: NDArray[np.int64]
    weights: NDArray[np.float64]
    interval: float | None
    unbridged: int
    out_of_order: int


def weigh(series: list[Series]) -> Weighed:
    """Each sample stands for the time to its engine's next one; samples of one moment share it.

    The last sample of an engine, and one before a gap that is not bridged, stand for the median of all engines'
    gaps; where there is no gap of an hour at most, and without times, each stands for a second.
    """
    times, rows, late = [], [], 0
    for one in series:
        stamps, counts = np.array(one.times, np.int64), np.array(one.rows, np.int64)
        order, behind = in_time_order(stamps)
        times.append(stamps[order])
        rows.append(counts[order])
        late += behind
    gaps = np.concatenate([np.diff(np.unique(stamps[stamps != _NO_TIME])) for stamps in times])
    gaps = gaps[gaps <= LONGEST_INTERVAL_S * NS_PER_S]
    median = float(np.median(gaps)) if gaps.size else None
    weights, unbridged = [], 0
    for stamps in times:
        each, cut = _stand_for(stamps, median)
        weights.append(each)
        unbridged += cut
    together, counts, shares = np.concatenate(times), np.concatenate(rows), np.concatenate(weights)
    order = np.argsort(together, kind="stable")
    interval = None if median is None else median / NS_PER_S
    return Weighed(together[order], counts[order], shares[order], interval, unbridged, late)


def _stand_for(stamps: NDArray[np.int64], median: float | None) -> tuple[NDArray[np.float64], int]:
    """Seconds that each of one engine's sorted samples stands for, and how many gaps were not bridged."""
    if median is None:
        return np.ones(stamps.size), 0
    moments, place, sharing = np.unique(stamps, return_inverse=True, return_counts=True)
    gaps = np.append(np.diff(moments), median).astype(np.float64)
    longest = min(LONGEST_GAP * median, LONGEST_INTERVAL_S * NS_PER_S)
    too_long = (gaps > longest) | (moments == _NO_TIME)
    gaps[too_long] = median
    return (gaps / sharing / NS_PER_S)[place], int(too_long.sum())


def running_rows(text: str) -> int:
    """The running requests of a sample. Raises RowError for NaN, a fraction and what is out of range."""
    try:
        rows = whole_number(text)
    except ValueError:
        raise RowError("running requests are not a number", text) from None
    if rows is None:
        raise RowError("running requests are not a whole number", text)
    if not 0 <= rows <= MAX_TOKENS:
        raise RowError("running requests are out of range", text)
    return rows


def prometheus_line(line: str) -> Decode | None:
    """A gauge of running requests in Prometheus text, with or without a time; each set of labels is an engine."""
    name = None if line.lstrip().startswith("#") else _GAUGE.search(line)
    if name is None:
        return None
    match = _LABELS_AND_VALUE.fullmatch(line, name.end())
    if match is None:
        raise RowError("gauge line cut short or garbled", line.strip())
    inside, value, stamp = match.groups()
    labels = _LABEL.findall(inside or "")
    return Decode(
        running_rows(value),
        engine=name[0] + ",".join(f"{key}={text}" for key, text in labels if key not in _COPIES),
        voice=",".join(text for key, text in labels if key in _COPIES),
        at=None if stamp is None else sample_time(stamp),
    )


def prometheus_notes(settings: ServerSettings) -> Iterator[str]:
    """What the gauges cannot tell."""
    yield "rows only: the gauge has no widths, and does not say how many steps lie between samples"
    yield "requests in prefill count as running"


def sample_time(text: str) -> int:
    """A time of a sample in nanoseconds: a date and time, or a number as `epoch_ns` reads it. Else RowError."""
    try:
        stamp = datetime_ns(text) if ":" in text else epoch_ns(text)
    except ValueError:
        raise RowError("the time is not a time", text) from None
    if not 0 <= stamp < MAX_STAMP_NS:
        raise RowError("the time is out of range", text)
    return stamp


def epoch_ns(text: str) -> int:
    """A decimal time in nanoseconds: seconds, unless it is so large that it is epoch ms, us or ns.

    It may be beyond 64 bits. Raises ValueError for text that is no number.
    """
    for unit_ns in (NS_PER_S, NS_PER_MS, 1_000, 1):
        stamp = decimal_ns(text, unit_ns)
        if stamp < MAX_STAMP_NS:
            break
    return stamp
