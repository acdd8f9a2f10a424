"""A sweep as a YAML file: the flags of `nanoserve sweep` under their own names, checked key by key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

from nanoserve.ladders import row_ladder, width_ladder
from nanoserve.step_time import FixedStep, parse_step_time
from nanoserve_cli.grid import Lockstep, Measurement, SweepSpec
from nanoserve_cli.traffic import TrafficOptions
from nanoserve_cli.workload.limits import MaxLenRule
from nanoserve_cli.yaml_file import check_keys, check_version, read_mapping

SCHEMA_VERSION = 1
LOCKSTEP_KEYS = ("rows", "prompt", "steps")
RECORDED_KEYS = ("from", "format", "strict", "limit", "max_len", "request_rate", "burstiness")
DRAWN_KEYS = ("num_requests", "request_rate", "burstiness", "prompt_len", "output_len", "limit", "max_len")
LIST_KEYS = ("max_batch", "max_model_len")
RULE_KEYS = ("rows_ladder", "width_ladder")
SCALARS: dict[str, type | tuple[type, ...]] = {
    "link": bool,
    "step_time": (str, int, float),
    "seed": int,
    "repeats": int,
    "budget_graphs": int,
    "budget_mib": (int, float),
    "measure": bool,
    "measure_compiles": bool,
}
MEASUREMENT_KEYS = tuple(field.name for field in fields(Measurement))
KEYS = ("schema_version", "traffic", "width_multiple", *LIST_KEYS, *RULE_KEYS, *SCALARS, *MEASUREMENT_KEYS)


class SpecError(ValueError):
    """A sweep that cannot be: one line with where it is written, the key, and what to write."""


def load_document(path: Path) -> dict[str, Any]:
    """The mapping of a spec file, its keys checked. Raises SpecError."""
    document = read_mapping(path, "a sweep", KEYS, SpecError)
    check_version(document, SCHEMA_VERSION, path, SpecError)
    return document


def spec_of(document: Mapping[str, Any], trace_dir: Path | None, where: str) -> SweepSpec:
    """The sweep that a mapping of `KEYS` asks for; a list may be a single value. Keys are looked up in `trace_dir`.

    Raises SpecError, beginning with `where`, for a value that is of another kind or a rule that is unknown.
    """
    try:
        return _spec(document, None if trace_dir is None else str(trace_dir))
    except ValueError as error:
        raise SpecError(f"{where}: {error}" if where else str(error)) from None


def _spec(document: Mapping[str, Any], trace_dir: str | None) -> SweepSpec:
    given: dict[str, Any] = {key: _positive_list(document[key], key) for key in LIST_KEYS if key in document}
    for key, kind in SCALARS.items():
        if key in document:
            given[key] = _scalar(document[key], key, kind)
    given["step_time"] = parse_step_time(str(given.get("step_time", "25"))).render()
    if "rows_ladder" in document:
        given["rows_ladder"] = _listed(document["rows_ladder"], "rows_ladder", str)
    if widths := _widths(document):
        given["width_ladder"] = widths
    for rule in given.get("rows_ladder", ()):
        row_ladder(rule, max(given.get("max_batch", (8,))))
    for rule in given.get("width_ladder", ()):
        width_ladder(rule, max(given.get("max_model_len", (8192,))))
    seed = given.get("seed", 0)
    if "traffic" in document:
        given["traffic"] = tuple(
            _traffic(entry, trace_dir, seed) for entry in _listed(document["traffic"], "traffic", Mapping)
        )
    if given.get("measure") and not isinstance(parse_step_time(given["step_time"]), FixedStep):
        raise ValueError(f"measure runs on a fixed grid: step_time must be a number of ms, got {given['step_time']}")
    settings = {key: _scalar(document[key], key, str) for key in MEASUREMENT_KEYS if key in document}
    _check_least(given, {"repeats": 1, "seed": 0, "budget_graphs": 1, "budget_mib": 0})
    return SweepSpec(**given, measurement=Measurement(**settings))


def _widths(document: Mapping[str, Any]) -> tuple[str, ...]:
    multiples = _positive_list(document["width_multiple"], "width_multiple") if "width_multiple" in document else ()
    ladders = _listed(document["width_ladder"], "width_ladder", str) if "width_ladder" in document else ()
    return (*(f"multiple:{multiple}" for multiple in multiples), *ladders)


def _traffic(entry: Mapping[str, Any], trace_dir: str | None, seed: int) -> Lockstep | TrafficOptions:
    if "from" in entry:
        check_keys(entry, RECORDED_KEYS, "traffic", SpecError)
    elif "num_requests" in entry:
        check_keys(entry, DRAWN_KEYS, "traffic", SpecError)
    elif set(entry) <= set(LOCKSTEP_KEYS):
        return Lockstep(**{key: _positive(value, key) for key, value in entry.items()})
    else:
        known = {*RECORDED_KEYS, *DRAWN_KEYS, *LOCKSTEP_KEYS}
        check_keys(entry, sorted(known), "traffic", SpecError)
        raise ValueError(f"traffic {dict(entry)} says neither from nor num_requests")
    values = {("source" if key == "from" else key): value for key, value in entry.items()}
    for key in {"limit", "num_requests"} & set(values):
        _positive(values[key], key)
    for key in {"source", "format"} & set(values):
        _scalar(values[key], "from" if key == "source" else key, str)
    for key in {"request_rate", "burstiness"} & set(values):
        values[key] = float(_scalar(values[key], key, (int, float)))
    for key in {"prompt_len", "output_len"} & set(values):
        values[key] = str(_scalar(values[key], key, (int, str)))
    if "strict" in values:
        _scalar(values["strict"], "strict", bool)
    if values.get("max_len", "reject") not in get_args(MaxLenRule):
        raise ValueError(f"max_len must be {' or '.join(get_args(MaxLenRule))}, got {values['max_len']!r}")
    return TrafficOptions(**values, trace_dir=trace_dir if "source" in values else None, seed=seed)


def _listed(value: Any, key: str, kind: type) -> tuple[Any, ...]:
    entries = value if isinstance(value, list | tuple) else [value]
    if not entries:
        raise ValueError(f"{key} lists nothing: the grid has no point")
    for entry in entries:
        if not isinstance(entry, kind):
            wanted = "mappings" if kind is Mapping else "texts"
            raise ValueError(f"{key} takes {wanted}, got {entry!r}")
    if kind is str and len(set(entries)) != len(entries):
        raise ValueError(f"{key} names a value twice: {', '.join(entries)}")
    return tuple(entries)


def _positive_list(value: Any, key: str) -> tuple[int, ...]:
    entries = value if isinstance(value, list | tuple) else [value]
    if not entries:
        raise ValueError(f"{key} lists nothing: the grid has no point")
    numbers = tuple(_positive(entry, key) for entry in entries)
    if len(set(numbers)) != len(numbers):
        raise ValueError(f"{key} names a value twice: {', '.join(map(str, numbers))}")
    return numbers


def _positive(value: Any, key: str) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"{key} takes integers of at least 1, got {value!r}")
    return value


def _scalar(value: Any, key: str, kind: type | tuple[type, ...]) -> Any:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        names = " or ".join(
            {str: "text", int: "an integer", float: "a number", bool: "true or false"}[k] for k in kinds
        )
        raise ValueError(f"{key} takes {names}, got {value!r}")
    return value


def _check_least(given: Mapping[str, Any], least: Mapping[str, int]) -> None:
    for key, bound in least.items():
        value = given.get(key)
        if value is not None and not bound <= value < float("inf"):
            raise ValueError(f"{key} must be at least {bound}, got {value}")
