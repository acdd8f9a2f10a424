"""The command line of `nanoserve tune` as its settings."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from nanoserve.step_time import FixedStep, parse_step_time
from nanoserve_cli.emit import CUDAGRAPH_MODES, EMITTERS
from nanoserve_cli.options import parse_list
from nanoserve_cli.traffic import TrafficOptions
from nanoserve_cli.tuning.run import TuneSettings
from nanoserve_cli.workload.errors import did_you_mean

TAKE_WIDTHS = ("nanoserve", "gaudi", "neuron")
"""Engines whose lists have widths: the others read the context as it is."""

BUDGETS = ("--budget-graphs", "--budget-mib", "--budget-seconds", "--target")
OF_EMIT = ("--cudagraph-mode", "--spec-tokens", "--tensor-parallel", "--max-num-batched-tokens", "--kv-block")
OF_VERIFY = ("--verify-steps", "--model", "--device")
OF_DRAWN = ("--prompt-len", "--output-len")
OF_RECORDED = ("--format", "--strict", "--trace-dir")


def settings_of(params: Mapping[str, Any], given: Collection[str]) -> TuneSettings:
    """The settings that flags ask for; `given` are those on the command line. ValueError that names a bad one."""
    loads = _factors(params["loads"])
    _check_sizes(params, given)
    _check_together(params, given, several=len(loads) > 1)
    step_time = None if params["step_time"] is None else parse_step_time(params["step_time"])
    if params["verify"] and step_time is not None and not isinstance(step_time, FixedStep):
        raise ValueError("--verify runs on a fixed grid: drop --step-time, or --verify")
    return TuneSettings(
        traffic=TrafficOptions.of(params),
        max_batch_size=params["max_batch"],
        max_model_len=params["max_model_len"],
        graphs=_graphs(params),
        target=params["target"],
        objective=params["objective"],
        engine=params["emit"],
        takes_widths=params["emit"] is None or params["emit"] in TAKE_WIDTHS,
        step_time=step_time,
        step_times=params["step_times"],
        row_granularity=params["row_granularity"],
        width_granularity=params["width_granularity"],
        keep_rows=() if params["keep_rows"] is None else parse_list(params["keep_rows"], "--keep-rows"),
        max_pad=params["max_pad"],
        holdout=params["holdout"],
        loads=loads,
        robust=params["robust"],
        prior=params["prior"],
        verify=params["verify"],
    )


def _check_sizes(params: Mapping[str, Any], given: Collection[str]) -> None:
    """ValueError for one value that is no value of its flag."""
    if len(budgets := [flag for flag in BUDGETS if flag in given]) > 1:
        raise ValueError(f"{' and '.join(budgets)} say the size twice: give one of them")
    if params["emit"] is not None and params["emit"] not in EMITTERS:
        raise ValueError(f"--emit {params['emit']}: {did_you_mean(params['emit'], EMITTERS)}")
    mode = params["cudagraph_mode"]
    if mode not in CUDAGRAPH_MODES:
        raise ValueError(f"--cudagraph-mode {mode}: {did_you_mean(mode, CUDAGRAPH_MODES)}")
    for flag, high in (("holdout", 1.0), ("prior", float("inf")), ("max_pad", 1.0)):
        value = params[flag]
        if value is not None and not 0 <= value < high:
            raise ValueError(f"--{flag.replace('_', '-')} must be at least 0 and below {high:g}, got {value:g}")


def _check_together(params: Mapping[str, Any], given: Collection[str], *, several: bool) -> None:
    """ValueError for flags that would do nothing together: better than a run that ignores one."""
    if ("--from" in given) == ("--num-requests" in given):
        both = ", not both" if "--from" in given else ""
        raise ValueError(f"give --from FILE to read traffic, or --num-requests N to draw it{both}")
    for flags, idle, why in (
        (OF_DRAWN, "--from" in given, "is of drawn requests, --from has lengths of its own"),
        (OF_RECORDED, "--num-requests" in given, "is of a file, --num-requests draws requests"),
        (("--burstiness",), "--request-rate" not in given, "shapes drawn arrivals: add --request-rate"),
        (("--graph-mib",), "--budget-mib" not in given, "is of --budget-mib"),
        (("--graph-seconds",), "--budget-seconds" not in given, "is of --budget-seconds"),
        (("--robust",), not several, "is of several --loads"),
        (("--target",), several, "is met on one load: give one, or a budget"),
        (OF_VERIFY, not params["verify"], "is of --verify"),
        (("--step-times",), params["objective"] != "time", "is the cost of --objective time"),
        (("--width-granularity",), params["objective"] == "rows", "is of widths, --objective rows has none"),
        (OF_EMIT, params["emit"] is None, "is of --emit ENGINE"),
    ):
        clash = next((flag for flag in flags if flag in given), None)
        if clash is not None and idle:
            raise ValueError(f"{clash} {why}")


def _graphs(params: Mapping[str, Any]) -> int | None:
    """The budget in graphs, whatever it was given in."""
    for budget, each in (("budget_mib", "graph_mib"), ("budget_seconds", "graph_seconds")):
        if params[budget] is not None:
            flag, unit = f"--{budget.replace('_', '-')}", f"--{each.replace('_', '-')}"
            if not 0 < params[each] < float("inf"):
                raise ValueError(f"{unit} must be a number above 0, got {params[each]:g}")
            graphs = params[budget] / params[each]
            if not 1 <= graphs < MOST_GRAPHS:
                raise ValueError(
                    f"{flag} {params[budget]:g} at {unit} {params[each]:g} is {graphs:.3g} graphs: it must be one to "
                    f"{MOST_GRAPHS:,}"
                )
            return int(graphs)
    return None if params["budget_graphs"] is None else int(params["budget_graphs"])


MOST_GRAPHS = 10_000


def _factors(text: str) -> tuple[float, ...]:
    try:
        factors = tuple(float(entry) for entry in text.split(","))
    except ValueError:
        factors = ()
    if not factors or not all(1e-3 <= factor <= 1e3 for factor in factors) or len(set(factors)) != len(factors):
        raise ValueError(f"--loads takes factors of 0.001 to 1000 with commas between, each once, got {text!r}")
    return factors
