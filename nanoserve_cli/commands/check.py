"""`nanoserve check`: the counts of a workload against the limits that a file keeps."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nanoserve_cli import options as opt
from nanoserve_cli.check import DEFAULT_FILE
from nanoserve_cli.console import drop_stdout, out, reported, say, show, warn

if TYPE_CHECKING:
    from nanoserve_cli.check.budget_file import BudgetFile
    from nanoserve_cli.check.checking import Found, Report
    from nanoserve_cli.check.words import Command

TOLD = 20
"""Lines below the table, the worst; the table itself has every limit."""


def check(
    budget: Annotated[
        Path, typer.Argument(metavar="BUDGET", help="A budget file; `nanoserve init` writes a first one.")
    ] = Path(DEFAULT_FILE),
    results: Annotated[
        Path | None, opt.in_panel(opt.TRAFFIC, help="Read this results CSV instead of running the workloads.")
    ] = None,
    trace_dir: opt.TraceDir = None,
    strict: Annotated[
        bool, opt.in_panel(opt.BUDGET, "--strict", help="Fail on soft and improved too: every figure is as written.")
    ] = False,
    update: Annotated[
        list[str] | None,
        opt.in_panel(
            opt.BUDGET,
            metavar="NAME",
            help="Write what this budget measured as its limits where it is beyond them (with --strict, better too), "
            "in place, and check again. May be repeated.",
        ),
    ] = None,
    format: Annotated[
        Literal["table", "json", "junit", "markdown", "github"], opt.in_panel(opt.OUTPUT, help="What stdout gets.")
    ] = "table",
    quiet: opt.Quiet = False,
) -> None:
    """Run the workloads of a budget file, or read their results, and fail where a figure is beyond its limit.

    Counts are the same on every machine: a host-only budget guards a pull request on any runner, without torch.
    A missing row or figure, NaN, a run that took no step, or a workload that cannot run fails too (exit code 3).
    Results of another trace, schema or set of rows are not compared (exit code 4).
    """
    with reported():
        from nanoserve_cli.check.budget_file import load_budgets
        from nanoserve_cli.check.checking import Report, read_all, run_all
        from nanoserve_cli.check.judging import judge_all
        from nanoserve_cli.check.update import check_names
        from nanoserve_cli.check.words import Command

        if not budget.exists():
            raise ValueError(f"{budget}: no such file: `nanoserve init` writes a first one")
        file = load_budgets(budget, trace_dir)
        check_names(file, update or ())
        tell = partial(say, quiet=quiet)
        found = run_all(file.budgets, tell) if results is None else read_all(file.budgets, results)
        report = Report(budget, judge_all(file.budgets, found), strict)
        if update and _updated(file, found, report, update, tell):
            file = load_budgets(budget, trace_dir)
            report = Report(budget, judge_all(file.budgets, found), strict)
        try:
            _show(report, Command(budget, _flags(results, trace_dir, strict=strict)), format)
            sys.stdout.flush()
        except BrokenPipeError:
            drop_stdout()  # a reader that has gone makes nothing pass
        raise typer.Exit(report.exit_code)


def _flags(results: Path | None, trace_dir: Path | None, *, strict: bool) -> tuple[str, ...]:
    """The flags that this very check needs to be given again."""
    flags = [] if results is None else ["--results", str(results)]
    if trace_dir is not None and str(trace_dir) != os.environ.get("NANOSERVE_TRACES"):
        flags += ["--trace-dir", str(trace_dir)]
    return (*flags, "--strict") if strict else tuple(flags)


def _updated(
    file: BudgetFile, found: Mapping[str, Found], report: Report, names: list[str], tell: Callable[[str], None]
) -> bool:
    """Writes down what may be accepted of the budgets of those names, and tells each change. Whether there was one."""
    from nanoserve_cli.check.update import new_baselines, new_limits, write_limits

    edits = new_limits(file, report.verdicts, names, strict=report.strict)
    baselines = new_baselines(file, found, report.verdicts, names, strict=report.strict)
    for baseline in baselines:
        baseline.write()
        tell(f"{baseline.path}: {baseline.replaced} of {len(baseline.rows)} rows replaced")
    if edits:
        write_limits(file, edits)
    for edit in edits:
        tell(edit.render(file.path))
    if not edits and not baselines:
        tell(f"{', '.join(names)}: nothing to accept")
    return bool(edits or baselines)


def _show(report: Report, command: Command, format: str) -> None:
    """The report on stdout, in the face that was asked for."""
    from nanoserve_cli.check import documents, github, tables, words

    if format == "json":
        sys.stdout.write(json.dumps(documents.document(report, command), indent=2) + "\n")
    elif format == "junit":
        sys.stdout.write(documents.junit(report, command))
    elif format == "markdown":
        sys.stdout.write(tables.markdown(report, command))
    elif format == "github":
        for line in github.workflow_commands(report, command):
            sys.stdout.write(line + "\n")
        sys.stdout.write(tables.summary(report) + "\n")
        if summary := os.environ.get(github.SUMMARY_VARIABLE):
            try:
                github.append_summary(Path(summary), tables.markdown(report, command))
            except OSError as error:
                # The verdict stands whatever becomes of the page about it.
                warn(f"{github.SUMMARY_VARIABLE}={summary}: cannot be written: {error.strerror or error}")
    else:
        show(tables.table(report))
        told = tables.telling(report)
        for verdict in told[:TOLD]:
            out().print(words.line(verdict, command), style=tables.STYLES[verdict.status], markup=False, soft_wrap=True)
        if len(told) > TOLD:
            out().print(f"{len(told) - TOLD:,} more: --format json has them all", markup=False)
        out().print(tables.summary(report), markup=False, soft_wrap=True)
