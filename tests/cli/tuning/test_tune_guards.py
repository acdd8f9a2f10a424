"""What keeps a recommendation from making a server slower: too little evidence, a target met where it was fitted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nanoserve_cli.app import app

LINE = "[2026-01-01 00:00:{at:02d}] Decode batch, #running-req: {rows}, #token: 900, cuda graph: True, #queue-req: 0"


def tune(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["tune", *map(str, arguments)], env={"COLUMNS": "200"})


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A server's log of three decode lines: 29, 29 and 48 rows."""
    path = tmp_path / "server.log"
    path.write_text("\n".join(LINE.format(at=at, rows=rows) for at, rows in enumerate((29, 29, 48))) + "\n")
    return path


def test_three_samples_are_no_evidence_for_a_list_of_ones_own(log: Path) -> None:
    done = tune("--from", log, "--max-batch", 64, "--emit", "sglang", "--budget-graphs", 8)
    assert done.exit_code == 0
    assert "recommended: the default (pow2, 7 graphs): 3 samples tell no list from chance" in done.stdout
    assert "--cuda-graph-bs-decode 1 2 4 8 16 32 64" in done.stdout


def test_where_not_even_the_default_is_within_the_budget_the_fitted_list_stays(log: Path) -> None:
    done = tune("--from", log, "--max-batch", 64, "--budget-graphs", 3)
    assert "tell no list from chance" not in done.stdout
    assert "thin evidence: 3 samples" in done.stderr


def test_a_target_says_what_the_list_does_on_what_it_was_not_fitted_to() -> None:
    traffic = ("--num-requests", 300, "--request-rate", 20, "--prompt-len", "uniform:20,200", "--output-len", 60)
    done = tune(*traffic, "--max-batch", 32, "--max-model-len", 512, "--objective", "rows", "--target", "waste:5%")
    assert done.exit_code == 0, done.stderr
    assert "--target waste:5% is met on what is fitted: waste " in done.stderr
    assert " held out" in done.stderr


def test_a_grid_that_would_take_hours_is_refused_before_it_starts() -> None:
    traffic = ("--num-requests", 30, "--request-rate", 20, "--prompt-len", 20, "--output-len", 20)
    done = tune(*traffic, "--max-batch", 256, "--max-model-len", 8192, "--width-granularity", 1)
    assert done.exit_code == 2
    assert "256 row by 8,192 width buckets to choose from take about " in done.stderr
    assert "raise --width-granularity or --row-granularity, or lower the limits" in done.stderr
