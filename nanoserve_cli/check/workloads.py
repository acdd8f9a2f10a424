"""What a workload is to a check: the rows it gives, which it names before anything runs. `kinds` lists them all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from nanoserve_cli.assets import TRACES
from nanoserve_cli.workload.resolve import resolve_trace
from nanoserve_cli.workload.source import sha256_of


class BudgetError(ValueError):
    """A budget that cannot be: one line with the file, the line of it, and what to write."""


@dataclass(frozen=True)
class Point:
    """A row that a workload gives, before it ran: its name in words, and what its columns will hold.

    `trace_sha256` is of the trace that it must be of; None where requests are drawn.
    """

    label: str
    columns: Mapping[str, Any]
    trace_sha256: str | None = None


@dataclass(frozen=True)
class Sample:
    """A row that was found: columns of `columns.COLUMNS` and metrics of the workload's own kind.

    `stopped` says why the run did not end, and then no figure passes. `absent` says why a figure may not be there: by
    metric, and under "" of any other.
    """

    label: str
    row: Mapping[str, Any]
    stopped: str = ""
    absent: Mapping[str, str] = field(default_factory=dict)


class Workload(Protocol):
    """What a budget measures. Made from the options in the file, which it checks, and nothing beside them."""

    def points(self) -> list[Point]:
        """The rows that `run` gives, in its order. Raises what finding a trace or a policy file raises."""

    def run(self) -> list[Sample]:
        """The rows. Raises what the command of this kind raises but for a GateError, which a sample tells."""


def trace_identity(source: str, trace_dir: Path | None) -> tuple[str, str]:
    """What rows of a recorded trace call it, and the sha256 that its file must have.

    A registered key says both, whether or not the file is here. Raises TraceError where any other is not.
    """
    for asset in TRACES:
        if asset.key == source:
            return asset.key, asset.sha256
    path = resolve_trace(source, trace_dir)
    sha256 = sha256_of(path)
    return next((asset.key for asset in TRACES if asset.sha256 == sha256), str(path)), sha256
