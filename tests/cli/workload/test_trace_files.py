"""The readers on recorded traces and on a million rows; the files are not part of the project."""

import os
import resource
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from nanoserve_cli.units import NS_PER_S
from nanoserve_cli.workload.errors import TraceError
from nanoserve_cli.workload.readers import read_trace
from nanoserve_cli.workload.resolve import resolve_trace

FOLDER = os.environ.get("NANOSERVE_TRACES")
recorded = pytest.mark.skipif(
    not FOLDER or not Path(FOLDER).is_dir(), reason="NANOSERVE_TRACES names no folder of recorded traces"
)


def trace_file(name: str) -> Path:
    path = Path(FOLDER or "") / name
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return path


@recorded
def test_azure_conversation_by_key() -> None:
    trace = read_trace(resolve_trace("azure2023-conv"))
    assert (trace.key, trace.format, trace.rows_read, trace.skipped) == (
        "azure2023-conv",
        "azure",
        19_366,
        (),
    )
    assert trace.span_ns == 3_501_721_937_000
    assert trace.stamps is not None
    assert (trace.stamps.distinct, trace.stamps.warning) == (19_366, None)


@recorded
def test_mooncake_conversation_by_key() -> None:
    trace = read_trace(resolve_trace("mooncake-conversation"), strict=True)
    assert (trace.key, trace.format, len(trace.workload)) == ("mooncake-conversation", "mooncake", 12_031)
    assert trace.span_ns == 3_536_999_000_000
    assert trace.stamps is not None
    assert (trace.stamps.distinct, trace.stamps.grid_ns) == (1_180, 3 * NS_PER_S)


@recorded
def test_burstgpt_has_17_failures_in_its_first_400() -> None:
    trace = read_trace(trace_file("burstgpt/BurstGPT_1_first400.csv"))
    assert (len(trace.workload), trace.rows_read, trace.rows_skipped) == (383, 400, 17)


@recorded
def test_a_recorded_vllm_run() -> None:
    trace = read_trace(trace_file("vllm_run/RTX4090_Llama-3.1-8B_requests.jsonl"), strict=True)
    assert (trace.format, len(trace.workload), trace.span_ns) == ("vllm-requests", 300, 29_100_521_300)


@recorded
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("01_azure2023_crlf_no_final_newline.csv", ("azure", 5, 0, 4_258_294_000, 0)),
        ("02_azure2023_first1000.csv.gz", ("azure", 1000, 0, 216_027_393_000, 0)),
        ("03_azure_epoch_ms_int_ties.csv", ("azure", 7, 0, 291_000_000, 0)),
        ("05_azure2024_tz_offset_mixed_fraction.csv", ("azure", 10, 0, 604_799_994_297_000, 0)),
        ("06_azure2025_multimodal_isoZ.csv", ("azure", 10, 0, 604_799_695_000_000, 0)),
        ("07_burstgpt_zero_token_rows.csv", ("burstgpt", 5, 3, 56_000_000_000, 0)),
        ("09_mooncake_ms_tied_arrivals.jsonl", ("mooncake", 16, 0, 3_000_000_000, 0)),
        ("12_bailian_seconds_same_field_names.jsonl", ("bailian", 2, 0, 61_114_000_000, 1)),
        ("16_llmservingsim_ns_lean.jsonl", ("llmservingsim", 6, 0, 224_103_000, 0)),
    ],
)
def test_oddities(name: str, expected: tuple[str, int, int, int, int]) -> None:
    trace = read_trace(trace_file(f"odd/{name}"))
    found = (trace.format, len(trace.workload), trace.rows_skipped, trace.span_ns, trace.out_of_order)
    assert found == expected


@recorded
def test_oddities_that_are_no_trace_as_they_stand() -> None:
    with pytest.raises(TraceError, match="Git-LFS pointer"):
        read_trace(trace_file("odd/13_git_lfs_pointer_instead_of_data.csv"))
    lengths = trace_file("odd/14_lengths_only_no_timestamp_float_column.csv")
    with pytest.raises(TraceError, match="--request-rate"):
        read_trace(lengths)
    assert len(read_trace(lengths, request_rate=1.0, strict=True).workload) == 6


@pytest.mark.slow
def test_a_million_rows_stream_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "million.csv"
    start = datetime(2024, 5, 12)
    with path.open("w") as file:
        file.write("TIMESTAMP,ContextTokens,GeneratedTokens\n")
        for i in range(1_000_000):
            file.write(f"{start + timedelta(microseconds=1234 * i)}+00:00,{i % 4000 + 1},{i % 400 + 1}\n")

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    trace = read_trace(path, strict=True)
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert (len(trace.workload), trace.span_ns) == (1_000_000, 999_999 * 1_234_000)
    assert grown_mb < 200, "three columns are 24 MB; the rows must not be held as objects"

    started = time.perf_counter()
    assert len(read_trace(path, limit=10).workload) == 10
    assert time.perf_counter() - started < 1, "a limit must stop the reading, not only cut the result"
