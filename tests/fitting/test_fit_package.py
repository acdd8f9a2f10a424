"""The public face of `nanoserve.fitting`: documented, and numpy is all that it needs."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nanoserve import fitting


@pytest.mark.parametrize("name", fitting.__all__)
def test_every_public_name_is_documented(name: str) -> None:
    assert inspect.getdoc(getattr(fitting, name))


def test_a_fit_needs_numpy_and_nothing_else() -> None:
    program = """
import sys
sys.modules.update(dict.fromkeys(("torch", "pandas", "scipy", "matplotlib")))
from nanoserve.fitting import Axis, StepsHistogram, fit_staircase
print(fit_staircase(StepsHistogram.of_rows({3: 5, 8: 1}), Axis(8), Axis(1), 2).at(2).best.rows)
"""
    path = os.pathsep.join([str(Path(fitting.__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "(3, 8)"
