"""The columns of every results CSV: `runs.csv` of a bench, and a sweep's file. One schema, documented here alone.

A row is one run under one policy. Counts are the same on every machine; times are of the machine in `device`; a
column that was not measured is empty. The order here is the file's; `dtype` is the pandas type it is read as.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SCHEMA_VERSION = 2

Kind = Literal["provenance", "setting", "count", "time"]
Dtype = Literal["string", "Int64", "Float64", "boolean"]
Better = Literal["lower", "higher", ""]


@dataclass(frozen=True)
class Column:
    """One column: its name, what it is for, the type it is read as, what it holds, and which way is better.

    `better` is empty for what only says which run it was: no change of it is good or bad.
    """

    name: str
    kind: Kind
    dtype: Dtype
    about: str
    better: Better = ""


def _provenance(name: str, dtype: Dtype, about: str) -> Column:
    return Column(name, "provenance", dtype, about)


def _setting(name: str, dtype: Dtype, about: str) -> Column:
    return Column(name, "setting", dtype, about)


def _count(name: str, dtype: Dtype, about: str, better: Better = "lower") -> Column:
    return Column(name, "count", dtype, about, better)


def _time(name: str, about: str, better: Better = "lower") -> Column:
    return Column(name, "time", "Float64", about, better)


COLUMNS = (
    _provenance("schema_version", "Int64", "of these columns"),
    _provenance("started_utc", "string", "when the command began, with its zone"),
    _provenance("command", "string", "the whole command line"),
    _provenance("git_sha", "string", "the commit of a checkout"),
    _provenance("git_dirty", "boolean", "whether the checkout differed from it"),
    _provenance("code_sha256", "string", "of the installed sources: what a resumed sweep compares"),
    _provenance("nanoserve_version", "string", ""),
    _provenance("python_version", "string", ""),
    _provenance("torch_version", "string", "empty where no tensor was touched"),
    _provenance("device", "string", "its name; empty where no tensor was touched"),
    _provenance("driver", "string", "of a CUDA device"),
    _provenance("seed", "Int64", "of weights, prompts and synthetic traffic"),
    _provenance("trace_key", "string", "of a registered trace"),
    _provenance("trace_sha256", "string", "of the trace file as it lies on disk"),
    _provenance("config_hash", "string", "of every setting of the point that can move a figure"),
    _setting("workload", "string", "the traffic in words"),
    _setting("model", "string", ""),
    _setting("runner", "string", "eager, compiled, graphs; empty where nothing ran"),
    _setting("dtype", "string", ""),
    _setting("max_batch_size", "Int64", "the most rows of a step"),
    _setting("max_model_len", "Int64", "the widest step"),
    _setting("policy", "string", "the closed set in words"),
    _setting("rows_ladder", "string", "the rule of its row buckets; empty for a policy file"),
    _setting("width_ladder", "string", "the rule of its width buckets"),
    _setting("completed", "boolean", "false for a list that lacks its maxima as its system has it"),
    _setting("clock", "string", "virtual or real"),
    _setting("step_time", "string", "how long a step of the virtual clock lasts"),
    _setting("objective", "string", "what waste is a share of: rows, cells, time"),
    _setting("repeats", "Int64", "runs behind the times"),
    _count("steps", "Int64", "decode steps", ""),
    _count("open_shapes", "Int64", "distinct shapes of the steps as they came", ""),
    _count("shapes_used", "Int64", "distinct shapes that ran on the list"),
    _count("shapes_available", "Int64", "the whole closed set: graphs to capture"),
    _count("waste", "Float64", "1 - open / padded cells"),
    _count("total_waste", "Float64", "1 - live / padded cells"),
    _count("open_cells", "Int64", "rows x width, summed over the steps", ""),
    _count("live_cells", "Int64", "the rows' own contexts", ""),
    _count("padded_cells", "Int64", "graph rows x graph width"),
    _count("ragged_padding", "Int64", "open - live", ""),
    _count("width_padding", "Int64", "rows x (graph width - width)"),
    _count("row_padding", "Int64", "(graph rows - rows) x graph width"),
    _count("off_list_steps", "Int64", "steps no shape covers: eager, unpadded"),
    _count("compiles_open", "Int64", "dynamo's, of the open run"),
    _count("compiles_bucketed", "Int64", "dynamo's, of the shapes used"),
    _count("recompiles_bucketed", "Int64", "after every used shape was seen once"),
    _count("abandoned_open", "Int64", "frames that dynamo gave up at its limit"),
    _count("captures_open", "Int64", "graphs the open run made"),
    _count("captures_bucketed", "Int64", "graphs the bucketed run made"),
    _count("captures_after_warm_up", "Int64", "those of them made in serving"),
    _count("replay_share", "Float64", "steps that replayed a graph", "higher"),
    _count("capture_mib", "Float64", "MiB of the graphs' shared pool, predicted on the model"),
    _count("falls_back_open", "string", "why the open run ends up eager", ""),
    _count("falls_back_bucketed", "string", "why the bucketed run would", ""),
    _count("requests", "Int64", "offered", ""),
    _count("finished", "Int64", "", "higher"),
    _count("rejected", "Int64", ""),
    _count("failed", "Int64", ""),
    _count("preemptions", "Int64", ""),
    _time("plan_ms_open", "host time to plan a whole lockstep run at open shapes"),
    _time("plan_ms_bucketed", "the same under the policy"),
    _time("plan_us_open", "host time to plan one step at its open shape, median"),
    _time("plan_us_bucketed", "the same under the policy"),
    _time("step_ms_open", "a decode step, median"),
    _time("step_ms_bucketed", "the same under the policy"),
    _time("step_ratio", "bucketed / open, step by step, median"),
    _time("step_ratio_low", "its lower quartile; over repeats where there are several"),
    _time("step_ratio_high", "its upper quartile"),
    _time("tokens_per_s_open", "decoded tokens a second of decoding", "higher"),
    _time("tokens_per_s_bucketed", "the same under the policy", "higher"),
    _time("capture_s", "seconds to capture the whole set, predicted from two small captures, high end"),
    _time("capture_s_measured", "seconds the captures took"),
    _time("capture_mib_measured", "MiB the graphs' pool holds"),
)

RUN_COLUMNS = tuple(column.name for column in COLUMNS)
COUNT_COLUMNS = tuple(column.name for column in COLUMNS if column.kind == "count")
TIME_COLUMNS = tuple(column.name for column in COLUMNS if column.kind == "time")
PROVENANCE_COLUMNS = tuple(column.name for column in COLUMNS if column.kind == "provenance")
SETTING_COLUMNS = tuple(column.name for column in COLUMNS if column.kind == "setting")
DTYPES: dict[str, str] = {column.name: column.dtype for column in COLUMNS}
KEY_COLUMNS = (
    "workload",
    "seed",
    "model",
    "runner",
    "dtype",
    "max_batch_size",
    "max_model_len",
    "policy",
    "rows_ladder",
    "width_ladder",
    "completed",
    "clock",
    "step_time",
    "objective",
)
"""What says which run a row is: rows of two files are the same point where these are equal."""
