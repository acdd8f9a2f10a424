"""The workload `tune`: what the recommended list wastes where it was not fitted, a row a load."""

from __future__ import annotations

from typing import Any

import pytest

from nanoserve_cli.check.tune_rows import WASTE_OF_DEFAULT, TuneWorkload
from nanoserve_cli.check.workloads import BudgetError

SMALL: dict[str, Any] = {
    "num_requests": 300,
    "request_rate": 20,
    "prompt_len": "uniform:20,200",
    "output_len": "uniform:20,80",
    "max_batch": 32,
    "max_model_len": 512,
    "budget_graphs": 8,
}


def test_a_row_a_load_and_it_beats_the_default_of_its_size() -> None:
    workload = TuneWorkload(SMALL | {"loads": [1, 2]}, None)
    rows = {sample.label: sample.row for sample in workload.run()}
    assert [point.label for point in workload.points()] == list(rows) == ["load 1", "load 2"]
    for row in rows.values():
        assert row["shapes_available"] <= 8
        assert 0 < row["waste"] < row[WASTE_OF_DEFAULT.name]
        assert row["padded_cells"] == pytest.approx(row["open_cells"] / (1 - row["waste"]))


def test_the_same_budget_gives_the_same_figures() -> None:
    first, second = (TuneWorkload(SMALL, None).run() for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_request": 3}, "tune: unknown key 'num_request': did you mean num_requests"),
        ({**SMALL, "loads": "x"}, "tune: --loads"),
        ({**SMALL, "verify": True}, "tune: unknown key 'verify'"),
    ],
)
def test_options_are_the_commands_own(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BudgetError, match=message):
        TuneWorkload(options, None)
