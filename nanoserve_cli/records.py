"""One bench run on disk.

`run.json` is the whole of it, `requests.jsonl` a line a request and mode, `steps.csv` its segments, and, where a model
ran, `step_times.csv` how long the steps of each shape took. `runs.csv` gathers one row a run; its columns are
`columns.COLUMNS`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nanoserve.pricing import RunCost
from nanoserve.steps import Segment, Steps
from nanoserve_cli.compare import Comparison, ModeRun, falls_back, step_ratio
from nanoserve_cli.csv_file import RecordsError, csv_line, write_atomically
from nanoserve_cli.planning import PlanTimes
from nanoserve_cli.replay import Replay
from nanoserve_cli.stats import Spread
from nanoserve_cli.step_times_file import step_times_csv


def cost_columns(cost: RunCost) -> dict[str, Any]:
    """The count columns that are arithmetic, a run's steps under a policy, and what they are counted in."""
    return {
        "objective": "cells",
        "steps": cost.steps,
        "open_shapes": cost.open_shapes,
        "shapes_used": cost.shapes_used,
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
        "falls_back_open": falls_back(cost.open_shapes),
        "falls_back_bucketed": falls_back(cost.shapes_used),
    }


def count_columns(comparison: Comparison) -> dict[str, Any]:
    """The count columns of a comparison: the same on every machine under the virtual clock."""
    opened, bucketed = comparison.open, comparison.bucketed
    outcomes = bucketed.replay.outcomes
    return {
        **cost_columns(comparison.cost),
        "compiles_open": opened.compiled and opened.compiled.compiles,
        "compiles_bucketed": bucketed.compiled and bucketed.compiled.compiles,
        "recompiles_bucketed": bucketed.compiled and bucketed.compiled.recompiles,
        "abandoned_open": opened.compiled and opened.compiled.abandoned,
        **_graph_columns(opened, bucketed),
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
    """The time columns of a comparison; those that were not measured are None. Medians, and quartiles of the ratio."""
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
    return columns


def write_run(folder: Path, document: Mapping[str, Any], comparison: Comparison) -> None:
    """Writes one run into `folder`: `run.json`, `requests.jsonl`, `steps.csv`, each whole or not at all.

    And `step_times.csv` where steps were timed; else one of an earlier run is removed.

    Raises RecordsError where the folder cannot be written.
    """
    replays = {"open": comparison.open.replay, "bucketed": comparison.bucketed.replay}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lines = (line for mode, replay in replays.items() for line in _requests_jsonl(mode, replay))
        write_atomically(folder / "requests.jsonl", "".join(lines))
        write_atomically(folder / "steps.csv", steps_csv(comparison.bucketed.replay.steps))
        if (times := step_times_csv(comparison)) is None:
            (folder / "step_times.csv").unlink(missing_ok=True)
        else:
            write_atomically(folder / "step_times.csv", times)
        write_atomically(folder / "run.json", json.dumps(document, indent=2) + "\n")
    except OSError as error:
        raise RecordsError(f"{folder}: cannot write the results: {error.strerror or error}") from None


def steps_csv(steps: Steps) -> str:
    """The segments of a run as CSV: `start_step,rows,width,steps,live_cells`."""
    return csv_line(Segment._fields) + "".join(csv_line(segment) for segment in steps)


def _requests_jsonl(mode: str, replay: Replay) -> Iterator[str]:
    for record, tokens in zip(replay.requests, replay.tokens, strict=True):
        derived = {"queue_steps": record.queue_steps, "service_steps": record.service_steps, "tokens": tokens}
        yield json.dumps({"mode": mode} | vars(record) | derived) + "\n"
