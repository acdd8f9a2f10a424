"""The base install has no torch: what plans and prices must work, and what needs it must say how to get it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HIDDEN = "import sys; sys.modules['torch'] = None\n"


def without_torch(program: str) -> str:
    """Runs a program in an interpreter that has no torch; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN + program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "engine"), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_policies_gates_and_pricing_work() -> None:
    printed = without_torch("""
from nanoserve import DecodeBuckets, StepsRecorder, check_capture_budget, price_run
buckets = DecodeBuckets(8, 528)
recorder = StepsRecorder()
for j in range(1, 513):
    recorder.add(3, 16 + j, 3 * (16 + j))
cost = price_run(recorder.steps(), buckets)
print(check_capture_budget(buckets), cost.open_cells, cost.padded_cells, cost.shapes_used)
""")
    assert printed.split() == ["20", "418560", "680960", "5"]


def test_an_engine_that_only_plans_works() -> None:
    printed = without_torch("""
from nanoserve import Engine
engine = Engine.build(None, 8, 64, bucket_decode=True, audit=True)
engine.warm_up()
outputs = engine.generate([[1, 2, 3]] * 20, max_tokens=30)
print(len(outputs), {output.reason for output in outputs})
assert sys.modules["torch"] is None
""")
    assert printed.split() == ["20", "{'length'}"]


@pytest.mark.parametrize("name", ["compiled", "CompiledRegion", "StepRecompiled", "check_step_inert", "load_model"])
def test_what_needs_torch_says_how_to_get_it(name: str) -> None:
    printed = without_torch(f"""
import nanoserve
try:
    nanoserve.{name}
except ImportError as error:
    print(error)
""")
    assert printed.strip() == f"nanoserve.{name} needs torch: pip install 'nanoserve[engine]'"


def test_an_engine_with_a_model_says_how_to_get_torch() -> None:
    # Pinned: Engine.build("tiny", ...) ends in a bare "ModuleNotFoundError: No module named 'torch'".
    printed = without_torch("""
from nanoserve import Engine
try:
    Engine.build("tiny", 2, 16)
except ImportError as error:
    print(error)
""")
    assert "pip install 'nanoserve[engine]'" in printed


def test_an_unknown_name_is_an_attribute_error() -> None:
    printed = without_torch("""
import nanoserve
try:
    nanoserve.nonsense
except AttributeError as error:
    print(error)
""")
    assert printed.strip() == "module 'nanoserve' has no attribute 'nonsense'"


def test_importing_the_library_imports_no_heavy_module() -> None:
    """With torch installed, too: `nanoserve --help` answers in half a second."""
    program = "import nanoserve, sys; print(sorted({'torch', 'pandas', 'matplotlib', 'yaml'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT / "engine")},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "[]"
