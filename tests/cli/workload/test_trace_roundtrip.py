"""A workload written in any format that has times is read back to the nanosecond."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nanoserve.workload import Workload
from nanoserve_cli.units import NS_PER_S
from nanoserve_cli.workload.formats import FORMATS
from nanoserve_cli.workload.readers import read_trace


def _date(ns: int) -> str:
    return f"2023-11-16 18:{ns // (60 * NS_PER_S):02d}:{ns // NS_PER_S % 60:02d}.{ns % NS_PER_S:09d}"


def _seconds(ns: int) -> str:
    return f"{ns // NS_PER_S}.{ns % NS_PER_S:09d}"


# A header, how a time is written, and a line: %s is the time, the two %d are the lengths.
WRITERS: dict[str, tuple[str, Callable[[int], str], str]] = {
    "azure": ("TIMESTAMP,ContextTokens,GeneratedTokens\n", _date, "%s,%d,%d"),
    "burstgpt": ("Timestamp,Model,Request tokens,Response tokens\n", _seconds, "%s,m,%d,%d"),
    "mooncake": ("", lambda ns: f"{ns}e-6", '{"timestamp": %s, "input_length": %d, "output_length": %d}'),
    "bailian": (
        "",
        _seconds,
        '{"chat_id": 1, "turn": 1, "timestamp": %s, "input_length": %d, "output_length": %d}',
    ),
    "timed-trace": ("", _seconds, '{"timestamp": %s, "input_length": %d, "output_length": %d}'),
    "vidur": ("arrived_at,num_prefill_tokens,num_decode_tokens\n", _seconds, "%s,%d,%d.0"),
    "splitwise-sim": ("arrival_timestamp,prompt_size,token_size\n", _seconds, "%s,%d,%d"),
    "llmservingsim": ("", str, '{"arrival_time_ns": %s, "input_toks": %d, "output_toks": %d}'),
    "llmservingsim-agentic": (
        "",
        str,
        '{"session_id": "s", "arrival_time_ns": %s, "sub_requests": [{"input_toks": %d, "output_toks": %d}]}',
    ),
    "aibrix": (
        "",
        lambda ns: f"{ns}e-6",
        '{"timestamp": %s, "requests": [{"Prompt Length": %d, "Output Length": %d}]}',
    ),
    "vllm-requests": ("", _seconds, '{"arrival_time": %s, "input_toks": %d, "output_toks": %d}'),
}


def test_the_round_trip_covers_every_format_that_has_times() -> None:
    assert set(WRITERS) == {known.name for known in FORMATS if known.timed}


@pytest.mark.parametrize("name", WRITERS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 3_599_999_999_999), st.integers(1, 2**20), st.integers(1, 2**20)),
        min_size=1,
        max_size=30,
    )
)
def test_a_workload_written_in_any_format_is_read_back_to_the_nanosecond(
    tmp_path: Path, name: str, rows: list[tuple[int, int, int]]
) -> None:
    rows.sort(key=lambda row: row[0])
    arrival, prompt, output = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    workload = Workload(arrival - arrival[0], prompt, output)
    header, stamp, line = WRITERS[name]
    text = header + "\n".join(line % (stamp(t), p, o) for t, p, o in rows)
    # Mooncake's milliseconds carry fractions here, to hold nanoseconds, and would be taken for seconds.
    path = tmp_path / "trace"
    path.write_text(text)
    trace = read_trace(path, strict=True, format="mooncake" if name == "mooncake" else None)
    assert trace.format == name
    for column in ("arrival_ns", "prompt_len", "output_len"):
        np.testing.assert_array_equal(getattr(trace.workload, column), getattr(workload, column))
    assert trace.out_of_order == 0
