"""A shape policy as a YAML file: two limits, and two ladders, a staircase of them, or a capture list."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nanoserve.buckets import CaptureList, DecodeBuckets, Shape, StaircaseBuckets
from nanoserve.memory import check_tables_fit
from nanoserve_cli.yaml_file import check_version, read_mapping

SCHEMA_VERSION = 1
Policy = DecodeBuckets | StaircaseBuckets | CaptureList
FORMS = ("rows", "widths", "ladders", "captures")
KEYS = ("schema_version", "max_batch_size", "max_model_len", *FORMS)


class PolicyFileError(ValueError):
    """A policy file that cannot be read; one line with the file, the key and what to write."""


def load_policy(path: Path) -> Policy:
    """The policy in `path`: `rows` and `widths` are a product, `ladders` (`{rows: [widths]}`) a staircase, `captures`
    (`{rows: [widths]}`) a list that need not be complete.

    Raises PolicyFileError for what cannot be read, is no such mapping, or names no policy.
    """
    document = read_mapping(path, "a policy", KEYS, PolicyFileError)
    check_version(document, SCHEMA_VERSION, path, PolicyFileError)
    try:
        return _policy(document)
    except KeyError as error:
        raise PolicyFileError(f"{path}: the key {error} is missing") from None
    except ValueError as error:
        raise PolicyFileError(f"{path}: {error}") from None


def _policy(document: Mapping[str, Any]) -> Policy:
    limits = document["max_batch_size"], document["max_model_len"]
    given = [form for form in FORMS if form in document]
    if given == ["ladders"]:
        return StaircaseBuckets(*limits, _by_rows(document["ladders"], "ladders"))
    if given == ["captures"]:
        captures = _by_rows(document["captures"], "captures")
        shapes = [Shape(rows, width) for rows, widths in captures.items() for width in widths]
        return CaptureList(shapes, max_batch_size=limits[0], max_model_len=limits[1])
    if "ladders" in given or "captures" in given:
        raise ValueError(f"{' and '.join(given)} say the same thing twice: give rows and widths, ladders, or captures")
    rows, widths = _listed(document["rows"], "rows"), _listed(document["widths"], "widths")
    return DecodeBuckets(*limits, rows=rows, widths=widths)


def _by_rows(value: Any, what: str) -> dict[Any, list[Any]]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{what} must be a mapping of row buckets to lists of widths, got {value!r}")
    return {rows: _listed(widths, f"the ladder of {rows} rows") for rows, widths in value.items()}


def _listed(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{what} must be a list, got {value!r}")
    return value


def policy_document(policy: Policy) -> dict[str, Any]:
    """What `load_policy` reads back as an equal policy."""
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "max_batch_size": policy.max_batch_size,
        "max_model_len": policy.max_model_len,
    }
    if isinstance(policy, DecodeBuckets):
        return document | {"rows": list(policy.rows), "widths": list(policy.widths)}
    if isinstance(policy, StaircaseBuckets):
        return document | {"ladders": {rows: list(widths) for rows, widths in policy.ladders}}
    captures: dict[int, list[int]] = {}
    for shape in policy.shapes:
        captures.setdefault(shape.rows, []).append(shape.width)
    return document | {"captures": captures}


def policy_text(policy: Policy) -> str:
    """The YAML of a policy, as `load_policy` reads it: lists on one line each."""
    import yaml

    return yaml.safe_dump(policy_document(policy), sort_keys=False, default_flow_style=None, width=110)


def chosen_policy(
    path: Path | None,
    *,
    max_batch_size: int | None,
    max_model_len: int | None,
    width_multiple: int | None,
    default_max_model_len: int,
) -> Policy:
    """The policy that flags ask for: the file's, or the default ladders of 8 rows and multiples of 128 where silent.

    ValueError where a flag contradicts the file.
    """
    if path is None:
        limits = (
            8 if max_batch_size is None else max_batch_size,
            default_max_model_len if max_model_len is None else max_model_len,
        )
        check_tables_fit(*limits, 0)
        return DecodeBuckets(
            *limits,
            width_multiple=128 if width_multiple is None else width_multiple,
        )
    policy = load_policy(path)
    if width_multiple is not None:
        raise ValueError("--width-multiple beside --policy: the file has the widths, drop one of the two")
    for flag, asked, given in (
        ("--max-batch", max_batch_size, policy.max_batch_size),
        ("--max-model-len", max_model_len, policy.max_model_len),
    ):
        if asked is not None and asked != given:
            raise ValueError(f"{flag} {asked} beside {path}, which is for {given}: drop the flag or change the file")
    return policy
