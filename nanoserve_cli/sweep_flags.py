"""The command line of `nanoserve sweep` as the mapping that its spec file would be."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from nanoserve.ladders import split_rules
from nanoserve_cli.options import parse_list

LISTS = ("max_batch", "max_model_len", "width_multiple")
RULES = ("rows_ladder", "width_ladder")
AS_THEY_ARE = (
    "link",
    "step_time",
    "seed",
    "repeats",
    "budget_graphs",
    "budget_mib",
    "measure",
    "measure_compiles",
    "model",
    "runner",
    "compile_backend",
    "device",
    "dtype",
)
LOCKSTEP = ("rows", "prompt", "steps")
SHARED = ("limit", "max_len", "request_rate", "burstiness")
DRAWN = ("num_requests", "prompt_len", "output_len")


def with_flags(document: Mapping[str, Any], params: Mapping[str, Any], given: Collection[str]) -> dict[str, Any]:
    """A spec's mapping with what the command line gives over it. `given` are the flags that it names.

    Raises ValueError, naming the flag, for a list that is none.
    """
    named = {flag.removeprefix("--").replace("-", "_") for flag in given}
    merged = dict(document)
    if named & {"width_multiple", "width_ladder"}:
        merged.pop("width_multiple", None)
        merged.pop("width_ladder", None)
    for key in LISTS:
        if key in named:
            merged[key] = list(parse_list(params[key], f"--{key.replace('_', '-')}"))
    for key in RULES:
        if key in named:
            merged[key] = list(split_rules(params[key]))
    merged |= {key: params[key] for key in AS_THEY_ARE if key in named}
    if traffic := _traffic(params, named):
        merged["traffic"] = traffic
    return merged


def _traffic(params: Mapping[str, Any], named: set[str]) -> list[dict[str, Any]]:
    """The traffic that flags ask for, replacing a spec's; none where they do not."""
    shared = {key: params[key] for key in SHARED if key in named}
    if "from" in named:
        recorded = {"format": params["trace_format"]} if params["trace_format"] is not None else {}
        return [{"from": source, **recorded, "strict": params["strict"], **shared} for source in params["source"]]
    if "num_requests" in named:
        return [{key: params[key] for key in DRAWN if key in named} | shared]
    if named & set(LOCKSTEP):
        return [{key: params[key] for key in LOCKSTEP if key in named}]
    if stray := sorted(named & {*SHARED, *DRAWN, "trace_format", "strict"}):
        raise ValueError(f"--{stray[0].replace('_', '-')} is a flag of traffic: add --from FILE or --num-requests N")
    return []
