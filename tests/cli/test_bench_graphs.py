"""`nanoserve bench` with graphs and capture lists: what was captured, replayed, and run eager."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from nanoserve.model.decoder import Decoder
from nanoserve_cli.app import app

CAPTURES = "schema_version: 1\nmax_batch_size: 4\nmax_model_len: 64\ncaptures: {1: [32], 2: [32]}\n"
CROWD = ("--num-requests", 6, "--prompt-len", "uniform:4,20", "--output-len", "uniform:2,12")


def bench(*arguments: object, **environment: str) -> Result:
    return CliRunner(env=environment).invoke(app, ["bench", *map(str, arguments)])


def runs(*arguments: object) -> list[dict[str, Any]]:
    result = bench(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    found: list[dict[str, Any]] = json.loads(result.stdout)["runs"]
    return found


def test_a_lockstep_run_captures_its_buckets_once_and_the_open_run_every_step() -> None:
    """The seed's run in small: the captures of the open run are as many as its steps, and never replayed again."""
    (eight, more) = runs("--runner", "graphs", "--steps", "8,40", "--width-multiple", 16)
    assert (eight["captures_open"], eight["captures_bucketed"], eight["captures_after_warm_up"]) == (8, 1, 0)
    assert (more["captures_open"], more["captures_bucketed"], more["captures_after_warm_up"]) == (40, 3, 0)
    for run in (eight, more):
        assert run["captures_bucketed"] == run["shapes_used"]
        assert run["replay_share"] == 1.0
        assert run["eager_partings"] == {"requests": 0, "widest_gap": 0.0}
        assert run["compiles_open"] is None


@pytest.mark.slow
def test_the_seeds_512_steps_are_5_captures() -> None:
    (run,) = runs("--rows", 3, "--max-batch", 8, "--runner", "graphs", "--steps", 512)
    assert (run["captures_open"], run["captures_bucketed"], run["captures_after_warm_up"]) == (512, 5, 0)
    assert run["padded_cells"] == 680_960


def test_the_same_without_graphs_has_no_captures() -> None:
    (run,) = runs("--steps", 4)
    assert run.get("captures_open") is None
    assert run["eager_partings"] is None


class TestCaptureLists:
    @pytest.fixture
    def policy(self, tmp_path: Path) -> Path:
        path = tmp_path / "captures.yaml"
        path.write_text(CAPTURES)
        return path

    @pytest.mark.parametrize("runner", ["eager", "graphs", "compiled"])
    def test_steps_off_the_list_are_counted_and_warned_about_once(self, policy: Path, runner: str) -> None:
        result = bench("--policy", policy, *CROWD, "--runner", runner, "--json")
        assert result.exit_code == 0, result.stderr
        (run,) = json.loads(result.stdout)["runs"]
        off, steps = run["off_list_steps"], run["steps"]
        assert 0 < off < steps
        assert f"warning: synthetic: {off} of {steps} steps were off the capture list" in result.stderr
        assert result.stderr.count("warning:") == 1
        assert sum(run["steps_per_shape"].values()) == steps - off
        if runner == "graphs":
            assert run["replay_share"] == pytest.approx((steps - off) / steps)

    def test_what_has_no_graph_is_said_at_the_start(self, policy: Path) -> None:
        said = bench("--policy", policy, *CROWD, "--host-only").stderr
        assert "capture list of 2: no graph for 3 to 4 rows, up to 2 rows above 32 columns" in said

    def test_off_the_list_nothing_is_padded(self, policy: Path) -> None:
        (run,) = runs("--policy", policy, *CROWD, "--host-only")
        assert run["row_padding"] == 0


def test_a_model_that_makes_nan_fails_the_run_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was a table of zeros, and exit 0."""
    prepare = Decoder.prepare

    def spoil(self: Decoder, max_model_len: int) -> None:
        with torch.no_grad():
            self.norm.weight.fill_(float("nan"))
        prepare(self, max_model_len)

    monkeypatch.setattr(Decoder, "prepare", spoil)
    for arguments in (("--steps", 4), CROWD):
        result = bench(*arguments)
        assert (result.exit_code, result.stdout) == (3, "")
        assert "requests failed in the open run; number 0: the logits were not finite" in " ".join(
            result.stderr.split()
        )


@pytest.mark.parametrize("columns", ["20", "40", "80"])
def test_no_width_cuts_a_figure(columns: str) -> None:
    shown = bench("--host-only", "--steps", 2048, "--rows", 32, "--max-batch", 32, COLUMNS=columns).stdout
    assert "72,294,400" in shown
    assert "…" not in shown
    assert all(line == line.rstrip() for line in shown.splitlines())


def test_an_audited_run_is_the_same_run() -> None:
    audited, plain = (runs(*CROWD, "--max-model-len", 64, *flags)[0] for flags in (("--audit",), ()))
    for name in ("steps", "open_cells", "padded_cells", "shapes_used", "finished"):
        assert audited[name] == plain[name]
