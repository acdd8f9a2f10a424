"""This repository's own budget, and the workflow that others copy."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from nanoserve_cli.app import app
from nanoserve_cli.check.budget_file import load_budgets

REPOSITORY = Path(__file__).parent.parent
BUDGET = REPOSITORY / "sweeps" / "budget.yaml"
WORKFLOW = REPOSITORY / ".github" / "workflows" / "budget.yml"


def test_it_holds_the_numbers_of_the_design() -> None:
    limits = {
        (budget.name, limit.column.name): (limit.kind, limit.value)
        for budget in load_budgets(BUDGET).budgets
        for limit in budget.limits
    }
    shapes = [limits[f"shapes-{multiple}", "shapes_available"] for multiple in (128, 512, 2048, 8192)]
    assert shapes == [("exactly", 576), ("exactly", 144), ("exactly", 36), ("exactly", 9)]
    assert limits["lockstep-512", "shapes_used"] == ("exactly", 5)
    assert limits["lockstep-512", "padded_cells"] == ("exactly", 680_960)
    assert limits["compiled", "recompiles_bucketed"] == ("exactly", 0)
    assert limits["graphs", "captures_after_warm_up"] == ("exactly", 0)
    assert limits["audit", "new_storage"] == ("exactly", 0)


def test_its_host_only_part_passes(tmp_path: Path) -> None:
    """What a runner without torch can say of it, in a second."""
    document = YAML(typ="safe", pure=True).load(BUDGET)
    document["budgets"] = [one for one in document["budgets"] if "host_only" in str(one["workload"])]
    assert len(document["budgets"]) == 5
    with (tmp_path / "b.yaml").open("w") as file:
        YAML().dump(document, file)
    assert CliRunner().invoke(app, ["check", str(tmp_path / "b.yaml"), "--strict"]).exit_code == 0


@pytest.mark.slow
def test_it_passes() -> None:
    done = CliRunner().invoke(app, ["check", str(BUDGET), "--strict"])
    assert done.exit_code == 0, done.output


def test_ci_runs_it() -> None:
    assert "make budget" in (REPOSITORY / ".ci" / "run").read_text()
    (rule,) = re.findall(r"^budget:.*\n\t(.*)$", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    assert rule.endswith("$(BIN)/nanoserve check sweeps/budget.yaml")


class TestTheWorkflow:
    @pytest.fixture
    def workflow(self) -> Any:
        return YAML(typ="safe", pure=True).load(WORKFLOW)

    def test_it_checks_out_installs_and_checks_with_annotations_and_a_summary(self, workflow: Any) -> None:
        (job,) = workflow["jobs"].values()
        uses = [step["uses"].partition("@")[0] for step in job["steps"] if "uses" in step]
        assert uses == ["actions/checkout", "actions/setup-python"]
        install, check = [step["run"] for step in job["steps"] if "run" in step]
        assert install.startswith("pip install ")
        assert shlex.split(check) == ["nanoserve", "check", "sweeps/budget.yaml", "--format", "github"]

    def test_it_may_read_and_nothing_else(self, workflow: Any) -> None:
        assert workflow["permissions"] == {"contents": "read"}
        assert "pull_request" in workflow["on"]
