"""The README is run: its Python as it stands, its numbers against what the code says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from nanoserve import DecodeBuckets
from nanoserve_cli.app import app

README = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n([\s\S]*?)```", README)


def snippet(word: str) -> str:
    (found,) = (code for code in SNIPPETS if word in code)
    return found


def test_every_python_snippet_is_tested_here() -> None:
    assert len(SNIPPETS) == 3


def test_an_engine_in_four_lines() -> None:
    pytest.importorskip("torch")
    scope: dict[str, Any] = {}
    exec(snippet("Engine.build").replace('"smollm2"', '"tiny"'), scope)
    assert [len(output.tokens) for output in scope["outputs"]] == [16, 16]


def test_your_own_loop_in_ten_lines(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    buffer = torch.zeros(8, 2048)
    scope = {
        "my_decode": lambda window: window * 2,
        "my_windows": lambda shape: (buffer[: shape.rows, : shape.width],),
        "rows": 3,
        "width": 700,
    }
    exec(snippet("compiled(my_decode").replace("policy)", 'policy, backend="count")', 1), scope)
    assert tuple(scope["logits"].shape) == (3, 1024)
    assert capsys.readouterr().out == "16 0\n"


def test_your_own_steps_priced(capsys: pytest.CaptureFixture[str]) -> None:
    exec(snippet("StepsRecorder"), {})
    assert capsys.readouterr().out.split()[2:] == ["1", "64"]


def test_the_numbers_of_the_closed_set() -> None:
    assert "9 x 64 = 576" in README
    assert DecodeBuckets(256, 8192).count == 576
    assert DecodeBuckets(256, 8192, width_multiple=2048).count == 36


def test_every_command_has_a_line() -> None:
    for command in app.registered_commands:
        assert command.callback is not None
        assert f"nanoserve {command.callback.__name__}" in README
