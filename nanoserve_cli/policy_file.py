"""A shape policy as a YAML file: two limits and either two ladders or a staircase of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nanoserve.buckets import DecodeBuckets, StaircaseBuckets
from nanoserve_cli.workload.errors import did_you_mean

SCHEMA_VERSION = 1
KEYS = ("schema_version", "max_batch_size", "max_model_len", "rows", "widths", "ladders")


class PolicyFileError(ValueError):
    """A policy file that cannot be read; one line with the file, the key and what to write."""


def load_policy(path: Path) -> DecodeBuckets | StaircaseBuckets:
    """The policy in `path`: `rows` and `widths` are a product, `ladders` (`{rows: [widths]}`) a staircase.

    Raises PolicyFileError for what cannot be read, is no such mapping, or names no policy.
    """
    document = _document(path)
    for key in document:
        if key not in KEYS:
            raise PolicyFileError(f"{path}: unknown key {key!r}: {did_you_mean(str(key), KEYS)}")
    version = document.get("schema_version")
    if type(version) is not int or version != SCHEMA_VERSION:
        raise PolicyFileError(f"{path}: schema_version must be {SCHEMA_VERSION}, got {version!r}")
    try:
        return _policy(document)
    except KeyError as error:
        raise PolicyFileError(f"{path}: the key {error} is missing") from None
    except ValueError as error:
        raise PolicyFileError(f"{path}: {error}") from None


def _document(path: Path) -> Mapping[Any, Any]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        document = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyFileError(f"{path}: cannot be read: {error}") from None
    except MarkedYAMLError as error:
        mark = error.context_mark or error.problem_mark
        where = "" if mark is None else f", line {mark.line + 1}"
        problem = " ".join((error.problem or "").split())
        raise PolicyFileError(f"{path}: is no YAML: {problem}{where}") from None
    except YAMLError as error:
        raise PolicyFileError(f"{path}: is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(document, Mapping):
        raise PolicyFileError(f"{path}: is no mapping; a policy has the keys {', '.join(KEYS)}")
    return document


def _policy(document: Mapping[str, Any]) -> DecodeBuckets | StaircaseBuckets:
    limits = document["max_batch_size"], document["max_model_len"]
    if "ladders" not in document:
        rows, widths = _listed(document["rows"], "rows"), _listed(document["widths"], "widths")
        return DecodeBuckets(*limits, rows=rows, widths=widths)
    if "rows" in document or "widths" in document:
        raise ValueError("ladders stand for rows and widths: give one or the other")
    ladders = document["ladders"]
    if not isinstance(ladders, Mapping):
        raise ValueError(f"ladders must be a mapping of row buckets to lists of widths, got {ladders!r}")
    return StaircaseBuckets(*limits, {r: _listed(w, f"the ladder of {r} rows") for r, w in ladders.items()})


def _listed(value: Any, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{what} must be a list, got {value!r}")
    return value


def policy_document(policy: DecodeBuckets | StaircaseBuckets) -> dict[str, Any]:
    """What `load_policy` reads back as an equal policy."""
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "max_batch_size": policy.max_batch_size,
        "max_model_len": policy.max_model_len,
    }
    if isinstance(policy, DecodeBuckets):
        return document | {"rows": list(policy.rows), "widths": list(policy.widths)}
    return document | {"ladders": {rows: list(widths) for rows, widths in policy.ladders}}


def chosen_policy(
    path: Path | None,
    *,
    max_batch_size: int | None,
    max_model_len: int | None,
    width_multiple: int | None,
    default_max_model_len: int,
) -> DecodeBuckets | StaircaseBuckets:
    """The policy that flags ask for: the file's, or the default ladders of 8 rows and multiples of 128 where silent.

    ValueError where a flag contradicts the file.
    """
    if path is None:
        return DecodeBuckets(
            8 if max_batch_size is None else max_batch_size,
            default_max_model_len if max_model_len is None else max_model_len,
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
