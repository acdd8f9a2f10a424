"""`step_times.csv` of a bench: how long the steps of each shape took."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from nanoserve.buckets import CaptureList, Shape
from nanoserve.fitting import TimedShapes
from nanoserve_cli.compare import Comparison, ModeRun
from nanoserve_cli.csv_file import RecordsError, csv_line
from nanoserve_cli.stats import Spread

COLUMNS = ("mode", "graph_rows", "graph_width", "steps", "median_ms", "low_ms", "high_ms")
"""A shape that ran, in which mode, how often, and the median and quartiles of its steps."""


def step_times_csv(comparison: Comparison) -> str | None:
    """One line a shape and mode, from the decode times that were measured; None where nothing ran."""
    if comparison.partings is None:
        return None
    lines = [csv_line(COLUMNS)]
    for mode, run in (("open", comparison.open), ("bucketed", comparison.bucketed)):
        for shape, ms in sorted(_ms_by_shape(run).items()):
            spread = Spread.of(ms)
            assert spread is not None
            times = (f"{value:.6g}" for value in (spread.median, spread.low, spread.high))
            lines.append(csv_line((mode, shape.rows, shape.width, spread.samples, *times)))
    return "".join(lines)


def _ms_by_shape(run: ModeRun) -> dict[Shape, np.ndarray]:
    """Milliseconds of the decode steps of each shape that the run presented."""
    places: dict[Shape, list[int]] = {}
    for at, opened in enumerate(run.replay.steps.open_shapes()):
        places.setdefault(_presented(opened, run), []).append(at)
    return {shape: run.replay.decode_seconds[steps] * 1e3 for shape, steps in places.items()}


def _presented(opened: Shape, run: ModeRun) -> Shape:
    """What a step ran as: under a policy its shape, off a capture list its own."""
    if run.policy is None:
        return opened
    if isinstance(run.policy, CaptureList):
        return run.policy.find(opened.rows, opened.width) or opened
    return run.policy.shape_for(opened.rows, opened.width)


def read_step_times(path: str | Path) -> TimedShapes:
    """The medians of the bucketed steps. Raises RecordsError where the file is no such file or holds too few shapes."""
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RecordsError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not lines or tuple(lines[0]) != COLUMNS:
        raise RecordsError(
            f"{path}: is no step_times.csv of `nanoserve bench --out`: its columns are {','.join(COLUMNS)}"
        )
    bucketed = [line for line in lines if line["mode"] == "bucketed"]
    try:
        return TimedShapes(
            _whole(line["graph_rows"] for line in bucketed),
            _whole(line["graph_width"] for line in bucketed),
            _whole(line["steps"] for line in bucketed),
            np.array([float(line["median_ms"]) * 1e6 for line in bucketed]),
        )
    except (ValueError, TypeError) as error:
        raise RecordsError(f"{path}: {error}") from None


def _whole(texts: Iterable[str]) -> np.ndarray:
    return np.array([int(text) for text in texts], np.int64)
