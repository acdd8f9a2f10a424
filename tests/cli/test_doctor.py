"""`nanoserve doctor`: everything a bug report needs, and an installation that miscounts is told apart."""

from __future__ import annotations

import builtins
import json
import os
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from budgets import run

from nanoserve_cli import doctor
from nanoserve_cli.assets import TRACES
from nanoserve_cli.console import EXIT_CHECK_FAILED
from nanoserve_cli.doctor import CheckRun, Diagnosis, diagnose


@pytest.fixture(scope="module")
def found() -> Diagnosis:
    return diagnose(lambda _: None)


def test_both_runs_count_right(found: Diagnosis) -> None:
    assert [(check.name, check.found, check.passed, check.problem) for check in found.checks] == [
        ("planned", {"shapes_used": 5, "padded_cells": 680_960}, True, ""),
        ("run", {"shapes_used": 1, "padded_cells": 768, "recompiles_bucketed": 0}, True, ""),
    ]
    assert found.passed


def test_versions_are_of_what_the_distribution_asks_for(found: Diagnosis) -> None:
    import torch

    versions = {package.name.lower().replace("_", "-"): package for package in found.packages}
    assert (versions["numpy"].version, versions["numpy"].extra) == (np.__version__, None)
    assert (versions["torch"].version, versions["torch"].extra) == (torch.__version__, "engine")
    assert not {"pytest", "ruff", "mypy"} & set(versions)
    assert found.system["python"].startswith(platform.python_version())
    assert found.system["nanoserve"].startswith("0.")


def test_a_feature_is_on_or_says_why_not(found: Diagnosis) -> None:
    import torch

    features = {feature.name: feature for feature in found.features}
    assert list(features) == [
        "running a model",
        "CUDA, --graph-backend cuda",
        "--compile-backend inductor",
        "--graph-backend recorded",
        "--executor ray",
    ]
    assert features["running a model"].enabled
    assert features["CUDA, --graph-backend cuda"].enabled == torch.cuda.is_available()
    if torch.version.cuda is None:
        assert features["CUDA, --graph-backend cuda"].detail == "this torch was built without CUDA"


def test_no_compiler_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    feature = next(one for one in doctor._features() if "inductor" in one.name)
    assert not feature.enabled
    assert "no-such-compiler" in feature.detail


@pytest.mark.parametrize(
    ("available", "detail"),
    [
        (True, "2 x NVIDIA H200, sm 9.0, CUDA 12.8, driver 570.1"),
        (False, "torch was built for CUDA 12.8 and finds no device"),
    ],
)
def test_a_cuda_device_is_named_with_its_versions(
    available: bool, detail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "provenance", lambda **_: {"device": "NVIDIA H200", "driver": "570.1"})
    cuda = SimpleNamespace(is_available=lambda: available, device_count=lambda: 2, get_device_capability=lambda: (9, 0))
    feature = doctor._cuda(SimpleNamespace(version=SimpleNamespace(cuda="12.8"), cuda=cuda))
    assert (feature.enabled, feature.detail) == (available, detail)


def test_a_torch_that_is_there_and_broken_is_not_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def broken(name: str, *arguments: Any, **more: Any) -> Any:
        if name == "torch":
            raise ImportError("libcudart.so.13: cannot open shared object file")
        return imported(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", broken)
    first = next(doctor._features())
    assert (first.enabled, first.detail) == (
        False,
        "torch is not to be had: libcudart.so.13: cannot open shared object file",
    )


def test_a_trace_is_where_it_was_found_or_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANOSERVE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NANOSERVE_TRACES", str(tmp_path))
    here, absent = TRACES
    path = tmp_path / here.filename
    path.write_text("x")
    assert doctor._file(here) == doctor.Feature(f"trace {here.key}", True, str(path))
    assert doctor._file(absent) == doctor.Feature(f"trace {absent.key}", False, f"nanoserve fetch {absent.key}")


class TestTheCommand:
    def test_what_it_prints_on_80_columns(self, found: Diagnosis, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(doctor, "diagnose", lambda tell: found)
        shown = run("doctor", env={"COLUMNS": "80"})
        assert shown.exit_code == 0
        lines = shown.stdout.splitlines()
        assert [line for line in lines if line and not line.startswith(" ")] == [
            "System",
            "Packages",
            "Enabled",
            "Files",
            "Counts",
            "this installation counts right",
        ]
        assert " planned padded_cells      680,960, as it must be" in lines

    def test_an_installation_that_miscounts_is_exit_code_3(
        self, found: Diagnosis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wrong = replace(found.checks[0], found={"shapes_used": 6, "padded_cells": 680_960})
        monkeypatch.setattr(doctor, "diagnose", lambda tell: replace(found, checks=(wrong,)))
        shown = run("doctor", "-q")
        assert shown.exit_code == EXIT_CHECK_FAILED
        assert " planned shapes_used    6, MUST BE 5\n" in shown.stdout
        assert shown.stdout.endswith("THIS INSTALLATION DOES NOT COUNT RIGHT\n")
        assert not json.loads(run("doctor", "--json").stdout)["passed"]

    def test_a_run_that_fails_is_a_finding_and_no_crash(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(*_: object, **__: object) -> None:
            raise ZeroDivisionError("a bug")

        monkeypatch.setattr("nanoserve_cli.check.bench_rows.bench_lockstep", broken)
        shown = run("doctor", "-q")
        assert shown.exit_code == EXIT_CHECK_FAILED
        assert " planned   ZeroDivisionError: a bug\n" in shown.stdout

    def test_json_is_the_whole_of_it(self, found: Diagnosis, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(doctor, "diagnose", lambda tell: found)
        printed = run("doctor", "--json")
        assert printed.stderr == ""
        parsed = json.loads(printed.stdout)
        assert set(parsed) == {"system", "packages", "variables", "features", "files", "checks", "passed"}
        assert parsed["checks"][0]["expected"] == {"shapes_used": 5, "padded_cells": 680_960}

    def test_without_torch_it_says_what_to_install_and_plans(self, tmp_path: Path) -> None:
        code = (
            "import sys\n"
            "class Hidden:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            "        if name.partition('.')[0] == 'torch':\n"
            "            raise ModuleNotFoundError('no torch', name=name)\n"
            "sys.meta_path.insert(0, Hidden())\n"
            "sys.argv = ['nanoserve', 'doctor', '-q']\n"
            "from nanoserve_cli.app import main; main()"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ)
        assert (done.returncode, done.stderr) == (0, "")
        assert "no: torch is not to be had: pip install 'nanoserve[engine]'" in done.stdout
        assert "planned padded_cells   680,960, as it must be" in done.stdout


def test_a_check_without_every_figure_has_not_passed() -> None:
    assert not CheckRun("run", {"padded_cells": 768}, {"padded_cells": None}, 0.0).passed
    assert not CheckRun("run", {"padded_cells": 768}, {}, 0.0, "ended").passed
