"""Runs of `nanoserve sweep` shared by its tests: small ones, in this process, without torch unless they ask for it."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from nanoserve_cli.app import app
from nanoserve_cli.columns import RUN_COLUMNS, TIME_COLUMNS
from nanoserve_cli.grid import Lockstep, SweepSpec
from nanoserve_cli.pricer import price_grid
from nanoserve_cli.sweep import Sweep

SMALL = ("--host-only", "--max-batch", "4", "--max-model-len", "64", "--steps", "24")
TINY = ("--max-batch", "2", "--max-model-len", "32", "--rows", "2", "--prompt", "4", "--steps", "6")
DRAWN = ("--num-requests", "12", "--prompt-len", "uniform:4,20", "--output-len", "uniform:2,30", "--request-rate", "40")
VARYING = ("started_utc", "command", *TIME_COLUMNS)
"""Columns in which two runs of one sweep may differ."""


def invoke(*arguments: object) -> Any:
    """The command in this process, both streams apart."""
    return CliRunner().invoke(app, ["sweep", *map(str, arguments)])


def sweep(*arguments: object) -> list[dict[str, Any]]:
    """The points of a sweep that succeeds, as its JSON has them."""
    result = invoke(*arguments, "--format", "json", "-q")
    assert result.exit_code == 0, result.stderr or result.exception
    points: list[dict[str, Any]] = json.loads(result.stdout)["points"]
    return points


def refused(*arguments: object) -> str:
    """The one line of a sweep that is bad input, without its `error: `; nothing is on stdout."""
    result = invoke(*arguments)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.output
    assert result.stderr.startswith("error: ")
    return str(result.stderr).removeprefix("error: ").rstrip("\n")


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a results file as text."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def lasting(path: Path) -> list[dict[str, str]]:
    """The same without the columns that differ from run to run."""
    return [{name: row[name] for name in RUN_COLUMNS if name not in VARYING} for row in rows_of(path)]


def vidur(path: Path, requests: list[tuple[float, int, int]]) -> Path:
    """A trace of `(seconds, prompt, output)` in vidur's format."""
    lines = ["arrived_at,num_prefill_tokens,num_decode_tokens", *(f"{t},{p},{o}" for t, p, o in requests)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def spec(**settings: Any) -> SweepSpec:
    """A sweep of one small point, but for `settings`."""
    small = {"traffic": (Lockstep(2, 4, 6),), "max_batch": (2,), "max_model_len": (32,)}
    return SweepSpec(**(small | settings))


def swept(asked: SweepSpec) -> Sweep:
    """A sweep that is priced and not run."""
    return Sweep(asked, price_grid(asked, lambda _: None))
