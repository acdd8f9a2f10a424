"""What `nanoserve doctor` finds out: versions, device, what is enabled and why not, and whether a run counts right.

Nothing here may fail for what it looks at: what is broken is a finding.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from time import perf_counter
from typing import Any

from nanoserve.cache_dir import cache_dir
from nanoserve_cli.assets import MODELS, TRACES, Asset
from nanoserve_cli.fetch import cached
from nanoserve_cli.provenance import provenance
from nanoserve_cli.workload.resolve import resolve_trace

VARIABLES = ("NANOSERVE_TRACES", "NANOSERVE_CACHE", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "CXX", "NO_COLOR")
EXPECTED = {
    "planned": ({"steps": 512, "host_only": True}, {"shapes_used": 5, "padded_cells": 680_960}),
    "run": ({"steps": 8}, {"shapes_used": 1, "padded_cells": 768, "recompiles_bucketed": 0}),
}
"""Two lockstep benches of 3 rows and a prompt of 16, their options and the counts that they have on every machine."""


@dataclass(frozen=True)
class Feature:
    """Something that works here or not. `detail` says on what, or why not and what to do."""

    name: str
    enabled: bool
    detail: str


@dataclass(frozen=True)
class Package:
    """Something that nanoserve needs, by itself or for one of its extras; `version` is None where it is not there."""

    name: str
    extra: str | None
    version: str | None


@dataclass(frozen=True)
class CheckRun:
    """One run whose counts are known. `problem` says what ended it; `found` is empty then."""

    name: str
    expected: dict[str, int]
    found: dict[str, int | None]
    seconds: float
    problem: str = ""

    @property
    def passed(self) -> bool:
        """Whether every count is what it must be."""
        return self.found == self.expected


@dataclass(frozen=True)
class Diagnosis:
    """All that a bug report needs. `variables` are those that are set."""

    system: dict[str, str]
    packages: tuple[Package, ...]
    variables: dict[str, str]
    features: tuple[Feature, ...]
    files: tuple[Feature, ...]
    checks: tuple[CheckRun, ...]

    @property
    def passed(self) -> bool:
        """Whether the runs counted right."""
        return all(check.passed for check in self.checks)

    def document(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        checks = [asdict(check) | {"passed": check.passed} for check in self.checks]
        return asdict(self) | {"checks": checks, "passed": self.passed}


def diagnose(tell: Callable[[str], None]) -> Diagnosis:
    """Looks at everything, then runs what is to be run; `tell` is told of that, for it takes a second or two."""
    features = tuple(_features())
    can_run = features[0].enabled
    checks = []
    for name, (options, expected) in EXPECTED.items():
        if name == "planned" or can_run:
            tell(f"checking the counts of a lockstep run of {options['steps']} steps, {name}")
            checks.append(_check(name, options, expected))
    return Diagnosis(
        system=_system(),
        packages=tuple(_packages()),
        variables={name: os.environ[name] for name in VARIABLES if name in os.environ},
        features=features,
        files=tuple(_file(asset) for asset in (*TRACES, *MODELS)),
        checks=tuple(checks),
    )


def _system() -> dict[str, str]:
    found = provenance(seed=0, device="cpu" if _version("torch") else None, trace_key=None, trace_sha256=None)
    commit = found["git_sha"] and f"{found['git_sha'][:12]}{', changed' if found['git_dirty'] else ''}"
    return {
        "nanoserve": found["nanoserve_version"] + (f" (commit {commit})" if commit else ""),
        "python": f"{found['python_version']}, {sys.executable}",
        "system": platform.platform(),
        "cpu": found["device"] or f"{platform.machine()} ({os.cpu_count()} cores)",
        "cache": str(cache_dir()),
    }


def _packages() -> Iterator[Package]:
    """What the distribution asks for, as its metadata says, but for the tools of its developers."""
    for requirement in metadata.requires("nanoserve") or ():
        name = re.match(r"[\w.-]+", requirement)
        extra = re.search(r"extra == ['\"](\w+)['\"]", requirement)
        if name is not None and (extra is None or extra[1] != "dev"):
            yield Package(name[0], extra and extra[1], _version(name[0]))


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _features() -> Iterator[Feature]:
    """What runs here; the first is whether a model does at all."""
    try:
        import torch
    except Exception as error:
        why = "pip install 'nanoserve[engine]'" if isinstance(error, ModuleNotFoundError) else _one_line(error)
        yield Feature("running a model", False, f"torch is not to be had: {why}")
    else:
        yield Feature("running a model", True, f"torch {torch.__version__}, {torch.get_num_threads()} threads")
        yield _cuda(torch)
        yield _inductor(torch)
        yield Feature("--graph-backend recorded", True, "on any device")
    yield Feature("--executor ray", _version("ray") is not None, _version("ray") or "pip install 'nanoserve[ray]'")


def _cuda(torch: Any) -> Feature:
    name = "CUDA, --graph-backend cuda"
    if torch.version.cuda is None:
        return Feature(name, False, "this torch was built without CUDA")
    try:
        if not torch.cuda.is_available():
            return Feature(name, False, f"torch was built for CUDA {torch.version.cuda} and finds no device")
        where = provenance(seed=0, device="cuda", trace_key=None, trace_sha256=None)
        capability = ".".join(map(str, torch.cuda.get_device_capability()))
        return Feature(
            name,
            True,
            f"{torch.cuda.device_count()} x {where['device']}, sm {capability}, CUDA {torch.version.cuda}, driver "
            f"{where['driver'] or 'unknown'}",
        )
    except RuntimeError as error:
        return Feature(name, False, _one_line(error))


def _inductor(torch: Any) -> Feature:
    from nanoserve.decode import CompilerMissing
    from nanoserve.decode.compiled import check_compiler

    name = "--compile-backend inductor"
    try:
        check_compiler("inductor", torch.device("cpu"))
    except CompilerMissing as error:
        return Feature(name, False, _one_line(error))
    compiler = os.environ.get("CXX") or next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), "")
    return Feature(name, True, compiler)


def _file(asset: Asset) -> Feature:
    """Whether a trace or a model is found, and where; its checksum is not looked at."""
    kind = "trace" if asset in TRACES else "model"
    try:
        path: Path | None = resolve_trace(asset.key) if asset in TRACES else cached(asset)
    except (ValueError, OSError):
        path = None
    return Feature(
        f"{kind} {asset.key}", path is not None, f"nanoserve fetch {asset.key}" if path is None else str(path)
    )


def _check(name: str, options: dict[str, Any], expected: dict[str, int]) -> CheckRun:
    """The run and its counts, through what `nanoserve check` runs."""
    start = perf_counter()
    try:
        from nanoserve_cli.check.bench_rows import BenchWorkload

        (sample,) = BenchWorkload(options, None).run()
        found = {metric: sample.row[metric] for metric in expected}
    except Exception as error:
        return CheckRun(name, expected, {}, perf_counter() - start, f"{type(error).__name__}: {_one_line(error)}")
    return CheckRun(name, expected, found, perf_counter() - start)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
