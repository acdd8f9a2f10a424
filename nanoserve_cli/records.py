"""Results as evidence: what was run, on what, and what came out, written so that a crash loses nothing.

`run.json` is the whole of one run, `requests.jsonl` a line a request and mode, `steps.csv` its segments; `runs.csv`
gathers one row a run. The columns of `runs.csv` are `RUN_COLUMNS`, in order; one that was not measured is empty.
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from nanoserve.steps import Segment, Steps
from nanoserve_cli.compare import Comparison, ModeRun, step_ratio
from nanoserve_cli.planning import PlanTimes
from nanoserve_cli.replay import Replay
from nanoserve_cli.stats import Spread

SCHEMA_VERSION = 1

PROVENANCE_COLUMNS = (
    "schema_version",
    "started_utc",
    "command",
    "git_sha",
    "git_dirty",
    "nanoserve_version",
    "python_version",
    "torch_version",
    "device",
    "driver",
    "seed",
    "trace_key",
    "trace_sha256",
)
COUNT_COLUMNS = (
    "steps",
    "open_shapes",
    "bucketed_shapes",
    "shapes_available",
    "waste",
    "total_waste",
    "open_cells",
    "live_cells",
    "padded_cells",
    "ragged_padding",
    "width_padding",
    "row_padding",
    "off_list_steps",
    "compiles_open",
    "compiles_bucketed",
    "recompiles_bucketed",
    "abandoned_open",
    "captures_open",
    "captures_bucketed",
    "captures_after_warm_up",
    "replay_share",
    "falls_back_open",
    "falls_back_bucketed",
    "requests",
    "finished",
    "rejected",
    "failed",
    "preemptions",
)
TIME_COLUMNS = (
    "plan_ms_open",
    "plan_ms_bucketed",
    "plan_us_open",
    "plan_us_bucketed",
    "step_ms_open",
    "step_ms_bucketed",
    "step_ratio",
    "step_ratio_low",
    "step_ratio_high",
    "tokens_per_s_open",
    "tokens_per_s_bucketed",
)
SETTING_COLUMNS = (
    "workload",
    "model",
    "runner",
    "dtype",
    "max_batch_size",
    "max_model_len",
    "policy",
    "clock",
    "step_ms",
)
RUN_COLUMNS = PROVENANCE_COLUMNS + SETTING_COLUMNS + COUNT_COLUMNS + TIME_COLUMNS


class RecordsError(ValueError):
    """A results file that cannot be written or added to; nothing in it was changed."""


def provenance(*, seed: int, device: str | None, trace_key: str | None, trace_sha256: str | None) -> dict[str, Any]:
    """The provenance columns of a run that starts now. `device` is None where no tensor was touched."""
    sha, dirty = _git_state()
    return {
        "schema_version": SCHEMA_VERSION,
        "started_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["nanoserve", *sys.argv[1:]]),
        "git_sha": sha,
        "git_dirty": dirty,
        "nanoserve_version": metadata.version("nanoserve"),
        "python_version": platform.python_version(),
        "torch_version": None if device is None else metadata.version("torch"),
        "device": _device_name(device),
        "driver": _driver(device),
        "seed": seed,
        "trace_key": trace_key,
        "trace_sha256": trace_sha256,
    }


def count_columns(comparison: Comparison) -> dict[str, Any]:
    """`COUNT_COLUMNS` of a comparison: the same on every machine under the virtual clock."""
    cost, opened, bucketed = comparison.cost, comparison.open, comparison.bucketed
    outcomes = bucketed.replay.outcomes
    return {
        "steps": cost.steps,
        "open_shapes": cost.open_shapes,
        "bucketed_shapes": cost.shapes_used,
        "shapes_available": cost.shapes_available,
        "waste": cost.waste,
        "total_waste": cost.total_waste,
        "open_cells": cost.open_cells,
        "live_cells": cost.live_cells,
        "padded_cells": cost.padded_cells,
        "ragged_padding": cost.ragged_padding,
        "width_padding": cost.width_padding,
        "row_padding": cost.row_padding,
        "off_list_steps": cost.off_list_steps,
        "compiles_open": opened.compiled and opened.compiled.compiles,
        "compiles_bucketed": bucketed.compiled and bucketed.compiled.compiles,
        "recompiles_bucketed": bucketed.compiled and bucketed.compiled.recompiles,
        "abandoned_open": opened.compiled and opened.compiled.abandoned,
        **_graph_columns(opened, bucketed),
        "falls_back_open": comparison.falls_back_open,
        "falls_back_bucketed": comparison.falls_back_bucketed,
        "requests": len(bucketed.replay.requests),
        "finished": outcomes.get("finished", 0),
        "rejected": outcomes.get("rejected", 0),
        "failed": outcomes.get("failed", 0),
        "preemptions": bucketed.replay.preemptions,
    }


def _graph_columns(opened: ModeRun, bucketed: ModeRun) -> dict[str, Any]:
    """Captures of a run with graphs: the open run's as it went, the bucketed run's at warm-up and after it."""
    if opened.graphs is None or bucketed.graphs is None or bucketed.warm_up_graphs is None:
        return {}
    return {
        "captures_open": opened.graphs.captures,
        "captures_bucketed": bucketed.warm_up_graphs.captures + bucketed.graphs.captures,
        "captures_after_warm_up": bucketed.graphs.captures,
        "replay_share": bucketed.graphs.replay_share,
    }


def time_columns(comparison: Comparison, planning: PlanTimes | None) -> dict[str, Any]:
    """`TIME_COLUMNS` of a comparison; those that were not measured are None. Medians, and quartiles of the ratio."""
    columns: dict[str, Any] = {"plan_ms_open": planning and planning.open_median}
    columns["plan_ms_bucketed"] = planning and planning.bucketed_median
    for mode, run in (("open", comparison.open), ("bucketed", comparison.bucketed)):
        plan = Spread.of(run.replay.plan_seconds * 1e6)
        columns[f"plan_us_{mode}"] = plan and plan.median
        step = Spread.of(run.replay.decode_seconds * 1e3) if comparison.partings is not None else None
        columns[f"step_ms_{mode}"] = step and step.median
        columns[f"tokens_per_s_{mode}"] = step and run.replay.decoded_tokens / float(run.replay.decode_seconds.sum())
    ratio = step_ratio(comparison)
    columns["step_ratio"] = ratio and ratio.median
    columns["step_ratio_low"] = ratio and ratio.low
    columns["step_ratio_high"] = ratio and ratio.high
    return {name: columns[name] for name in TIME_COLUMNS}


def write_run(folder: Path, document: Mapping[str, Any], comparison: Comparison) -> None:
    """Writes one run into `folder`: `run.json`, `requests.jsonl`, `steps.csv`, each whole or not at all.

    Raises RecordsError where the folder cannot be written.
    """
    replays = {"open": comparison.open.replay, "bucketed": comparison.bucketed.replay}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lines = (line for mode, replay in replays.items() for line in _requests_jsonl(mode, replay))
        write_atomically(folder / "requests.jsonl", "".join(lines))
        write_atomically(folder / "steps.csv", steps_csv(comparison.bucketed.replay.steps))
        write_atomically(folder / "run.json", json.dumps(document, indent=2) + "\n")
    except OSError as error:
        raise RecordsError(f"{folder}: cannot write the results: {error.strerror or error}") from None


def write_atomically(path: Path, text: str) -> None:
    """Writes a file beside its place and moves it there: a reader sees the old one or the new one, never half of it."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def prepare_folder(folder: Path) -> None:
    """That results can go into `folder`, which is made: said before an hour's run and not after it.

    Raises RecordsError where it cannot be written or its `runs.csv` has other columns.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RecordsError(f"{folder}: cannot write the results: {error.strerror or error}") from None
    table = folder / "runs.csv"
    try:
        if table.exists():
            with table.open("r+b") as file:
                _check_header(table, file.readline())
    except OSError as error:
        raise RecordsError(f"{table}: cannot be added to: {error.strerror or error}") from None


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Adds one row to a CSV with `RUN_COLUMNS`, in one write under a lock.

    Raises RecordsError where the file has other columns or cannot be written.
    """
    line = _csv_line([_cell(row.get(column)) for column in RUN_COLUMNS])
    try:
        with path.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            first = file.readline()
            _check_header(path, first)
            if not first.endswith(b"\n"):
                file.truncate(0)
                file.write(_HEADER)
            file.seek(0)
            file.write(_closing(file.read()) + line.encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise RecordsError(f"{path}: cannot be added to: {error.strerror or error}") from None


def _check_header(path: Path, first: bytes) -> None:
    """That a first line is the header, or the beginning of one that was cut short."""
    if first != _HEADER and (first.endswith(b"\n") or not _HEADER.startswith(first)):
        raise RecordsError(
            f"{path}: has other columns than schema {SCHEMA_VERSION}: move it away or choose another --out"
        )


def _closing(content: bytes) -> bytes:
    """What ends a row that was cut short by a kill, so that it does not swallow the next: its quote, and its line."""
    if content.endswith(b"\n") and content.count(b'"') % 2 == 0:
        return b""
    return b'"\n' if content.count(b'"') % 2 else b"\n"


def steps_csv(steps: Steps) -> str:
    """The segments of a run as CSV: `start_step,rows,width,steps,live_cells`."""
    return _csv_line(Segment._fields) + "".join(_csv_line(segment) for segment in steps)


def _requests_jsonl(mode: str, replay: Replay) -> Iterator[str]:
    for record, tokens in zip(replay.requests, replay.tokens, strict=True):
        derived = {"queue_steps": record.queue_steps, "service_steps": record.service_steps, "tokens": tokens}
        yield json.dumps({"mode": mode} | vars(record) | derived) + "\n"


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else value


def _csv_line(values: Sequence[Any]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(values)
    return buffer.getvalue()


def _git_state() -> tuple[str | None, bool | None]:
    """The commit this code is at and whether it differs from it; None outside a checkout."""
    here = Path(__file__).resolve().parent
    try:
        sha = _git(here, "rev-parse", "HEAD")
        return sha, bool(_git(here, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None, None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()


def _device_name(device: str | None) -> str | None:
    if device is None:
        return None
    if device.startswith("cuda"):
        import torch

        return str(torch.cuda.get_device_name(device))
    return f"{_cpu_model()} ({os.cpu_count()} cores)"


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _driver(device: str | None) -> str | None:
    if device is None or not device.startswith("cuda"):
        return None
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
        return done.stdout.splitlines()[0].strip()
    except (OSError, subprocess.SubprocessError, IndexError):
        return None


_HEADER = _csv_line(RUN_COLUMNS).encode()
