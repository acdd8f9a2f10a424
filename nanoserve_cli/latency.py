"""What requests waited for, under the real clock: TTFT, ITL, TPOT, E2EL, throughput and goodput.

All are measured from when a request was due, not from when the replay got round to offering it, so that a replay which
falls behind shows the delay its users would have seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from nanoserve_cli.replay import Replay, RequestRecord
from nanoserve_cli.stats import Percentiles, percentiles
from nanoserve_cli.units import NS_PER_MS, NS_PER_S


@dataclass(frozen=True)
class Metric:
    """A latency by name: what it is, and its milliseconds from one request's record (none, one or many)."""

    name: str
    about: str
    values: Callable[[RequestRecord], Sequence[float]]


def _ttft(record: RequestRecord) -> Sequence[float]:
    return [(record.token_ns[0] - _due(record)) / NS_PER_MS] if record.token_ns else []


def _itl(record: RequestRecord) -> Sequence[float]:
    return [float(gap) for gap in np.diff(record.token_ns) / NS_PER_MS]


def _tpot(record: RequestRecord) -> Sequence[float]:
    if len(record.token_ns) < 2:
        return []
    return [(record.token_ns[-1] - record.token_ns[0]) / NS_PER_MS / (len(record.token_ns) - 1)]


def _e2el(record: RequestRecord) -> Sequence[float]:
    return [(record.token_ns[-1] - _due(record)) / NS_PER_MS] if record.outcome == "finished" else []


def _due(record: RequestRecord) -> int:
    if record.due_ns is None:
        raise ValueError("latencies need the real clock: under the virtual one a request has no due time")
    return record.due_ns


METRICS = (
    Metric("ttft", "time to first token: due to first token", _ttft),
    Metric("itl", "inter-token latency: gap between two tokens of a request, every gap a sample", _itl),
    Metric("tpot", "time per output token: first to last token over outputs - 1, one a request", _tpot),
    Metric("e2el", "end-to-end latency: due to last token", _e2el),
)


def latencies_ms(replay: Replay) -> dict[str, Percentiles]:
    """Each metric of a replay under the real clock, in milliseconds; those without a sample are left out."""
    found = ((m.name, percentiles([v for r in replay.requests for v in m.values(r)])) for m in METRICS)
    return {name: value for name, value in found if value is not None}


def throughput(replay: Replay) -> dict[str, float]:
    """Requests, output tokens and all tokens a second of wall clock."""
    done = [record for record in replay.requests if record.outcome == "finished"]
    made = sum(record.made for record in done)
    seconds = replay.wall_seconds
    return {
        "requests_per_s": len(done) / seconds,
        "output_tokens_per_s": made / seconds,
        "total_tokens_per_s": (made + sum(record.prompt_len for record in done)) / seconds,
    }


def parse_goodput(pairs: Sequence[str]) -> dict[str, float]:
    """`["ttft:500", "tpot:50"]` as limits in milliseconds. ValueError for another metric, or no positive limit."""
    limits: dict[str, float] = {}
    known = [metric.name for metric in METRICS if metric.name != "itl"]
    for pair in pairs:
        name, _, value = pair.partition(":")
        try:
            limit = float(value)
        except ValueError:
            limit = float("nan")
        if name not in known or not 0 < limit < float("inf"):
            raise ValueError(f"goodput {pair!r} is none of {', '.join(f'{n}:MS' for n in known)} with MS above 0")
        if name in limits:
            raise ValueError(f"goodput limits {name} twice: {limits[name]:g} and {limit:g} ms")
        limits[name] = limit
    return limits


def goodput(replay: Replay, limits: dict[str, float]) -> float:
    """Finished requests a second that met every limit; one without the metric (TPOT of one token) meets it."""
    metrics = [(metric, limits[metric.name]) for metric in METRICS if metric.name in limits]
    good = sum(
        record.outcome == "finished"
        and all(value <= limit for metric, limit in metrics for value in metric.values(record))
        for record in replay.requests
    )
    return good / replay.wall_seconds


def schedule_delay_ms(replay: Replay) -> Percentiles | None:
    """How late requests were offered: the replay's own lag, not the engine's."""
    return percentiles(
        [
            (r.offered_ns - r.due_ns) / NS_PER_MS
            for r in replay.requests
            if r.offered_ns is not None and r.due_ns is not None
        ]
    )


def rates(replay: Replay) -> dict[str, float] | None:
    """The asked and the achieved arrival rate in requests a second; None where all arrive at once."""
    due = [record.due_ns for record in replay.requests if record.due_ns is not None]
    offered = [record.offered_ns for record in replay.requests if record.offered_ns is not None]
    if len(due) < 2 or due[-1] == due[0] or offered[-1] == offered[0]:
        return None
    return {
        "asked_per_s": (len(due) - 1) * NS_PER_S / (due[-1] - due[0]),
        "achieved_per_s": (len(offered) - 1) * NS_PER_S / (offered[-1] - offered[0]),
    }
