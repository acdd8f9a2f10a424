"""Runs the tests marked `cuda`, writes what they measured to results/gpu-<device>.json, and fails if none ran."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


class Report:
    """A pytest plugin that keeps each test's outcome and what it recorded."""

    def __init__(self) -> None:
        self.tests: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.tests.append(
                {"test": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 3)}
                | dict(report.user_properties)
            )


def main() -> int:
    if not torch.cuda.is_available():
        print("make gpu: no CUDA device on this machine, nothing was run", file=sys.stderr)
        return 1
    report = Report()
    code = int(pytest.main(["-q", "-m", "cuda", "-p", "no:cacheprovider", str(HERE)], plugins=[report]))
    ran = sum(test["outcome"] != "skipped" for test in report.tests)
    if not ran:
        print("make gpu: every test was skipped, nothing was run", file=sys.stderr)
        return 1
    device = torch.cuda.get_device_name()
    sha = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    document = {
        "schema_version": 1,
        "started_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": "make gpu",
        "git_sha": sha.stdout.strip() or None,
        "python_version": platform.python_version(),
        "torch_version": torch.__version__,
        "device": device,
        "ran": ran,
        "failed": sum(test["outcome"] == "failed" for test in report.tests),
        "tests": report.tests,
    }
    path = ROOT / "results" / f"gpu-{re.sub(r'[^A-Za-z0-9]+', '-', device).strip('-').lower()}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(f"make gpu: {ran} ran, {document['failed']} failed; {path}")
    return code


if __name__ == "__main__":
    sys.exit(main())
