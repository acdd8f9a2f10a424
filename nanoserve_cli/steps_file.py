"""A run's segments on disk, as `bench --out` leaves them: read back whole, with where they are from."""

from __future__ import annotations

import csv
import hashlib
import json
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from nanoserve.steps import Segment, Steps


class StepsFileError(ValueError):
    """A steps file that cannot be read; one line with the file, the line and what is wrong there."""


@dataclass(frozen=True, eq=False)
class Recorded:
    """A run read from a file: its steps, the traffic in words, and the words for a figure's corner.

    `limits` are the most rows and the widest step of the bench, None where no `run.json` tells them.
    """

    steps: Steps
    traffic: str
    source: str
    limits: tuple[int, int] | None = None


def read_steps(path: Path) -> Steps:
    """The segments in a `steps.csv` as `records.steps_csv` writes it.

    Raises StepsFileError where it cannot be read, has another header, no segment, or one that no run has.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise StepsFileError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    header = ",".join(Segment._fields)
    if not lines:
        raise StepsFileError(f"{path}: is empty; a steps file begins with {header}")
    if tuple(lines[0]) != Segment._fields:
        raise StepsFileError(
            f"{path}: is no steps file: its first line is not {header}; `nanoserve bench --out DIR` writes steps.csv"
        )
    segments = [_segment(path, number, line) for number, line in enumerate(lines[1:], 2) if line]
    if not segments:
        raise StepsFileError(f"{path}: has a header and no segment: no step was decoded")
    try:
        return Steps.of(segments)
    except ValueError as error:
        raise StepsFileError(f"{path}: {error}") from None


def _segment(path: Path, number: int, line: list[str]) -> Segment:
    try:
        values = [int(text) for text in line]
    except ValueError:
        values = []
    if len(values) != len(Segment._fields) or not all(0 <= value < 1 << 63 for value in values):
        raise StepsFileError(f"{path}: line {number} is not five whole numbers: {','.join(line)[:60]!r}")
    return Segment(*values)


def read_recorded(path: Path) -> Recorded:
    """A steps file with the provenance of the `run.json` beside it; without one, with the file's own name and sum.

    Raises what `read_steps` raises.
    """
    steps = read_steps(path)
    run = _run_beside(path)
    if run is None:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        words = (f"{path.name} {digest[:8]}", f"nanoserve {metadata.version('nanoserve')}", "undated")
        return Recorded(steps, path.name, " · ".join(words))
    traffic = str(run["runs"][0]["workload"])
    trace = f"{run['trace_key'] or Path(traffic).name} {run['trace_sha256'][:8]}" if run["trace_sha256"] else traffic
    words = (trace, f"nanoserve {run['nanoserve_version']}", str(run["started_utc"])[:10])
    limits = run["runs"][0].get("max_batch_size"), run["runs"][0].get("max_model_len")
    known = limits if all(isinstance(limit, int) for limit in limits) else None
    return Recorded(steps, Path(traffic).name, " · ".join(words), known)


def _run_beside(path: Path) -> dict[str, Any] | None:
    """The `run.json` of the bench that wrote a steps file; None where there is none that can be read."""
    try:
        run = json.loads((path.parent / "run.json").read_text(encoding="utf-8"))
        return run if len(run["runs"]) == 1 and {"trace_key", "trace_sha256", "started_utc"} <= set(run) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
