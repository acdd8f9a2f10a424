"""YAML files that people write: read as a mapping, every fault one line with the file and what to write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nanoserve_cli.workload.errors import did_you_mean


def read_mapping(path: Path, what: str, keys: Iterable[str], error: type[ValueError]) -> dict[str, Any]:
    """The mapping in a YAML file; `what` names it in errors ("a policy"), `keys` are those it may have.

    Raises `error` for a file that cannot be read, is no YAML, no mapping, or has a key that is unknown.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        document = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as fault:
        raise error(f"{path}: cannot be read: {getattr(fault, 'strerror', None) or fault}") from None
    except MarkedYAMLError as fault:
        mark = fault.context_mark or fault.problem_mark
        where = "" if mark is None else f", line {mark.line + 1}"
        raise error(f"{path}: is no YAML: {' '.join((fault.problem or '').split())}{where}") from None
    except YAMLError as fault:
        raise error(f"{path}: is no YAML: {' '.join(str(fault).split())}") from None
    known = tuple(keys)
    if not isinstance(document, Mapping):
        raise error(f"{path}: is no mapping; {what} has the keys {', '.join(known)}")
    check_keys(document, known, str(path), error)
    return dict(document)


def check_keys(document: Mapping[Any, Any], known: Iterable[str], where: str, error: type[ValueError]) -> None:
    """Raises `error`, with what was probably meant, for the first key of `document` that is not `known`."""
    names = tuple(known)
    for key in document:
        if key not in names:
            raise error(f"{where}: unknown key {key!r}: {did_you_mean(str(key), names)}")


def check_version(document: Mapping[str, Any], version: int, path: Path, error: type[ValueError]) -> None:
    """Raises `error` where `schema_version` is not `version`."""
    found = document.get("schema_version")
    if type(found) is not int or found != version:
        raise error(f"{path}: schema_version must be {version}, got {found!r}")
