"""What SGLang's decode lines give."""

from pathlib import Path

import pytest

from nanoserve_cli.observed.detect import read_observed
from nanoserve_cli.observed.model import Observed, Sample
from nanoserve_cli.workload.errors import TraceError


def read(tmp_path: Path, text: str) -> Observed:
    path = tmp_path / "server"
    path.write_text(text)
    return read_observed(path)


def line(clock: str, rows: int, *, tokens: int = 100, graph: str = "True", rank: str = "") -> str:
    return (
        f"[2026-04-05 20:02:{clock}{rank}] Decode batch, #running-req: {rows}, #token: {tokens}, token usage: 0.08, "
        f"cuda graph: {graph}, gen throughput (token/s): 1635.11, #queue-req: 0, \n"
    )


PREFILL = (
    "[2026-04-05 20:02:51] Prefill batch, #new-seq: 1, #new-token: 158, #cached-token: 0, token usage: 0.08, "
    "#running-req: 31, #queue-req: 0, cuda graph: True, input throughput (token/s): 559.53\n"
)


def test_a_line_stands_for_forty_steps_and_prefill_lines_for_none(tmp_path: Path) -> None:
    seen = read(tmp_path, line("51", 32, tokens=3200) + PREFILL + line("53", 29, tokens=1680))
    assert (seen.kind, seen.weight_unit, seen.rows) == ("sglang-decode", "steps", ((29, 40), (32, 40)))
    assert seen.samples == (Sample(0, 32, 40), Sample(2, 29, 40))
    assert seen.mean_width == 80
    assert "each line stands for 40 decode steps (the default, assumed)" in seen.notes


def test_the_interval_that_the_log_states_is_taken(tmp_path: Path) -> None:
    start = "server_args=ServerArgs(max_running_requests=48, decode_log_interval=10, cuda_graph_max_bs=4)\n"
    seen = read(tmp_path, start + line("51", 32))
    assert (seen.rows, seen.max_batch) == (((32, 10),), 48)
    assert "each line stands for 10 decode steps (as the log says)" in seen.notes


def test_the_older_shapes(tmp_path: Path) -> None:
    seen = read(
        tmp_path,
        "2025-12-04 20:35:53 INFO 1519 [scheduler_metrics_mixin.py:287] Decode batch. #running-req: 48, #token: 96, "
        "token usage: 0.00, accept len: 1.00, cuda graph: False, gen throughput (token/s): 5452.63, #queue-req: 0, \n"
        "[2025-12-04 20:35:54 TP0] Decode batch. #running-req: 47, #token: 94, token usage: 0.00, gen throughput "
        "(token/s): 5452.63, #queue-req: 0\n"
        "[2025-12-04 20:35:55 DP0 TP0 EP0] Decode batch [30122], #running-req: 31, #full token: 62, cuda graph: True\n",
    )
    assert seen.rows == ((31, 40), (47, 40), (48, 40))
    assert seen.mean_width == 2


def test_lines_that_say_no_graph_are_the_eager_weight(tmp_path: Path) -> None:
    eager = read(tmp_path, line("51", 32) + line("52", 70, graph="False") + line("53", 70, graph="False")).eager
    assert eager is not None
    assert (eager.weight, eager.rows, eager.basis) == (80, ((70, 80),), "the lines say so")


def test_lines_without_the_flag_are_judged_by_the_capture_list(tmp_path: Path) -> None:
    start = "[2026-04-05 20:02:40] Capture cuda graph bs [1, 2, 4]\n"
    seen = read(tmp_path, start + "[2026-04-05 20:02:51] Decode batch. #running-req: 5, #token: 9\n")
    assert seen.capture_sizes == (1, 2, 4)
    assert seen.eager is not None
    assert seen.eager.rows == ((5, 40),)


def test_data_parallel_ranks_add_up_and_tensor_parallel_ranks_repeat(tmp_path: Path) -> None:
    text = "".join(
        line("51", rows, rank=rank)
        for rows, rank in ((8, " DP0 TP0"), (8, " DP0 TP1"), (5, " DP1 TP2"), (5, " DP1 TP3"))
    )
    seen = read(tmp_path, text)
    assert seen.rows == ((5, 40), (8, 40))
    assert [(some.reason, some.count, some.first_line) for some in seen.skipped] == [
        ("another rank's copy of its engine's line", 2, 2)
    ]


def test_a_rank_that_is_named_only_now_and_then_is_one_engine(tmp_path: Path) -> None:
    assert read(tmp_path, line("51", 8) + line("52", 9, rank=" TP0")).rows == ((8, 40), (9, 40))


def test_a_line_cut_short_is_counted(tmp_path: Path) -> None:
    seen = read(
        tmp_path, line("51", 8) + line("52", 9)[:43] + "\n" + "[2026-04-05 20:02:54] Decode batch, #running-req: "
    )
    assert seen.rows == ((8, 40),)
    assert sum(some.count for some in seen.skipped) == 2


def test_a_server_that_only_prefills_has_no_decode_step(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="nothing in it tells the rows of a decode step"):
        read(tmp_path, PREFILL)
