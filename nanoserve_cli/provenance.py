"""Where a result comes from: the code, the machine, the command and the trace behind it."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from nanoserve_cli.columns import SCHEMA_VERSION


def provenance(
    *,
    seed: int,
    device: str | None,
    trace_key: str | None,
    trace_sha256: str | None,
    config_hash: str | None = None,
) -> dict[str, Any]:
    """The provenance columns of a run that starts now. `device` is None where no tensor was touched."""
    sha, dirty = _git_state()
    return {
        "schema_version": SCHEMA_VERSION,
        "started_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["nanoserve", *sys.argv[1:]]),
        "git_sha": sha,
        "git_dirty": dirty,
        "code_sha256": code_sha256(),
        "nanoserve_version": metadata.version("nanoserve"),
        **machine(device),
        "seed": seed,
        "trace_key": trace_key,
        "trace_sha256": trace_sha256,
        "config_hash": config_hash,
    }


def machine(device: str | None) -> dict[str, str | None]:
    """The columns that say what a run ran on. `device` is None where no tensor was touched."""
    return {
        "python_version": platform.python_version(),
        "torch_version": None if device is None else metadata.version("torch"),
        "device": _device_name(device),
        "driver": _driver(device),
    }


@cache
def code_sha256() -> str:
    """Of the sources of both packages as installed: the version of the code, also where no commit tells it."""
    import nanoserve

    digest = hashlib.sha256()
    for root in (Path(nanoserve.__file__).parent, Path(__file__).parent):
        for path in sorted(root.rglob("*.py")):
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _git_state() -> tuple[str | None, bool | None]:
    """The commit this code is at and whether it differs from it; None outside a checkout."""
    here = Path(__file__).resolve().parent
    try:
        sha = _git(here, "rev-parse", "HEAD")
        return sha, bool(_git(here, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None, None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()


def _device_name(device: str | None) -> str | None:
    if device is None:
        return None
    if device.startswith("cuda"):
        import torch

        return str(torch.cuda.get_device_name(device))
    return f"{_cpu_model()} ({os.cpu_count()} cores)"


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _driver(device: str | None) -> str | None:
    if device is None or not device.startswith("cuda"):
        return None
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
        return done.stdout.splitlines()[0].strip()
    except (OSError, subprocess.SubprocessError, IndexError):
        return None
