"""Traffic on two clocks: exact ticks by hand, a slow oracle for the rest, and no metric of zero samples."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from nanoserve.buckets import DecodeBuckets
from nanoserve.cache_dir import cached_model
from nanoserve.engine import Engine
from nanoserve.pricing import price_run
from nanoserve.steps import Segment
from nanoserve.workload import Workload
from nanoserve_cli import compare
from nanoserve_cli import replay as replay_module
from nanoserve_cli.app import app
from nanoserve_cli.bench import BenchRun, bench_traffic
from nanoserve_cli.columns import TIME_COLUMNS
from nanoserve_cli.compare import ClockSettings, EngineSettings
from nanoserve_cli.replay import Replay, prompt_of, replay_real, replay_virtual
from nanoserve_cli.traffic import Traffic, TrafficOptions, load_traffic

MS = 1_000_000
STEP = 25 * MS
ARRIVED, PROMPT, OUTPUT = "arrival_time_ns", "input_toks", "output_toks"
Request = tuple[int, int, int]
"""Arrival in ns, prompt, output."""


def bench(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


def document(*arguments: object) -> dict[str, Any]:
    result = bench(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def refused(*arguments: object) -> str:
    """The one line on stderr of a quiet run that ends as bad usage with nothing on stdout."""
    result = bench(*arguments, "-q")
    assert (result.exit_code, result.stdout) == (2, ""), (result.exit_code, result.stderr)
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    return result.stderr.rstrip("\n")


def trace(path: Path, requests: Sequence[Request]) -> Path:
    rows = (json.dumps(dict(zip((ARRIVED, PROMPT, OUTPUT), r, strict=True))) for r in requests)
    path.write_text("".join(f"{row}\n" for row in rows))
    return path


def replayed(requests: Sequence[Request], *, rows: int, max_model_len: int = 64, step_ns: int = STEP) -> Replay:
    columns = (np.array(column, np.int64) for column in zip(*requests, strict=True))
    return replay_virtual(Engine.build(None, rows, max_model_len), Workload(*columns), step_ns=step_ns)


def ticks(replay: Replay) -> list[tuple[int | None, ...]]:
    """`(arrival, admitted, finished)` step of every request."""
    return [(r.arrival_step, r.admitted_step, r.finished_step) for r in replay.requests]


class TestTicksByHand:
    def test_one_request_prefills_in_its_tick_and_decodes_one_less_than_it_makes(self) -> None:
        """Prompt 10, 4 outputs: prefill in tick 0, decode in 1, 2, 3 at widths 11, 12, 13."""
        run = replayed([(0, 10, 4)], rows=2)
        assert ticks(run) == [(0, 0, 3)]
        assert list(run.steps) == [Segment(1, 1, 11, 3, 11 + 12 + 13)]

    def test_one_output_is_no_decode_step(self) -> None:
        run = replayed([(0, 10, 1)], rows=2)
        assert (ticks(run), list(run.steps)) == ([(0, 0, 0)], [])

    @pytest.mark.parametrize(("arrival", "tick"), [(1, 1), (STEP - 1, 1), (STEP, 1), (STEP + 1, 2), (3 * STEP, 3)])
    def test_it_is_admitted_at_the_first_tick_at_or_after_its_arrival(self, arrival: int, tick: int) -> None:
        run = replayed([(0, 10, 8), (arrival, 10, 1)], rows=2)
        assert ticks(run)[1] == (tick, tick, tick)

    def test_it_holds_a_row_while_it_prefills_and_is_no_decode_row_yet(self) -> None:
        """The second joins the first's decode at width max(10 + 3, 20 + 1) one tick after its admission."""
        run = replayed([(0, 10, 4), (2 * STEP, 20, 2)], rows=2)
        assert list(run.steps) == [Segment(1, 1, 11, 2, 23), Segment(3, 2, 21, 1, 13 + 21)]

    def test_a_finished_row_is_free_in_the_next_tick_and_not_in_its_own(self) -> None:
        """One row: the first ends in tick 2, the second prefills in tick 3."""
        run = replayed([(0, 10, 3), (0, 10, 2)], rows=1)
        assert ticks(run) == [(0, 0, 2), (0, 3, 4)]
        assert [(r.queue_steps, r.service_steps) for r in run.requests] == [(0, 3), (3, 2)]

    def test_requests_of_one_output_still_hold_their_row_for_a_tick(self) -> None:
        run = replayed([(0, 10, 1)] * 3, rows=1)
        assert ticks(run) == [(0, 0, 0), (0, 1, 1), (0, 2, 2)]

    def test_ties_are_taken_in_the_order_of_the_file(self) -> None:
        run = replayed([(0, 5, 2), (0, 6, 2), (0, 7, 2)], rows=2)
        assert [t[1] for t in ticks(run)] == [0, 0, 2]

    def test_requests_of_one_tick_queue_by_arrival_though_they_are_offered_together(self) -> None:
        run = replayed([(0, 5, 3), (1, 9, 2), (2, 8, 2)], rows=1)
        assert ticks(run) == [(0, 0, 2), (1, 3, 4), (1, 5, 6)]

    def test_an_idle_gap_is_skipped_and_stays_in_the_step_numbers(self) -> None:
        """Nobody runs from tick 2 on; the second arrives in 10 seconds, tick 400."""
        run = replayed([(0, 10, 2), (10_000 * MS, 10, 2)], rows=2)
        assert list(run.steps) == [Segment(1, 1, 11, 1, 11), Segment(401, 1, 11, 1, 11)]

    def test_a_year_of_nothing_takes_no_time(self) -> None:
        run = replayed([(0, 10, 2), (365 * 86_400 * 1000 * MS, 10, 2)], rows=2)
        assert list(run.steps)[1].start_step == 365 * 86_400 * 40 + 1

    def test_an_arrival_within_the_last_busy_tick_waits_for_the_grid(self) -> None:
        """The first ends in tick 1; one that arrives half a tick after its start is admitted in tick 2."""
        run = replayed([(0, 10, 2), (STEP + STEP // 2, 10, 1)], rows=1)
        assert ticks(run) == [(0, 0, 1), (2, 2, 2)]

    def test_at_the_boundary_the_last_token_needs_no_slot(self) -> None:
        """Invariant 11 at 16: 10 + 7 - 1 fits and its widest step is 16; one more is rejected, and disturbs nothing."""
        run = replayed([(0, 10, 7), (0, 10, 8), (0, 16, 1)], rows=3, max_model_len=16)
        assert [(r.outcome, r.reason) for r in run.requests] == [
            ("finished", "length"),
            ("rejected", "too_long"),
            ("finished", "length"),
        ]
        assert max(s.width + s.steps - 1 for s in run.steps) == 16
        assert ticks(run)[1] == (0, None, None)

    @pytest.mark.parametrize("step_ns", [0, -1])
    def test_a_step_lasts_at_least_a_nanosecond(self, step_ns: int) -> None:
        with pytest.raises(ValueError, match="at least 1 ns"):
            replayed([(0, 1, 1)], rows=1, step_ns=step_ns)


@dataclass
class Slow:
    """What the oracle says of one run."""

    admitted: list[int]
    finished: list[int]
    segments: list[tuple[int, int, int, int, int]]
    shapes: dict[tuple[int, int], int]


def slow(requests: Sequence[Request], rows: int, step_ns: int) -> Slow:
    """Tick after tick from 0, with nothing skipped and nothing vectorised."""
    admitted, finished = [-1] * len(requests), [-1] * len(requests)
    made = [0] * len(requests)
    holding: list[int] = []
    decoded: list[tuple[int, int, int, int]] = []
    tick = 0
    while -1 in finished:
        free = rows - len(holding)
        if holding:
            contexts = [requests[i][1] + made[i] for i in holding]
            decoded.append((tick, len(holding), max(contexts), sum(contexts)))
            for i in holding:
                made[i] += 1
        for i, (arrival, _, _) in enumerate(requests):
            if admitted[i] == -1 and arrival <= tick * step_ns and free:
                admitted[i], made[i] = tick, 1
                holding.append(i)
                free -= 1
        for i in [i for i in holding if made[i] == requests[i][2]]:
            finished[i] = tick
            holding.remove(i)
        tick += 1
    segments: list[tuple[int, int, int, int, int]] = []
    last_live = 0
    for at, n, width, live in decoded:
        start, rows_, first, count, cells = segments[-1] if segments else (-1, 0, 0, 0, 0)
        if (at, n, width, live) == (start + count, rows_, first + count, last_live + n):
            segments[-1] = (start, rows_, first, count + 1, cells + live)
        else:
            segments.append((at, n, width, 1, live))
        last_live = live
    shapes: dict[tuple[int, int], int] = {}
    for _, n, width, _ in decoded:
        shapes[n, width] = shapes.get((n, width), 0) + 1
    return Slow(admitted, finished, segments, shapes)


def naive_bucket(rows: int, width: int, max_rows: int, max_len: int, multiple: int) -> tuple[int, int]:
    graph_rows = 1
    while graph_rows < rows:
        graph_rows *= 2
    return min(graph_rows, max_rows), min(-(-width // multiple) * multiple, max_len)


@pytest.mark.parametrize("seed", range(150))
def test_a_random_trace_runs_as_the_slow_oracle_says(seed: int, tmp_path: Path) -> None:
    """Through the reader, both rules for long requests, both modes: ticks, segments, cells and shapes."""
    draw = random.Random(seed)
    rows, max_len = draw.randint(1, 6), draw.randint(4, 40)
    multiple, step_ns = draw.choice([1, 3, 8, 128]), draw.choice([1, 7, MS, STEP, 1_000_003])
    spread = draw.choice([0, 1, 4, 30]) * step_ns
    at, requests = draw.randint(0, 99), []
    for _ in range(draw.randint(1, 14)):
        requests.append((at, draw.randint(1, 30), draw.randint(1, 20)))
        at += draw.randint(0, spread) if draw.random() < 0.7 else 0
    how = draw.choice(["reject", "clip"])
    kept = []
    for arrival, asked, wanted in requests:
        prompt = min(asked, max_len) if how == "clip" else asked
        output = min(wanted, max_len + 1 - prompt) if how == "clip" else wanted
        if prompt + output - 1 <= max_len:
            kept.append((arrival, prompt, output))
    options = TrafficOptions(source=str(trace(tmp_path / "t.jsonl", requests)), max_len=how)  # type: ignore[arg-type]
    if not kept:
        with pytest.raises(ValueError, match="no request fits"):
            load_traffic(options, max_len)
        return
    expected = slow([(arrival - kept[0][0], prompt, output) for arrival, prompt, output in kept], rows, step_ns)

    traffic = load_traffic(options, max_len)
    policy = DecodeBuckets(rows, max_len, width_multiple=multiple)
    settings = EngineSettings(policy, None, block_size=draw.choice([1, 4, 16]))
    run = bench_traffic(traffic, engine=settings, clock=ClockSettings(step_ns=step_ns), goodput_ms={})

    bucketed, opened = run.comparison.bucketed.replay, run.comparison.open.replay
    assert [r.admitted_step for r in bucketed.requests] == expected.admitted
    assert [r.finished_step for r in bucketed.requests] == expected.finished
    assert [tuple(segment) for segment in bucketed.steps] == expected.segments
    assert {(s.rows, s.width): n for s, n in opened.presented.items()} == expected.shapes
    presented: dict[tuple[int, int], int] = {}
    for (n, width), count in expected.shapes.items():
        key = naive_bucket(n, width, rows, max_len, multiple)
        presented[key] = presented.get(key, 0) + count
    assert {(s.rows, s.width): n for s, n in bucketed.presented.items()} == presented
    counts = run.row()
    assert counts["steps"] == sum(expected.shapes.values())
    assert counts["open_shapes"] == len(expected.shapes)
    assert counts["open_cells"] == sum(n * w * times for (n, w), times in expected.shapes.items())
    assert counts["live_cells"] == sum(segment[4] for segment in expected.segments)
    assert counts["padded_cells"] == sum(n * w * times for (n, w), times in presented.items())
    assert (counts["finished"], counts["requests"], counts["rejected"]) == (len(kept), len(kept), 0)
    account = traffic.account()
    assert account["requests_replayed"] + account["over_max_model_len"] == len(requests) == account["rows_read"]


SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
CROWD = [(0, 30, 9), (0, 12, 3), (10 * MS, 20, 14), (60 * MS, 5, 1), (60 * MS, 16, 20), (900 * MS, 33, 6)]
SMALL = ("--max-batch", 3, "--max-model-len", 64, "--width-multiple", 16)


@pytest.fixture
def crowd(tmp_path: Path) -> Path:
    return trace(tmp_path / "crowd.jsonl", CROWD)


def counts_only(found: Any) -> Any:
    """A document without what the clock on the wall and the start say."""
    dropped = {*TIME_COLUMNS, "started_utc", "warm_up_seconds", "planning"}
    if isinstance(found, dict):
        return {key: counts_only(value) for key, value in found.items() if key not in dropped}
    return [counts_only(value) for value in found] if isinstance(found, list) else found


class TestTheCommand:
    def test_a_second_run_is_byte_identical_but_for_its_times(self, crowd: Path) -> None:
        first, second = (document("--from", crowd, *SMALL) for _ in range(2))
        assert json.dumps(counts_only(first)) == json.dumps(counts_only(second))
        assert first["runs"][0]["step_ms_open"] is not None

    def test_host_only_and_the_engine_count_the_same(self, crowd: Path) -> None:
        ran, planned = (document("--from", crowd, *SMALL, *more)["runs"][0] for more in ((), ("--host-only",)))
        for name in ("steps", "open_shapes", "shapes_used", "open_cells", "live_cells", "padded_cells"):
            assert ran[name] == planned[name]
        assert ran["steps_per_shape"] == planned["steps_per_shape"]
        assert ran["partings"] == {"requests": 0, "widest_gap": 0.0}

    def test_trace_is_from_by_another_name(self, crowd: Path) -> None:
        by_name = (document(flag, crowd, "--host-only", *SMALL)["runs"] for flag in ("--from", "--trace"))
        assert counts_only(next(by_name)) == counts_only(next(by_name))

    def test_step_ms_is_the_grid(self, crowd: Path) -> None:
        """At 1 s a step the last, at 900 ms, arrives in tick 1."""
        found = document("--from", crowd, "--host-only", *SMALL, "--step-ms", 1000)
        assert found["settings"]["step_time"] == "1000"
        delay = found["runs"][0]["replay"]["schedule_delay_ms"]
        assert delay["mean"] == pytest.approx((0 + 0 + 990 + 940 + 940 + 100) / 6)

    @pytest.mark.parametrize("value", ["0", "-5", "inf", "nan"])
    def test_step_ms_is_positive_and_finite(self, value: str, crowd: Path) -> None:
        assert "step" in refused("--from", crowd, "--host-only", *SMALL, f"--step-ms={value}")

    @pytest.mark.parametrize("value", ["0", "-5", "inf", "nan"])
    def test_speedup_is_positive_and_finite(self, value: str, crowd: Path) -> None:
        assert "speedup" in refused("--from", crowd, "--clock", "real", *SMALL, f"--speedup={value}")

    def test_over_length_is_rejected_and_counted(self, crowd: Path) -> None:
        found = document("--from", crowd, "--host-only", "--max-model-len", 34)["runs"][0]
        assert found["accounting"] == {
            "requests_replayed": 3,
            "over_max_model_len": 3,
            "prompts_cut": 0,
            "outputs_cut": 0,
            "rows_read": 6,
            "rows_skipped": 0,
            "skipped_by_reason": {},
        }
        assert found["requests"] == found["finished"] == 3
        assert "3 requests over max_model_len 34 left out" in found["notes"]

    def test_over_length_is_clipped_and_counted(self, crowd: Path) -> None:
        """At 31: 30 + 9 loses outputs, 20 + 14 and 16 + 20 too, 33 + 6 loses prompt and outputs."""
        found = document("--from", crowd, "--host-only", "--max-model-len", 31, "--max-len", "clip")["runs"][0]
        account = found["accounting"]
        assert (account["requests_replayed"], account["prompts_cut"], account["outputs_cut"]) == (6, 1, 4)
        assert found["finished"] == 6

    def test_notes_go_to_stderr_and_quiet_drops_them(self, crowd: Path) -> None:
        loud = bench("--from", crowd, "--host-only", "--max-model-len", 34, "--json")
        assert "3 requests over max_model_len 34 left out" in loud.stderr
        assert json.loads(loud.stdout)["runs"][0]["notes"]
        assert bench("--from", crowd, "--host-only", "--max-model-len", 34, "--json", "-q").stderr == ""

    def test_limit_takes_the_first(self, crowd: Path) -> None:
        found = document("--from", crowd, "--host-only", *SMALL, "--limit", 2)["runs"][0]
        assert (found["requests"], found["accounting"]["rows_read"]) == (2, 2)

    def test_limit_of_drawn_traffic_adds_up(self) -> None:
        drawn = (
            "--num-requests",
            10,
            "--prompt-len",
            40,
            "--output-len",
            4,
            "--max-model-len",
            32,
            "--max-len",
            "clip",
        )
        account = document(*drawn, "--host-only", "--limit", 3)["runs"][0]["accounting"]
        assert (account["requests_replayed"], account["prompts_cut"]) == (3, 3)

    def test_a_bad_row_is_skipped_and_strict_stops_at_it(self, crowd: Path) -> None:
        lines = crowd.read_text().splitlines()
        crowd.write_text("\n".join([lines[0], '{"arrival_time_ns": 5, "input_toks": 0, "output_toks": 3}', *lines[1:]]))
        found = document("--from", crowd, "--host-only", *SMALL)["runs"][0]
        account = found["accounting"]
        assert (account["rows_read"], account["rows_skipped"], account["requests_replayed"]) == (7, 1, 6)
        assert sum(account["skipped_by_reason"].values()) == 1
        assert "line 2" in refused("--from", crowd, "--host-only", *SMALL, "--strict")

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "hello\n",
            "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
            "a,b,c\n",
            "\x00\x01\x02",
            "[]",
        ],
    )
    def test_a_file_that_is_no_trace_is_one_line(self, text: str, tmp_path: Path) -> None:
        path = tmp_path / "no-trace.csv"
        path.write_text(text)
        assert refused("--from", path).startswith(f"error: {path}: ")

    def test_a_file_that_is_not_there(self) -> None:
        assert refused("--from", "azure2023-convo").endswith("did you mean azure2023-conv?")

    def test_a_directory(self, tmp_path: Path) -> None:
        assert str(tmp_path) in refused("--from", tmp_path)

    def test_forced_and_unknown_formats(self, crowd: Path) -> None:
        assert document("--from", crowd, "--format", "llmservingsim", "--host-only", *SMALL)["runs"][0]["requests"] == 6
        assert "did you mean" in refused("--from", crowd, "--format", "llmservingsimm", "--host-only")

    def test_an_overloaded_pool_preempts_and_makes_the_same_tokens(self, crowd: Path, tmp_path: Path) -> None:
        """4 blocks of 16 hold one request of 64 tokens and no second long one."""
        tokens = {}
        for name, more in {"roomy": (), "tight": ("--num-blocks", 4)}.items():
            found = document("--from", crowd, *SMALL, "--out", tmp_path / name, *more)["runs"][0]
            assert found["finished"] == 6
            assert (found["preemptions"] > 0) == (name == "tight")
            rows = [json.loads(line) for line in (tmp_path / name / "requests.jsonl").read_text().splitlines()]
            assert len(rows) == 12
            tokens[name] = {(row["mode"], row["index"]): row["tokens"] for row in rows}
            assert all(len(row["tokens"]) == CROWD[row["index"]][2] == row["made"] for row in rows)
        assert tokens["tight"] == tokens["roomy"]
        assert all(tokens["roomy"]["open", i] == tokens["roomy"]["bucketed", i] for i in range(6))

    def test_a_pool_too_small_for_one_request_is_an_error_with_both_numbers(self, crowd: Path) -> None:
        message = refused("--from", crowd, *SMALL, "--num-blocks", 3)
        assert "3" in message
        assert "4" in message

    def test_a_run_without_decode_steps_has_no_step_figures(self, tmp_path: Path) -> None:
        path = trace(tmp_path / "t.jsonl", [(0, 5, 1), (1, 6, 1)])
        found = document("--from", path, *SMALL)["runs"][0]
        measured = ("plan_us_open", "step_ms_open", "step_ms_bucketed", "step_ratio", "tokens_per_s_open")
        assert [found[name] for name in measured] == [None] * len(measured)
        assert (found["steps"], found["finished"], found["steps_per_shape"]) == (0, 2, {})

    def test_a_run_without_decode_steps_prints_no_table_of_them(self, tmp_path: Path) -> None:
        shown = bench("--from", trace(tmp_path / "t.jsonl", [(0, 5, 1)]), "--host-only", *SMALL).stdout
        assert "Decode steps (this" not in shown
        assert "0.0%" not in shown

    def test_drawn_traffic_repeats_with_its_seed_and_differs_without(self) -> None:
        drawn = (
            "--num-requests",
            12,
            "--request-rate",
            20,
            "--prompt-len",
            "uniform:2,20",
            "--output-len",
            "uniform:1,9",
        )
        runs = [document(*drawn, "--host-only", *SMALL, "--seed", seed)["runs"] for seed in (3, 3, 4)]
        assert counts_only(runs[0]) == counts_only(runs[1])
        assert counts_only(runs[0]) != counts_only(runs[2])


class TestTheRealClock:
    def test_latencies_are_there_and_steps_are_not_asked_to_agree(self, crowd: Path) -> None:
        run = document(
            "--from", crowd, *SMALL, "--clock", "real", "--speedup", 10, "--goodput", "ttft:60000 tpot:60000"
        )["runs"][0]
        for mode in ("open", "bucketed"):
            found = run["latency_ms"][mode]
            assert {name: found[name]["samples"] for name in found} == {"ttft": 6, "itl": 47, "tpot": 5, "e2el": 6}
            assert found["ttft"]["p50"] <= found["e2el"]["p50"]
            assert run["throughput"][mode]["goodput_requests_per_s"] == run["throughput"][mode]["requests_per_s"]
        assert run["replay"]["clock"] == "real"
        assert run["replay"]["schedule_delay_ms"]["samples"] == 6
        assert run["finished"] == 6

    def test_one_token_outputs_give_no_itl_and_no_tpot(self, tmp_path: Path) -> None:
        path = trace(tmp_path / "t.jsonl", [(0, 5, 1), (MS, 6, 1)])
        result = bench("--from", path, *SMALL, "--clock", "real", "--json")
        assert set(json.loads(result.stdout)["runs"][0]["latency_ms"]["open"]) == {"ttft", "e2el"}
        shown = bench("--from", path, *SMALL, "--clock", "real").stdout
        assert "ttft ms open" in shown
        assert "itl ms" not in shown
        assert "tpot ms" not in shown

    def test_only_what_is_shown_is_defined(self, tmp_path: Path) -> None:
        path = trace(tmp_path / "t.jsonl", [(0, 5, 1)])
        assert "tpot: time per output token" not in bench("--from", path, *SMALL, "--clock", "real").stdout

    def test_the_virtual_clock_has_no_latencies(self, crowd: Path) -> None:
        run = document("--from", crowd, "--host-only", *SMALL)["runs"][0]
        assert (run["latency_ms"], run["throughput"]) == ({}, {})
        refusal = refused("--from", crowd, "--goodput", "ttft:500")
        assert refusal == "error: --goodput needs --clock real: the virtual clock has no latencies"

    @pytest.mark.parametrize("text", ["ttft", "itl:5", "ttft:0", "ttft:500,tpot:50", "ttft=5"])
    def test_goodput_is_read_before_anything_runs(self, text: str, crowd: Path) -> None:
        assert "is none of ttft:MS, tpot:MS, e2el:MS" in refused("--from", crowd, "--clock", "real", "--goodput", text)

    def test_an_empty_goodput_is_refused(self, crowd: Path) -> None:
        assert "goodput" in refused("--from", crowd, "--clock", "real", *SMALL, "--goodput", "")

    def test_a_real_run_records_no_step_ms(self, crowd: Path) -> None:
        assert document("--from", crowd, *SMALL, "--clock", "real", "--limit", 1)["settings"]["step_time"] is None

    def test_nothing_is_offered_before_it_is_due(self) -> None:
        arrivals = np.array([0, 20 * MS, 40 * MS], np.int64)
        load = Workload(arrivals, np.full(3, 4, np.int64), np.full(3, 3, np.int64))
        run = replay_real(Engine.build(None, 2, 16), load, speedup=2.0)
        assert [record.due_ns for record in run.requests] == [0, 10 * MS, 20 * MS]
        for record in run.requests:
            assert record.offered_ns is not None
            assert record.due_ns is not None
            assert record.due_ns <= record.offered_ns <= record.token_ns[0]
            assert record.token_ns == sorted(record.token_ns)
            assert len(record.token_ns) == 3
        assert run.wall_seconds >= 0.02


class TestPrompts:
    def test_a_prompt_is_its_seeds_and_its_indexs_alone(self) -> None:
        """Neither its length nor its neighbours change its beginning."""
        assert prompt_of(3, 20, 512, 7)[:5] == prompt_of(3, 5, 512, 7)
        assert prompt_of(3, 20, 512, 7) != prompt_of(4, 20, 512, 7)
        assert prompt_of(3, 20, 512, 7) != prompt_of(3, 20, 512, 8)
        assert max(prompt_of(0, 4000, 512, 0)) == 511
        assert prompt_of(0, 3, None, 0) == (0, 0, 0)


def test_open_and_bucketed_make_the_same_tokens_for_every_request_of_a_larger_crowd(tmp_path: Path) -> None:
    """Invariant 9 over 24 requests through the record files, and not through the command's own comparison."""
    draw = random.Random(5)
    requests = [(i * 7 * MS, draw.randint(1, 50), draw.randint(1, 30)) for i in range(24)]
    source = trace(tmp_path / "t.jsonl", requests)
    document("--from", source, "--max-batch", 5, "--max-model-len", 80, "--width-multiple", 32, "--out", tmp_path / "o")
    rows = [json.loads(line) for line in (tmp_path / "o" / "requests.jsonl").read_text().splitlines()]
    tokens = {mode: [row["tokens"] for row in rows if row["mode"] == mode] for mode in ("open", "bucketed")}
    assert tokens["open"] == tokens["bucketed"]
    assert [len(made) for made in tokens["open"]] == [output for _, _, output in requests]
    assert len({tuple(made[:3]) for made in tokens["open"] if len(made) >= 3}) > 10


def test_every_row_of_a_source_is_accounted_for_once(tmp_path: Path) -> None:
    traffic: Traffic = load_traffic(
        TrafficOptions(source=str(trace(tmp_path / "t.jsonl", CROWD)), max_len="reject"), max_model_len=34
    )
    settings = EngineSettings(DecodeBuckets(2, 34), None)
    run: BenchRun = bench_traffic(traffic, engine=settings, clock=ClockSettings(), goodput_ms={})
    assert run.comparison.bucketed.replay.outcomes == {"finished": 3}
    assert traffic.fitted.source_index.tolist() == [1, 2, 3]


class TestAPlantedFault:
    """A planted fault ends the command with 3, one line and nothing on stdout."""

    def failed(self, *arguments: object) -> str:
        result = bench(*arguments, "-q", "--json")
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (3, "", 1), result.stderr
        return result.stderr

    def test_plans_that_do_not_add_up_to_the_arithmetic(self, crowd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def off_by_one(*arguments: Any) -> Any:
            cost = price_run(*arguments)
            return replace(cost, padded_cells=cost.padded_cells + 1)

        monkeypatch.setattr(compare, "price_run", off_by_one)
        message = self.failed("--from", crowd, "--host-only", *SMALL)
        assert message.startswith("check failed: the plans that ran make (")

    def test_a_lost_request(self, crowd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its end never reaches the book."""
        end = replay_module._Book._end

        def lose(self: Any, output: Any, tick: int) -> None:
            if output.request_id != "2":
                end(self, output, tick)

        monkeypatch.setattr(replay_module._Book, "_end", lose)
        expected = "check failed: the open run lost 1 requests, the first is number 2\n"
        assert self.failed("--from", crowd, "--host-only", *SMALL) == expected

    def test_two_modes_that_took_different_steps(self, crowd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The second engine admits one row less."""
        settings = EngineSettings.build

        def narrower(self: EngineSettings, *, bucketed: bool) -> Engine:
            return settings(replace(self, policy=DecodeBuckets(2, 64)) if not bucketed else self, bucketed=bucketed)

        monkeypatch.setattr(EngineSettings, "build", narrower)
        assert "took different steps on one virtual clock" in self.failed("--from", crowd, "--host-only", *SMALL)

    def test_tokens_that_part_without_a_tie(self, crowd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """One token of the bucketed run is another."""
        close = replay_module._Book.close

        def tampered(self: Any) -> Replay:
            made = close(self)
            if self._engine.cache.decode_buckets is None or not any(map(any, made.tokens)):
                return made
            first = ((made.tokens[0][0] + 1) % 512, *made.tokens[0][1:])
            return replace(made, tokens=(first, *made.tokens[1:]))

        monkeypatch.setattr(replay_module._Book, "close", tampered)
        message = self.failed("--from", crowd, *SMALL)
        assert message.startswith("check failed: tokens part in 1 requests where the top two logits are up to ")


AZURE = Path(__file__).resolve().parents[3] / "shared/traces/azure2023/AzureLLMInferenceTrace_conv.csv"


@pytest.mark.slow
@pytest.mark.skipif(not AZURE.is_file(), reason=f"the trace is not here: {AZURE}")
class TestAnHourOfAzure:
    def test_the_whole_hour_is_planned_in_seconds_and_twice_the_same(self) -> None:
        """19,366 requests, every one replayed or over the length."""
        asked = ("--from", AZURE, "--host-only", "--max-batch", 256, "--max-model-len", 8192)
        start = time.monotonic()
        first = document(*asked)
        seconds = time.monotonic() - start
        assert counts_only(first) == counts_only(document(*asked))
        (run,) = first["runs"]
        account = run["accounting"]
        assert account["requests_replayed"] + account["over_max_model_len"] == account["rows_read"] == 19_366
        assert run["finished"] == run["requests"] == account["requests_replayed"]
        assert first["trace_key"] == "azure2023-conv"
        assert seconds < 60

    @pytest.mark.skipif(not cached_model(SMOLLM2_FILE).is_file(), reason="run `nanoserve fetch smollm2`")
    def test_smollm2_over_its_first_eight_requests(self) -> None:
        limits = ("--max-model-len", 2048, "--max-len", "clip", "--max-batch", 4)
        asked = ("--from", AZURE, "--limit", 8, *limits)
        first = document("--model", "smollm2", *asked)["runs"][0]
        planned = document(*asked, "--host-only")["runs"][0]
        assert (first["requests"], first["finished"]) == (8, 8)
        for name in ("steps", "open_shapes", "shapes_used", "open_cells", "live_cells", "padded_cells"):
            assert first[name] == planned[name]
        assert first["partings"]["widest_gap"] < 1e-4
