"""Figures beyond any machine or clock: one line and exit 2 before anything is allocated, never a kill or a warning."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nanoserve import CaptureList, DecodeBuckets, Engine, Shape
from nanoserve.scheduler import RequestRejected
from nanoserve_cli.app import app

DRAWN = ("--num-requests", "5", "--prompt-len", "5", "--output-len", "3", "--max-model-len", "64")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--host-only", "--prompt", "99999999999"), "slot table"),
        (("--host-only", "--steps", "999999999999"), "slot table"),
        (("--host-only", *DRAWN[:-1], "99999999999999999999999"), "slot table"),
        (("--host-only", "--num-requests", "99999999999"), "draw fewer"),
        (("--host-only", *DRAWN, "--step-ms", "1e300"), "--step-ms"),
        (("--host-only", *DRAWN, "--step-ms", "1e-9"), "--step-ms"),
        (("--host-only", *DRAWN, "--request-rate", "2", "--burstiness", "1e-300"), "burstiness"),
        ((*DRAWN, "--clock", "real", "--speedup", "1e-300"), "speedup"),
        ((*DRAWN, "--clock", "real", "--speedup", "nan"), "speedup"),
    ],
)
def test_a_figure_out_of_bounds_is_one_line(arguments: tuple[str, ...], named: str) -> None:
    result = CliRunner().invoke(app, ["bench", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert named in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_prompt_that_is_no_text_is_one_line() -> None:
    result = CliRunner().invoke(app, ["generate", "\udcff\udcfe", "--model", "tiny"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no UTF-8 text" in result.stderr


def test_a_closed_standard_output_is_one_line() -> None:
    script = Path(sys.executable).with_name("nanoserve")
    done = subprocess.run(
        ["sh", "-c", f"{script} bench --host-only --steps 4 --json >&-"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "error: standard output is closed: there is nowhere to write to\n"


class TestTheLibrary:
    @pytest.mark.parametrize(
        ("changes", "named"),
        [
            ({"policy": "x"}, "policy must be"),
            ({"max_prefill_tokens": 0}, "max_prefill_tokens"),
            ({"dynamic": "x"}, "dynamic 'x'"),
            ({"compile_backend": "x"}, "compile backend 'x'"),
            ({"graph_backend": "x"}, "graph backend 'x'"),
        ],
    )
    def test_an_engine_names_the_argument(self, changes: dict[str, object], named: str) -> None:
        with pytest.raises(ValueError, match=named):
            Engine.build(None, 2, 16, **changes)  # type: ignore[arg-type]

    @pytest.mark.parametrize(("model", "device", "named"), [("tiny", "bogus", "bogus"), (123, None, "123")])
    def test_a_model_or_device_that_is_none_is_named(self, model: object, device: str | None, named: str) -> None:
        with pytest.raises(ValueError, match=named):
            Engine.build(model, 2, 16, device=device)  # type: ignore[arg-type]

    @pytest.mark.parametrize(("prompt", "max_tokens"), [("hi", 2), ([1.5], 2), ([1], 1.5)])
    def test_text_and_fractions_are_no_token_ids(self, prompt: object, max_tokens: object) -> None:
        engine = Engine.build(None, 2, 16)
        with pytest.raises(RequestRejected, match="integer token ids"):
            engine.add_request(prompt, max_tokens=max_tokens)  # type: ignore[arg-type]
        assert not engine.has_requests

    def test_shapes_are_integers_and_lists_hold_shapes(self) -> None:
        with pytest.raises(ValueError, match=r"1\.5"):
            Shape(1.5, 2)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="holds Shape"):
            CaptureList([(1, 128)])  # type: ignore[list-item]
        with pytest.raises(ValueError, match="beyond the limits"):
            CaptureList([Shape(4, 64)], max_batch_size=2)

    def test_numpys_integers_are_integers(self) -> None:
        import numpy as np

        assert DecodeBuckets(8, 128, rows=[np.int64(8)]).rows == (8,)  # type: ignore[list-item]
