"""A sweep as a YAML file: the flags of `nanoserve sweep` under their own names, checked key by key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

from nanoserve.step_time import FixedStep, parse_step_time
from nanoserve_cli.grid import Lockstep, Measurement, SweepSpec
from nanoserve_cli.traffic import TrafficOptions
from nanoserve_cli.workload.limits import MaxLenRule
from nanoserve_cli.workload.synthetic import parse_length
from nanoserve_cli.yaml_file import check_keys, check_version, read_mapping

SCHEMA_VERSION = 1
LOCKSTEP_KEYS = tuple(field.name for field in fields(Lockstep))
SHARED_KEYS = ("limit", "max_len", "request_rate", "burstiness")
RECORDED_KEYS = ("from", "format", "strict", *SHARED_KEYS)
DRAWN_KEYS = ("num_requests", "prompt_len", "output_len", *SHARED_KEYS)
NUMBER_LISTS = ("max_batch", "max_model_len")
RULE_LISTS = ("rows_ladder", "width_ladder")
SCALARS: dict[str, tuple[type, ...]] = {
    "link": (bool,),
    "step_time": (str, int, float),
    "seed": (int,),
    "repeats": (int,),
    "budget_graphs": (int,),
    "budget_mib": (int, float),
    "host_only": (bool,),
    "measure": (bool,),
    "measure_compiles": (bool,),
}
LEAST = {"seed": 0, "repeats": 1, "budget_graphs": 1, "budget_mib": 0}
MEASUREMENT_KEYS = tuple(field.name for field in fields(Measurement))
KEYS = ("schema_version", "traffic", "width_multiple", *NUMBER_LISTS, *RULE_LISTS, *SCALARS, *MEASUREMENT_KEYS)


class SpecError(ValueError):
    """A sweep that cannot be: one line with where it is written, the key, and what to write."""


def load_document(path: Path) -> dict[str, Any]:
    """The mapping of a spec file, its keys checked. Raises SpecError."""
    document = read_mapping(path, "a sweep", KEYS, SpecError)
    check_version(document, SCHEMA_VERSION, path, SpecError)
    return document


def spec_of(document: Mapping[str, Any], trace_dir: Path | None, where: str) -> SweepSpec:
    """The sweep that a mapping of `KEYS` asks for; a list may be a single value. Keys are looked up in `trace_dir`.

    Raises SpecError, beginning with `where`, for a value of another kind, a rule that is unknown, settings that do
    nothing together, and what `SweepSpec.points` raises.
    """
    try:
        _check_goes_together(document)
        spec = _spec(document, None if trace_dir is None else str(trace_dir))
        _ = spec.points
    except ValueError as error:
        raise SpecError(f"{where}: {error}" if where else str(error)) from None
    return spec


def _spec(document: Mapping[str, Any], trace_dir: str | None) -> SweepSpec:
    given: dict[str, Any] = {key: _listed(document, key, _positive) for key in NUMBER_LISTS if key in document}
    given |= {key: _scalar(document[key], key, *kinds) for key, kinds in SCALARS.items() if key in document}
    for key, least in LEAST.items():
        if key in given and not least <= given[key] < float("inf"):
            raise ValueError(f"{key} must be at least {least}, got {given[key]}")
    if "rows_ladder" in document:
        given["rows_ladder"] = _listed(document, "rows_ladder", _text)
    if widths := _widths(document):
        given["width_ladder"] = widths
    if "step_time" in given:
        step_time = parse_step_time(str(given["step_time"]))
        given["step_time"] = step_time.render()
        if given.get("measure") and not isinstance(step_time, FixedStep):
            raise ValueError(f"measure runs on a grid: step_time must be a number of ms, got {given['step_time']}")
    if "traffic" in document:
        entries = _listed(document, "traffic", _mapping)
        given["traffic"] = tuple(_traffic(entry, trace_dir, given.get("seed", 0)) for entry in entries)
    settings = {key: _text(document[key], key) for key in MEASUREMENT_KEYS if key in document}
    return SweepSpec(**given, measurement=Measurement(**settings))


def _check_goes_together(document: Mapping[str, Any]) -> None:
    """ValueError for what would do nothing beside the rest: better than a sweep that ignores it."""
    asks = {key for key in document if document[key] not in (None, False)}
    for when, keys, why in (
        ("host_only" in asks, ("measure", "measure_compiles", *MEASUREMENT_KEYS), "needs torch: drop host_only"),
        ("measure" not in asks, ("repeats", "runner", "compile_backend"), "is of points that run: add measure"),
        (document.get("runner") != "compiled", ("compile_backend",), "is of runner compiled"),
    ):
        if when and (clash := next((key for key in keys if key in asks), None)):
            raise ValueError(f"{clash} {why}")


def _widths(document: Mapping[str, Any]) -> tuple[str, ...]:
    """The width rules: the multiples, then the ladders."""
    multiples = _listed(document, "width_multiple", _positive) if "width_multiple" in document else ()
    ladders = _listed(document, "width_ladder", _text) if "width_ladder" in document else ()
    return (*(f"multiple:{multiple}" for multiple in multiples), *ladders)


def _traffic(entry: Mapping[str, Any], trace_dir: str | None, seed: int) -> Lockstep | TrafficOptions:
    if "from" in entry:
        check_keys(entry, RECORDED_KEYS, "traffic", SpecError)
    elif "num_requests" in entry:
        check_keys(entry, DRAWN_KEYS, "traffic", SpecError)
    elif set(entry) <= set(LOCKSTEP_KEYS):
        return Lockstep(**{key: _positive(value, key) for key, value in entry.items()})
    else:
        check_keys(entry, dict.fromkeys((*RECORDED_KEYS, *DRAWN_KEYS, *LOCKSTEP_KEYS)), "traffic", SpecError)
        raise ValueError(f"traffic {dict(entry)} says neither from nor num_requests")
    if "burstiness" in entry and "request_rate" not in entry:
        raise ValueError("burstiness shapes drawn arrivals: add request_rate")
    values = {key: _TRAFFIC_VALUES[key](value, key) for key, value in entry.items()}
    if "from" in values:
        values = {"source": values.pop("from"), "trace_dir": trace_dir} | values
    return TrafficOptions(**values, seed=seed)


def _listed(document: Mapping[str, Any], key: str, check: Callable[[Any, str], Any]) -> tuple[Any, ...]:
    value = document[key]
    entries = value if isinstance(value, list | tuple) else [value]
    if not entries:
        raise ValueError(f"{key} lists nothing: the grid has no point")
    return tuple(check(entry, key) for entry in entries)


def _positive(value: Any, key: str) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"{key} takes integers of at least 1, got {value!r}")
    return value


def _mapping(value: Any, key: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{key} takes mappings, got {value!r}")
    return value


_NAMES = {str: "text", int: "an integer", float: "a number", bool: "true or false"}


def _scalar(value: Any, key: str, *kinds: type) -> Any:
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        names = " or ".join(_NAMES[kind] for kind in kinds if not (kind is int and float in kinds))
        raise ValueError(f"{key} takes {names}, got {value!r}")
    return value


def _text(value: Any, key: str) -> str:
    text: str = _scalar(value, key, str)
    return text


def _rate(value: Any, key: str) -> float:
    return float(_scalar(value, key, int, float))


def _length(value: Any, key: str) -> str:
    text = str(_scalar(value, key, str, int))
    parse_length(text)
    return text


def _max_len(value: Any, key: str) -> str:
    if value not in get_args(MaxLenRule):
        raise ValueError(f"{key} must be {' or '.join(get_args(MaxLenRule))}, got {value!r}")
    return str(value)


_TRAFFIC_VALUES: dict[str, Callable[[Any, str], Any]] = {
    "from": _text,
    "format": _text,
    "strict": lambda value, key: _scalar(value, key, bool),
    "num_requests": _positive,
    "limit": _positive,
    "max_len": _max_len,
    "request_rate": _rate,
    "burstiness": _rate,
    "prompt_len": _length,
    "output_len": _length,
}
