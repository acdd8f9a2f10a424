"""What `read_trace` makes of each format: recognised by content, exact to the nanosecond."""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from nanoserve_cli.units import NS_PER_S
from nanoserve_cli.workload.errors import TraceError
from nanoserve_cli.workload.formats import FORMATS
from nanoserve_cli.workload.readers import Trace, read_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def read(tmp_path: Path, text: str | bytes, **options: object) -> Trace:
    path = tmp_path / "trace"  # no extension: nothing may depend on one
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_trace(path, **options)  # type: ignore[arg-type]


def requests(trace: Trace) -> list[tuple[int, int, int]]:
    columns = (trace.workload.arrival_ns, trace.workload.prompt_len, trace.workload.output_len)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def jsonl(*records: Mapping[str, object]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def test_azure_2023_keeps_all_seven_digits_through_crlf_and_no_final_newline(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        "2023-11-16 19:14:04.1442330,1131,397\r\n2023-11-16 19:14:04.1442331,399,181",
    )
    assert (trace.format, requests(trace)) == ("azure", [(0, 1131, 397), (100, 399, 181)])


def test_azure_epoch_milliseconds_are_told_from_dates(tmp_path: Path) -> None:
    trace = read(tmp_path, AZURE + "1700158596268,1029,388\n1700158596423,1035,520\n1700158596423,1009,425\n")
    assert requests(trace) == [(0, 1029, 388), (155_000_000, 1035, 520), (155_000_000, 1009, 425)]


def test_azure_2024_mixes_fractions_and_none_with_offsets_in_one_column(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        AZURE
        + "2024-05-12 00:00:00+00:00,1,1\n2024-05-12 00:00:00.001163+00:00,2,2\n"
        + "2024-05-12 02:00:01+02:00,3,3\n",
    )
    assert [request[0] for request in requests(trace)] == [0, 1_163_000, NS_PER_S]


def test_azure_2025_is_read_by_name_and_not_by_position(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n"
        "2024-10-15T12:00:00.269Z,0,770,491\n2024-10-15T12:00:05.819Z,16,949,126\n",
    )
    assert requests(trace) == [(0, 770, 491), (5_550_000_000, 949, 126)]


def test_neighbours_that_float64_seconds_would_merge_stay_apart(tmp_path: Path) -> None:
    assert float("1700158546.6805901") == float("1700158546.6805902"), "a pair that floats merge"
    trace = read(tmp_path, AZURE + "2023-11-16 18:15:46.6805901,1,1\n2023-11-16 18:15:46.6805902,1,1\n")
    assert trace.span_ns == 100


def test_burstgpt_failures_are_skipped_and_counted(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n9,ChatGPT,0,0,0,Conversation log\n"
        "12,GPT-4,7,0,7,API log\n45,ChatGPT,1087,230,1317,Conversation log\n",
    )
    assert requests(trace) == [(0, 472, 18), (40 * NS_PER_S, 1087, 230)]
    (skipped,) = trace.skipped
    assert (skipped.reason, skipped.count, skipped.first_line) == ("failed request (zero tokens)", 2, 3)
    assert trace.rows_read == 4


def test_burstgpt_3_has_decimal_seconds_and_empty_sessions(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "19440000.5,,1.2,ChatGPT,10,20,30,API log\n19440001.25,s-1,0.3,ChatGPT,11,21,32,API log\n",
    )
    assert requests(trace) == [(0, 10, 20), (750_000_000, 11, 21)]


def test_mooncake_is_milliseconds_and_rows_may_lack_a_key(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        jsonl(
            {"input_length": 5, "output_length": 6},
            {"timestamp": 27_000, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]},
            {"timestamp": 27_500, "input_length": 5},
            {"timestamp": 30_000, "input_length": 7322, "output_length": 490, "hash_ids": [0, 2]},
        ),
    )
    assert (trace.format, requests(trace)) == ("mooncake", [(0, 6758, 500), (3 * NS_PER_S, 7322, 490)])
    assert [(s.reason, s.first_line) for s in trace.skipped] == [
        ("timestamp is missing", 1),
        ("output_length is missing", 3),
    ]


def test_bailian_has_mooncakes_keys_in_seconds(tmp_path: Path) -> None:
    row = {"chat_id": 1, "parent_chat_id": -1, "type": "text", "turn": 1, "hash_ids": [3]}
    trace = read(
        tmp_path,
        jsonl(
            row | {"timestamp": 0.0, "input_length": 502, "output_length": 1494},
            row | {"timestamp": 61.114, "input_length": 521, "output_length": 132},
        ),
    )
    assert (trace.format, requests(trace)) == ("bailian", [(0, 502, 1494), (61_114_000_000, 521, 132)])


def test_timed_trace_with_fractions_is_seconds_and_says_so(tmp_path: Path) -> None:
    text = jsonl(
        {"timestamp": 12.4, "input_length": 42, "output_length": 8, "hash_ids": [981]},
        {"timestamp": 13.0, "input_length": 43, "output_length": 9, "hash_ids": [981]},
    )
    trace = read(tmp_path, text)
    assert (trace.format, trace.span_ns) == ("timed-trace", 600_000_000)
    assert "--format mooncake" in trace.notes[0]
    assert read(tmp_path, text, format="mooncake").span_ns == 600_000


def test_vidur_and_splitwise_sim_are_decimal_seconds(tmp_path: Path) -> None:
    vidur = read(tmp_path, "arrived_at,num_prefill_tokens,num_decode_tokens\n0.1,54.0,3\n0.30000000000000004,9,4\n")
    assert (vidur.format, requests(vidur)) == ("vidur", [(0, 54, 3), (200_000_000, 9, 4)])
    splitwise = read(
        tmp_path,
        "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n"
        "0,2,0,1e-05,1,100,10\n1,2,0,0.00002,1,200,20\n",
    )
    assert (splitwise.format, requests(splitwise)) == ("splitwise-sim", [(0, 100, 10), (10_000, 200, 20)])


def test_llmservingsim_is_nanoseconds(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        jsonl(
            {"input_toks": 27369, "output_toks": 1626, "arrival_time_ns": 101_537_000},
            {"input_toks": 1390, "output_toks": 527, "arrival_time_ns": 101_537_001},
        ),
    )
    assert (trace.format, requests(trace)) == ("llmservingsim", [(0, 27369, 1626), (1, 1390, 527)])


def test_calls_of_an_agentic_session_wait_for_their_tools(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        jsonl(
            {"input_toks": 7, "output_toks": 8, "arrival_time_ns": 1_000},
            {
                "session_id": "s",
                "arrival_time_ns": 1_100,
                "sub_requests": [
                    {"input_toks": 10, "output_toks": 1, "tool_duration_ns": 50},
                    {"input_toks": 20, "output_toks": 2, "tool_duration_ns": 30},
                    {"input_toks": 30, "output_toks": 3},
                ],
            },
        ),
    )
    assert requests(trace) == [(0, 7, 8), (100, 10, 1), (150, 20, 2), (180, 30, 3)]
    assert trace.rows_read == 2
    assert "service time is not recorded" in trace.notes[0]


def test_tool_times_that_leave_64_bits_are_a_bad_row(tmp_path: Path) -> None:
    call = {"input_toks": 1, "output_toks": 1, "tool_duration_ns": 2**61}
    session = {"session_id": "s", "arrival_time_ns": 0, "sub_requests": [call] * 5}
    with pytest.raises(TraceError, match="tool_duration_ns is out of range"):
        read(tmp_path, jsonl(session))


def test_aibrix_lines_hold_several_requests_in_either_spelling(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        jsonl(
            {"timestamp": 19, "requests": [{"Prompt Length": 5, "Output Length": 6}]},
            {"timestamp": 20, "requests": [{"prompt_length": 7, "output_length": n} for n in (1, 2)]},
            {"timestamp": 21, "requests": [{"prompt_length": 7, "output_length": None}]},
        ),
    )
    assert requests(trace) == [(0, 5, 6), (1_000_000, 7, 1), (1_000_000, 7, 2)]
    assert trace.skipped[0].reason == "output_length is missing"


def test_a_vllm_run_is_read_by_its_arrival_clock(tmp_path: Path) -> None:
    # The digits are written out: a float would print other ones.
    line = '{"request_id": "%s", "input_toks": %d, "output_toks": %d, "arrival_time": %s, "queued_ts": %s}\n'
    first = line % ("a", 2358, 531, "1787267980.0827403", "9.5")
    trace = read(tmp_path, first + line % ("b", 1034, 769, "1787267980.3478317", "1.5"))
    assert (trace.format, requests(trace)) == ("vllm-requests", [(0, 2358, 531), (265_091_400, 1034, 769)])


def test_lengths_alone_need_a_rate_and_then_draw_their_arrivals(tmp_path: Path) -> None:
    header = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n"
    text = header + "3772,54,3826,69.85\n2015,156,2171,12.9\n"
    with pytest.raises(TraceError, match="no times: give --request-rate"):
        read(tmp_path, text)
    trace = read(tmp_path, text, request_rate=2.0, seed=7)
    assert trace.workload.prompt_len.tolist() == [3772, 2015]
    assert trace.workload.arrival_ns[0] == 0 < trace.span_ns
    assert trace.stamps is None, "drawn arrivals are not judged as a clock"
    assert trace.notes == ("arrivals drawn at 2 requests/s, burstiness 1, seed 7",)
    assert read(tmp_path, text, request_rate=2.0, seed=8).span_ns != trace.span_ns
    pairs = read(tmp_path, jsonl({"input_length": 3, "output_length": 4}), request_rate=1.0)
    assert (pairs.format, requests(pairs)) == ("lengths-jsonl", [(0, 3, 4)])


def test_a_rate_replaces_recorded_times_and_keeps_their_order(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        jsonl(*({"timestamp": t, "input_length": t, "output_length": 1} for t in (9, 3, 5))),
        request_rate=float("inf"),
    )
    assert requests(trace) == [(0, 3, 1), (0, 5, 1), (0, 9, 1)]


def test_gzip_is_told_by_content_and_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    text = b"\xef\xbb\xbf" + (AZURE + "1700158596268,1029,388\n").encode()
    plain, packed = read(tmp_path, text), read(tmp_path, gzip.compress(text))
    assert requests(plain) == requests(packed) == [(0, 1029, 388)]
    assert plain.sha256 != packed.sha256, "the sum is of the bytes as stored"


def test_time_going_backwards_is_sorted_stably_and_counted(tmp_path: Path) -> None:
    rows = [(5, 1), (9, 2), (5, 3), (7, 4), (9, 5)]
    trace = read(tmp_path, jsonl(*({"timestamp": t, "input_length": n, "output_length": 1} for t, n in rows)))
    assert trace.workload.prompt_len.tolist() == [1, 3, 4, 2, 5]
    assert trace.out_of_order == 2


def test_limit_counts_kept_requests_and_stops_before_the_next_fault(tmp_path: Path) -> None:
    text = AZURE + "1000,0,5\n1001,1,1\n1002,2,2\nnonsense\n1003,3,3\n"
    trace = read(tmp_path, text, limit=2)
    assert requests(trace) == [(0, 1, 1), (1_000_000, 2, 2)]
    assert (trace.rows_read, trace.rows_skipped) == (3, 1)
    assert trace.sha256 == read(tmp_path, text).sha256, "the sum is of the whole file all the same"
    many = jsonl({"timestamp": 1, "requests": [{"prompt_length": n, "output_length": 1} for n in (1, 2, 3)]})
    assert len(read(tmp_path, many, limit=2).workload) == 2
    with pytest.raises(ValueError, match="limit must be at least 1, got 0"):
        read(tmp_path, text, limit=0)


def test_a_coarse_clock_is_reported_with_its_tick_and_ties(tmp_path: Path) -> None:
    stamps = [0, 0, 0, 3000, 3000, 6000]
    trace = read(tmp_path, jsonl(*({"timestamp": t, "input_length": 1, "output_length": 1} for t in stamps)))
    assert trace.stamps is not None
    assert (trace.stamps.distinct, trace.stamps.tied, trace.stamps.grid_ns) == (3, 5, 3 * NS_PER_S)
    assert (
        trace.stamps.warning
        == "coarse stamps: 6 requests on 3 distinct stamps, a median 3 s apart; 5 requests share theirs"
    )


def test_a_few_ties_are_no_grid(tmp_path: Path) -> None:
    stamps = [*range(100), 50]
    trace = read(tmp_path, jsonl(*({"timestamp": t, "input_length": 1, "output_length": 1} for t in stamps)))
    assert trace.stamps is not None
    assert (trace.stamps.tied, trace.stamps.grid_ns, trace.stamps.warning) == (2, None, None)


def test_format_forces_one_and_an_unknown_one_suggests_the_nearest(tmp_path: Path) -> None:
    text = jsonl(
        {"timestamp": 2, "input_length": 1, "output_length": 1},
        {"timestamp": 4, "input_length": 1, "output_length": 1},
    )
    assert read(tmp_path, text).span_ns == 2_000_000
    assert read(tmp_path, text, format="bailian").span_ns == 2 * NS_PER_S
    with pytest.raises(TraceError, match="unknown trace format 'moncake': did you mean mooncake"):
        read(tmp_path, text, format="moncake")
    with pytest.raises(TraceError, match="format azure is csv, the file is jsonl"):
        read(tmp_path, text, format="azure")
    with pytest.raises(
        TraceError,
        match="vidur needs arrived_at, num_decode_tokens, num_prefill_tokens; columns found: TIMESTAMP",
    ):
        read(tmp_path, AZURE + "1,1,1\n", format="vidur")


def test_every_format_is_named_once_and_says_what_it_is() -> None:
    names = [known.name for known in FORMATS]
    assert len(names) == len(set(names))
    assert all(known.about and known.reads for known in FORMATS)


def test_one_odd_stamp_does_not_change_the_unit_of_a_whole_file(tmp_path: Path) -> None:
    """Three rows of milliseconds and one with a fraction, itself skipped, were read a thousand times too slow."""
    rows = [{"timestamp": 1000 * n, "input_length": 10, "output_length": 3} for n in range(4)]
    trace = read(tmp_path, jsonl(*rows, {"timestamp": 4000.5, "input_length": 0, "output_length": 3}))
    assert (trace.format, trace.span_ns, trace.rows_skipped) == ("mooncake", 3_000_000_000, 1)
    trace = read(tmp_path, jsonl(*rows, {"timestamp": 4000.0, "input_length": 10, "output_length": 3}))
    assert (trace.format, trace.span_ns) == ("mooncake", 4_000_000_000)


def test_a_column_that_stands_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="'ContextTokens' stands twice"):
        read(tmp_path, "TIMESTAMP,ContextTokens,ContextTokens,GeneratedTokens\n2023-11-16 19:14:04,5,6,7\n")
