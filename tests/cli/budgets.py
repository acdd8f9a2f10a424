"""Budget files and runs of `nanoserve check` shared by its tests: small ones, in this process, without torch."""

from __future__ import annotations

import csv
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from nanoserve_cli.app import app
from nanoserve_cli.check.verdicts import Kind, Limit, Place
from nanoserve_cli.columns import COLUMNS, RUN_COLUMNS

LOCKSTEP = "bench: {steps: 64, host_only: true}"
"""64 open shapes, 1 used of 4, 9,312 open cells, 20,480 padded, waste 54.5 %."""
GRID = "sweep: {traffic: {steps: 24}, max_batch: 4, max_model_len: 64, width_multiple: [16, 32], host_only: true}"
"""Two points, 12 and 6 shapes available: 3,584 and 4,096 padded cells, waste 42.7 and 49.9 %."""


def run(command: str, *arguments: object, env: dict[str, str] | None = None) -> Any:
    """A command in this process, both streams apart."""
    return CliRunner().invoke(app, [command, *map(str, arguments)], env=env)


def budget(path: Path, limits: str, *, workload: str = LOCKSTEP, more: str = "", name: str = "one") -> Path:
    """A file of one budget. `limits` is the flow mapping of them, on line 5 of the file; `more` are further keys."""
    text = f"schema_version: 1\nbudgets:\n  - name: {name}\n    workload: {{{workload}}}\n    limits: {limits}\n"
    path.write_text(text + "".join(f"    {line}\n" for line in more.splitlines()), encoding="utf-8")
    return path


def document(*arguments: object) -> dict[str, Any]:
    """What `nanoserve check --format json` prints, whatever it exits with."""
    found = run("check", *arguments, "--format", "json", "-q")
    assert found.stderr == "", found.stderr
    parsed: dict[str, Any] = json.loads(found.stdout)
    assert parsed["exit_code"] == found.exit_code
    return parsed


def verdicts(*arguments: object) -> list[tuple[str, str]]:
    """The metric and verdict of every limit and row."""
    found = document(*arguments)
    return [(entry["metric"], entry["verdict"]) for entry in found["counts"] + found["times"]]


def refused(*arguments: object) -> str:
    """The one line of a check that is bad input, without its `error: `; nothing is on stdout."""
    found = run("check", *arguments)
    assert (found.exit_code, found.stdout, found.stderr.count("\n")) == (2, "", 1), found.output
    assert found.stderr.startswith("error: ")
    return str(found.stderr).removeprefix("error: ").rstrip("\n")


def failures(*arguments: object) -> list[str]:
    """The lines below the table of a check that fails, which start with a verdict."""
    found = run("check", *arguments, "-q")
    words = ("FAIL", "MISSING", "NOT COMPARABLE", "soft", "improved")
    return [line for line in found.stdout.splitlines() if line.startswith(words)]


def limit(metric: str, kind: Kind, value: float | None = None, *, margin: Fraction | int = 0, line: int = 1) -> Limit:
    """A limit on a column of results."""
    column = next(column for column in COLUMNS if column.name == metric)
    return Limit(column, kind, value, Fraction(margin), Place(line, 0, 0))


def results(path: Path, *arguments: object) -> Path:
    """The results file of the sweep of `GRID`."""
    grid = ("--steps", 24, "--max-batch", 4, "--max-model-len", 64, "--width-multiple", "16,32", "--host-only")
    found = run("sweep", *grid, "--out", path, "-q", *arguments)
    assert found.exit_code == 0, found.stderr
    return path


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a results file as text."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def rewrite(path: Path, rows: list[dict[str, str]]) -> Path:
    """Writes a results file of those rows."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, RUN_COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path


def planted(path: Path, row: int = 0, **cells: str) -> Path:
    """Other cells in one row of a results file."""
    rows = rows_of(path)
    rows[row] |= cells
    return rewrite(path, rows)
