"""Runs the command of every committed result again and compares the counts: `make results`.

A result is verified, or it differs (exit 1), or it is unverified because a trace it needs is not here. Figures are
drawn anew from the committed CSV. `--write` replaces the committed files by what their commands give now.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from nanoserve_cli.difference import cells, difference
from nanoserve_cli.workload.errors import TraceError
from nanoserve_cli.workload.resolve import resolve_trace

RESULTS = Path(__file__).resolve().parent
ROOT = RESULTS.parent


def main(arguments: list[str]) -> int:
    """Verifies the results named in `arguments`, or all of them; the exit code."""
    write = "--write" in arguments
    named = [argument for argument in arguments if argument != "--write"]
    entries = yaml.safe_load((RESULTS / "manifest.yaml").read_text(encoding="utf-8"))["results"]
    if unknown := set(named) - {entry["name"] for entry in entries}:
        print(f"no such result: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    verdicts = []
    for entry in entries:
        if not named or entry["name"] in named:
            verdicts.append(reproduce(entry, write=write))
            print(f"{verdicts[-1]:>10}  results/{entry['name']}.csv", flush=True)
    return 1 if "DIFFERS" in verdicts else 0


def reproduce(entry: Mapping[str, Any], *, write: bool) -> str:
    """Runs one result's command; `verified`, `written`, `DIFFERS` or `unverified`. Differences are printed."""
    for key in entry.get("traces", ()):
        try:
            resolve_trace(key)
        except TraceError as error:
            print(error)
            return "unverified"
    committed = RESULTS / f"{entry['name']}.csv"
    if write:
        make(entry["command"], committed)
        changes = []
    else:
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / committed.name
            make(entry["command"], made)
            changes = [cells(change) for change in difference(committed, made).changes]
    for change in changes:
        print("  ".join(change))
    for figure in entry.get("figures", ()):
        run([*figure["command"], "--out", f"results/{figure['out']}"])
    return "DIFFERS" if changes else "written" if write else "verified"


def make(command: list[str], path: Path) -> None:
    """Runs a command so that its rows are in `path`: a sweep or tune writes the file, a bench a folder."""
    target = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    if command[0] != "bench":
        path.unlink(missing_ok=True)
        run([*command, "--out", str(target)])
        return
    run([*command, "--out", str(target.with_suffix(""))])
    shutil.copyfile(path.with_suffix("") / "runs.csv", path)
    shutil.rmtree(path.with_suffix(""))


def run(arguments: list[str]) -> None:
    """The command line tool, quietly, from the repository's root. SystemExit with its message where it fails."""
    done = subprocess.run(
        [sys.executable, "-c", "from nanoserve_cli.app import main; main()", *arguments, "-q"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"nanoserve {' '.join(arguments)}: exit {done.returncode}: {done.stderr.strip()}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
