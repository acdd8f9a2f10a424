"""`nanoserve doctor`: what a bug report needs, and whether this installation counts right."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from nanoserve_cli import options as opt
from nanoserve_cli.console import EXIT_CHECK_FAILED, out, reported, say, show

if TYPE_CHECKING:
    from nanoserve_cli.doctor import CheckRun, Diagnosis, Package


def doctor(json_: opt.Json = False, quiet: opt.Quiet = False) -> None:
    """Print what a bug report needs (versions, device, what is enabled and why not) and check a short run.

    The counts of that run are known: exit code 3 says that this installation does not make them.
    """
    with reported():
        from nanoserve_cli.doctor import diagnose

        found = diagnose(lambda line: say(line, quiet=quiet or json_))
        if json_:
            sys.stdout.write(json.dumps(found.document(), indent=2) + "\n")
        else:
            _render(found)
        if not found.passed:
            raise typer.Exit(EXIT_CHECK_FAILED)


def _render(found: Diagnosis) -> None:
    from nanoserve_cli.tables import simple_table

    sections = {
        "System": [*found.system.items(), *found.variables.items()],
        "Packages": [(one.name, one.version or _absent(one)) for one in found.packages],
        "Enabled": [(one.name, f"{'yes' if one.enabled else 'no'}: {one.detail}") for one in found.features],
        "Files": [(one.name, one.detail) for one in found.files],
        "Counts": [line for check in found.checks for line in _lines(check)],
    }
    for title, rows in sections.items():
        table = simple_table(title, ("", ""), rows)
        table.columns[1].justify = "left"
        show(table)
    verdict = "this installation counts right" if found.passed else "THIS INSTALLATION DOES NOT COUNT RIGHT"
    out().print(verdict, style="green" if found.passed else "red", markup=False)


def _absent(package: Package) -> str:
    return "not there" + (f": pip install 'nanoserve[{package.extra}]'" if package.extra else "")


def _lines(check: CheckRun) -> Iterator[tuple[str, str]]:
    """What a run counted, and of what it should have counted."""
    if check.problem:
        yield check.name, check.problem
        return
    for metric, expected in check.expected.items():
        found = check.found[metric]
        as_expected = "as it must be" if found == expected else f"MUST BE {expected:,}"
        yield f"{check.name} {metric}", f"{'none' if found is None else f'{found:,}'}, {as_expected}"
    yield f"{check.name} in", f"{check.seconds:.2f} s"
