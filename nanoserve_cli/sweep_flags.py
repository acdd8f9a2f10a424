"""The command line of `nanoserve sweep` as the mapping that its spec file would be."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from nanoserve.ladders import split_rules
from nanoserve_cli.options import parse_list
from nanoserve_cli.sweep_spec import KEYS, LOCKSTEP_KEYS, NUMBER_LISTS, RULE_LISTS, SHARED_KEYS

WIDTHS = ("width_multiple", "width_ladder")
RECORDED = ("trace_format", "strict", *SHARED_KEYS)
DRAWN = ("prompt_len", "output_len", *SHARED_KEYS)
MORE = tuple(dict.fromkeys((*RECORDED, *DRAWN, *LOCKSTEP_KEYS)))
"""Flags that say more of traffic; only those of a lockstep run ask for it, too."""
KEY_OF = {"trace_format": "format"}
"""Flags of traffic that a spec has under another name: --format is what stdout gets."""


def with_flags(document: Mapping[str, Any], params: Mapping[str, Any], given: Collection[str]) -> dict[str, Any]:
    """A spec's mapping with what the command line gives over it. `given` are the flags that it names.

    Raises ValueError, naming the flag, for a list that is none and for flags of different traffic.
    """
    named = {flag.removeprefix("--").replace("-", "_") for flag in given}
    merged = {key: value for key, value in document.items() if not (key in WIDTHS and named & set(WIDTHS))}
    for key in KEYS:
        if key not in named:
            continue
        if key in ("width_multiple", *NUMBER_LISTS):
            merged[key] = parse_list(params[key], _flag(key), distinct=False)
        else:
            merged[key] = split_rules(params[key]) if key in RULE_LISTS else params[key]
    if traffic := _traffic(params, named, document.get("traffic")):
        merged["traffic"] = traffic
    return merged


def _traffic(params: Mapping[str, Any], named: set[str], written: Any) -> list[Any]:
    """The traffic that flags ask for, instead of a spec's; flags that only say more of it go over the spec's own."""
    more = {key: params[key] for key in MORE if key in named}
    if {"from", "num_requests"} <= named:
        raise ValueError("--from replays what was recorded, --num-requests draws: give one of them")
    if "from" in named:
        settings = _settings(more, RECORDED, "a recorded trace")
        return [{"from": source, **settings} for source in params["source"]]
    if "num_requests" in named:
        return [{"num_requests": params["num_requests"], **_settings(more, DRAWN, "drawn requests")}]
    if set(more) & set(LOCKSTEP_KEYS):
        return [_settings(more, LOCKSTEP_KEYS, "a lockstep run")]
    if more and written is None:
        raise ValueError(f"{_flag(next(iter(more)))} is a flag of traffic: add --from FILE or --num-requests N")
    entries = written if isinstance(written, list) else [written]
    settings = _settings(more, MORE, "traffic")
    return [{**entry, **settings} if isinstance(entry, Mapping) else entry for entry in entries] if more else []


def _settings(more: Mapping[str, Any], own: Collection[str], name: str) -> dict[str, Any]:
    """Flags under the names that a spec has for them. ValueError for one that is not `own` to traffic of this kind."""
    if stray := [key for key in more if key not in own]:
        raise ValueError(f"{_flag(stray[0])} is no flag of {name}")
    return {KEY_OF.get(key, key): value for key, value in more.items()}


def _flag(key: str) -> str:
    return f"--{key.replace('_', '-')}"
