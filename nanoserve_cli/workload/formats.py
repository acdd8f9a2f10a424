"""The trace formats: one function from a record to its requests, and one entry in `FORMATS`.

A format is recognised by the columns or keys in the file, never by the file's name. Where several fit,
the one that accounts for the most of them wins: Bailian has every key of Mooncake, and `chat_id`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from nanoserve_cli.workload.errors import RowError, TraceError, did_you_mean
from nanoserve_cli.workload.fields import (
    MAX_STAMP_NS,
    Record,
    count,
    date_or_epoch_ms,
    milliseconds,
    nanoseconds,
    objects,
    seconds,
    tokens,
)

Request = tuple[int, int, int]
"""Arrival in nanoseconds (from any zero), prompt tokens, output tokens."""

Container = Literal["csv", "jsonl"]


@dataclass(frozen=True)
class TraceFormat:
    """A trace format, as `--format NAME` and the detection know it.

    `reads` are the columns that `requests` cannot do without. `marks` tell the format from others that have
    those too; a mark `key:fraction` asks that the key's value be a JSON number with a fraction. `assumes`
    is what a reader has to know about the times, or empty. `timed` is False where there are no times at all.
    """

    name: str
    container: Container
    about: str
    requests: Callable[[Record], Iterable[Request]]
    reads: frozenset[str]
    marks: frozenset[str] = frozenset()
    assumes: str = ""
    timed: bool = True

    @property
    def signature(self) -> frozenset[str]:
        """Everything that must be in a file for it to be recognised as this format."""
        return self.reads | self.marks


def azure(record: Record) -> Iterable[Request]:
    """Azure 2023, 2024 and 2025: the same three columns, whatever stands between them."""
    arrival = date_or_epoch_ms(record, "TIMESTAMP")
    return ((arrival, tokens(record, "ContextTokens"), tokens(record, "GeneratedTokens")),)


def burstgpt(record: Record) -> Iterable[Request]:
    """BurstGPT 1 to 3: whole or decimal seconds, and rows of zero tokens for requests that failed."""
    prompt, output = count(record, "Request tokens"), count(record, "Response tokens")
    if not (prompt and output):
        raise RowError("failed request (zero tokens)")
    return ((seconds(record, "Timestamp"), prompt, output),)


def mooncake(record: Record) -> Iterable[Request]:
    """Mooncake: milliseconds."""
    return ((milliseconds(record, "timestamp"), tokens(record, "input_length"), tokens(record, "output_length")),)


def length_pair_seconds(record: Record) -> Iterable[Request]:
    """Mooncake's keys in seconds: Qwen-Bailian, and vLLM's `timed_trace` with its default multiplier."""
    return ((seconds(record, "timestamp"), tokens(record, "input_length"), tokens(record, "output_length")),)


def vidur(record: Record) -> Iterable[Request]:
    """Vidur: decimal seconds."""
    arrival = seconds(record, "arrived_at")
    return ((arrival, tokens(record, "num_prefill_tokens"), tokens(record, "num_decode_tokens")),)


def splitwise_sim(record: Record) -> Iterable[Request]:
    """splitwise-sim: decimal seconds."""
    return ((seconds(record, "arrival_timestamp"), tokens(record, "prompt_size"), tokens(record, "token_size")),)


def llmservingsim(record: Record) -> Iterable[Request]:
    """LLMServingSim: integer nanoseconds; a line is a request or a session of them, both in one file."""
    arrival = nanoseconds(record, "arrival_time_ns")
    if "sub_requests" not in record:
        return ((arrival, tokens(record, "input_toks"), tokens(record, "output_toks")),)
    calls = []
    for call in objects(record, "sub_requests"):
        calls.append((arrival, tokens(call, "input_toks"), tokens(call, "output_toks")))
        arrival += _duration_ns(call, "tool_duration_ns")
        if arrival >= MAX_STAMP_NS:
            raise RowError("tool_duration_ns is out of range")
    return calls


def _duration_ns(record: Record, key: str) -> int:
    duration = nanoseconds(record, key) if key in record else 0
    if duration < 0:
        raise RowError(f"{key} is negative", duration)
    return duration


def aibrix(record: Record) -> Iterable[Request]:
    """AIBrix: milliseconds, and every request of that moment in one line; both spellings of its keys."""
    arrival = milliseconds(record, "timestamp")
    return [
        (arrival, _tokens_of(item, "Prompt Length"), _tokens_of(item, "Output Length"))
        for item in objects(record, "requests")
    ]


def _tokens_of(item: Record, title: str) -> int:
    return tokens(item, title if title in item else title.lower().replace(" ", "_"))


def vllm_requests(record: Record) -> Iterable[Request]:
    """Per-request records of a vLLM run: `arrival_time` in epoch seconds; the `_ts` are of another clock."""
    return ((seconds(record, "arrival_time"), tokens(record, "input_toks"), tokens(record, "output_toks")),)


def lengths_csv(record: Record) -> Iterable[Request]:
    """Vidur's lengths without its times."""
    return ((0, tokens(record, "num_prefill_tokens"), tokens(record, "num_decode_tokens")),)


def lengths_jsonl(record: Record) -> Iterable[Request]:
    """Mooncake's lengths without its times."""
    return ((0, tokens(record, "input_length"), tokens(record, "output_length")),)


_LENGTH_PAIR = frozenset({"input_length", "output_length"})
_STAMPED_PAIR = _LENGTH_PAIR | {"timestamp"}
_VIDUR_PAIR = frozenset({"num_prefill_tokens", "num_decode_tokens"})
_TOKS_PAIR = frozenset({"input_toks", "output_toks"})
_SESSION_CALLS = "a session's later calls arrive when the tools before them have run; service time is not recorded"

FORMATS: tuple[TraceFormat, ...] = (
    TraceFormat(
        "azure",
        "csv",
        "Azure LLM inference 2023, 2024, 2025; date and time, or epoch ms",
        azure,
        frozenset({"TIMESTAMP", "ContextTokens", "GeneratedTokens"}),
    ),
    TraceFormat(
        "burstgpt",
        "csv",
        "BurstGPT 1, 2, 3; seconds",
        burstgpt,
        frozenset({"Timestamp", "Request tokens", "Response tokens"}),
    ),
    TraceFormat("mooncake", "jsonl", "Mooncake, and vLLM's timed_trace in ms", mooncake, _STAMPED_PAIR),
    TraceFormat(
        "bailian",
        "jsonl",
        "Qwen-Bailian; seconds",
        length_pair_seconds,
        _STAMPED_PAIR,
        frozenset({"chat_id"}),
    ),
    TraceFormat(
        "timed-trace",
        "jsonl",
        "vLLM's timed_trace in seconds",
        length_pair_seconds,
        _STAMPED_PAIR,
        frozenset({"timestamp:fraction"}),
        assumes="stamps with fractions are read as seconds; --format mooncake reads milliseconds",
    ),
    TraceFormat("vidur", "csv", "Vidur; seconds", vidur, _VIDUR_PAIR | {"arrived_at"}),
    TraceFormat(
        "splitwise-sim",
        "csv",
        "splitwise-sim; seconds",
        splitwise_sim,
        frozenset({"arrival_timestamp", "prompt_size", "token_size"}),
    ),
    TraceFormat(
        "llmservingsim-agentic",
        "jsonl",
        "LLMServingSim sessions of calls; ns",
        llmservingsim,
        frozenset({"arrival_time_ns", "sub_requests"}),
        frozenset({"session_id"}),
        assumes=_SESSION_CALLS,
    ),
    TraceFormat("llmservingsim", "jsonl", "LLMServingSim; ns", llmservingsim, _TOKS_PAIR | {"arrival_time_ns"}),
    TraceFormat("aibrix", "jsonl", "AIBrix, several requests a line; ms", aibrix, frozenset({"timestamp", "requests"})),
    TraceFormat(
        "vllm-requests",
        "jsonl",
        "per-request records of a vLLM run; s",
        vllm_requests,
        _TOKS_PAIR | {"arrival_time"},
    ),
    TraceFormat("lengths", "csv", "Vidur's lengths alone, no times", lengths_csv, _VIDUR_PAIR, timed=False),
    TraceFormat(
        "lengths-jsonl",
        "jsonl",
        "Mooncake's lengths alone, no times",
        lengths_jsonl,
        _LENGTH_PAIR,
        timed=False,
    ),
)


def named(name: str) -> TraceFormat:
    """The format of that name. Raises TraceError with the nearest name where there is none."""
    for known in FORMATS:
        if known.name == name:
            return known
    raise TraceError(f"unknown trace format {name!r}: {did_you_mean(name, [known.name for known in FORMATS])}")


def recognised(container: Container, features: frozenset[str]) -> TraceFormat | None:
    """The format that accounts for the most of `features`, the first of equals, or None."""
    fitting = [known for known in FORMATS if known.container == container and known.signature <= features]
    return max(fitting, key=lambda known: len(known.signature), default=None)
