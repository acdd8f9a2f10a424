"""Each kind of file that a server leaves, from end to end: what is fitted, and what is said first."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tune_cases import drawn, run_of, tune_cli, write, write_trace

from nanoserve_cli.observed.detect import format_names
from nanoserve_cli.records import steps_csv
from nanoserve_cli.workload.formats import FORMATS

CAPTURED = "INFO 09-02 08:46:00 [cuda_graph.py:123] - Capture sizes: [1, 2, 4, 8, 16]\n"


def rows_at(second: int) -> int:
    """9 to 15 running, the same from one minute to the next."""
    return 9 + second * 7 % 60 % 7


def graph_tables() -> Iterator[str]:
    yield CAPTURED
    for second in range(300):
        stamp = f"INFO 09-02 08:{46 + second // 60:02d}:{second % 60:02d} [cuda_graph.py:123]"
        rows = rows_at(second)
        yield f"{stamp} | {rows} | 16 | {16 - rows} | FULL | 40 |\n"
        yield f"{stamp} | 900 | 900 | 0 | NONE | 2 |\n"


def iterations() -> Iterator[str]:
    for step in range(1500):
        stamp = f"INFO 09-11 11:{step // 60:02d}:{step % 60:02d} [core.py:512] Iteration({step}):"
        context = "1 context requests, 100 context tokens" if step % 10 == 0 else "0 context requests, 0 context tokens"
        yield f"{stamp} {context}, {rows_at(step)} generation requests, {rows_at(step)} generation tokens, 20 ms\n"


def engine_lines() -> Iterator[str]:
    for second in range(0, 3000, 10):
        stamp = f"INFO 05-19 10:{second // 60:02d}:{second % 60:02d} [loggers.py:271] Engine 000:"
        yield f"{stamp} Avg prompt throughput: 0.0 tokens/s, Running: {rows_at(second // 10)} reqs, Waiting: 0 reqs\n"


def decode_lines() -> Iterator[str]:
    yield "server_args=ServerArgs(max_running_requests=16, cuda_graph_bs=[1, 2, 4, 8, 12])\n"
    for second in range(300):
        rows = rows_at(second)
        stamp = f"[2026-04-05 20:{second // 60:02d}:{second % 60:02d}]"
        yield f"{stamp} Decode batch, #running-req: {rows}, #token: {rows * 300}, cuda graph: {rows <= 12}\n"


def prometheus() -> Iterator[str]:
    for second in range(300):
        yield f'vllm:num_requests_running{{model="m"}} {rows_at(second)} {1_700_000_000_000 + second * 1000}\n'


def running_csv() -> Iterator[str]:
    yield "timestamp,running\n"
    for second in range(300):
        yield f"{second},{rows_at(second)}\n"


def lifecycle() -> Iterator[str]:
    for i in range(400):
        record = {"request_id": str(i), "input_toks": 40, "output_toks": 20, "arrival_time": 1000.0 + i / 4}
        yield json.dumps(record | {"first_token_ts": 5.0 + i / 4, "last_token_ts": 7.6 + i / 4 + i % 4 / 8}) + "\n"


def recorded_steps() -> Iterator[str]:
    yield steps_csv(run_of(*[(rows_at(i), 20 + i % 9, 5) for i in range(300)]))


SOURCES: dict[str, Callable[[], Iterator[str]]] = {
    "vllm-cudagraph-metrics": graph_tables,
    "vllm-iterations": iterations,
    "vllm-engine": engine_lines,
    "sglang-decode": decode_lines,
    "prometheus": prometheus,
    "running": running_csv,
    "lifecycle": lifecycle,
    "steps": recorded_steps,
}


def test_every_kind_of_file_has_its_sample_here() -> None:
    assert set(format_names()) == set(SOURCES) | {known.name for known in FORMATS}


def tuned(folder: Path, kind: str, *arguments: object) -> tuple[dict[str, Any], str]:
    """The JSON document and what is said beside it."""
    path = write(folder / "server.log", SOURCES[kind]())
    result = tune_cli("--from", path, "--max-batch", 16, "--max-model-len", 256, "--json", *arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout), result.stderr


@pytest.mark.parametrize("kind", SOURCES)
def test_from_the_file_to_a_list(kind: str, tmp_path: Path) -> None:
    found, _ = tuned(tmp_path, kind, "--budget-graphs", 6, "--emit", "nanoserve")
    assert found["kind"] == kind
    assert found["objective"] == ("cells" if kind == "steps" else "rows")
    (load,) = found["loads"]
    assert load["held_out"], "every one of these has time"
    assert found["recommended"]["fitted"], found["recommended"]["reason"]
    policy = found["recommended"]["policy"]
    assert (policy["max_batch_size"], policy["max_model_len"]) == (16, 256)
    judged = {one["list"]: one["judged"] for one in load["lists"]}
    fitted = judged[found["recommended"]["list"]]
    assert fitted["waste"] < judged["default"]["waste"]
    assert fitted["available"] <= 6


@pytest.mark.parametrize("kind", SOURCES)
def test_its_name_given_it_is_the_same(kind: str, tmp_path: Path) -> None:
    assert tuned(tmp_path, kind, "--format", kind) == tuned(tmp_path, kind)


def test_what_was_served_eager_is_said_first(tmp_path: Path) -> None:
    path = write(tmp_path / "server.log", decode_lines())
    result = tune_cli("--from", path, "--max-model-len", 256)
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    assert text.startswith("served eager: 4,800 steps, 40.0% of all, by size: 13 (1,600), 14 (1,600), 15 (1,600);")
    assert "coverage: the server's list sends 44.4% of the steps to eager, this one none" in text
    assert tuned(tmp_path, "sglang-decode")[0]["eager"]["weight"] == 4800


def test_the_servers_own_list_is_the_baseline_and_sets_the_budget(tmp_path: Path) -> None:
    found, _ = tuned(tmp_path, "vllm-cudagraph-metrics")
    assert found["budget_graphs"] == 5
    assert found["baseline"]["list"] == "server's list"
    assert found["recommended"]["reason"].endswith("than the server's list (5 graphs), on the part held out")
    found, _ = tuned(tmp_path, "sglang-decode")
    assert found["budget_graphs"] == 6, "its five sizes end at 12, and 16 is the largest batch"
    assert found["baseline"] == {
        "list": "server's list*",
        "rows_ladder": "server",
        "width_ladder": "multiple:256",
        "completed": True,
        "fitted": False,
    }


def test_steps_with_prefill_are_shown_and_not_fitted(tmp_path: Path) -> None:
    found, _ = tuned(tmp_path, "vllm-cudagraph-metrics")
    assert "counted and not fitted, steps with prefill or off the graphs: 600 of mode NONE" in found["notes"]
    assert found["eager"]["weight"] == 600
    found, _ = tuned(tmp_path, "vllm-iterations")
    assert "counted and not fitted, steps with prefill or off the graphs: 150 of mode context" in found["notes"]


def test_a_log_without_time_is_fitted_and_says_that_nothing_was_held_out(tmp_path: Path) -> None:
    lines = [line.split("] ", 1)[1] if line.startswith("INFO") else line for line in graph_tables()]
    path = write(tmp_path / "server.log", lines)
    result = tune_cli("--from", path, "--max-batch", 16, "--max-model-len", 256)
    assert result.exit_code == 0, result.output
    assert "server.log, load 1: rows on what it was fitted to\n" in result.stdout
    assert "server.log: nothing is held out: no line has a date and time\n" in result.stderr
    refused = tune_cli("--from", path, "--holdout", 0.3)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr == (
        f"error: {path}: --holdout 0.3 needs time: no line has a date and time; give --holdout 0\n"
    )


def test_three_lines_are_thin_evidence(tmp_path: Path) -> None:
    path = write(tmp_path / "server.log", list(decode_lines())[:4])
    result = tune_cli("--from", path, "--max-model-len", 256)
    assert "warning: thin evidence: 3 samples; 200 or more would tell a list from chance\n" in result.stderr


def test_a_request_trace_is_simulated(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.csv", drawn(100))
    result = tune_cli("--from", path, "--max-batch", 16, "--max-model-len", 256, "--budget-graphs", 6, "--json")
    found = json.loads(result.stdout)
    assert found["size"] == {"requests": 100}
    assert found["objective"] == "cells"
