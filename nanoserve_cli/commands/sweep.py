"""`nanoserve sweep`: what every policy of a grid would have cost on some traffic."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nanoserve_cli import options as opt
from nanoserve_cli.console import EXIT_CHECK_FAILED, out, progress_bar, reported, say, show, warn

if TYPE_CHECKING:
    from nanoserve_cli.executors import Executor
    from nanoserve_cli.grid import Point, SweepSpec
    from nanoserve_cli.sweep import Outcome, Sweep


def sweep(
    context: typer.Context,
    spec: opt.SpecFile = None,
    width_multiple: opt.WidthMultiples = None,
    width_ladder: opt.WidthLadders = None,
    rows_ladder: opt.RowsLadders = None,
    max_batch: opt.MaxBatches = None,
    max_model_len: opt.MaxModelLens = None,
    link: opt.Link = False,
    rows: opt.Rows = None,
    prompt: opt.Prompt = None,
    steps: Annotated[int | None, opt.in_panel(opt.LOCKSTEP, help="Decode steps.", show_default="512", min=1)] = None,
    source: opt.Sources = None,
    trace_format: opt.TraceFormat = None,
    strict: opt.Strict = False,
    trace_dir: opt.TraceDir = None,
    limit: opt.Limit = None,
    max_len: opt.MaxLen = "reject",
    num_requests: opt.NumRequests = None,
    request_rate: opt.RequestRate = None,
    burstiness: opt.Burstiness = 1.0,
    prompt_len: opt.PromptLen = "256",
    output_len: opt.OutputLen = "64",
    step_time: opt.StepTime = None,
    budget_graphs: opt.BudgetGraphs = None,
    budget_mib: opt.BudgetMib = None,
    host_only: Annotated[
        bool, opt.in_panel(opt.MEASURE, "--host-only", help="Arithmetic only: no torch, no compiles, no MiB.")
    ] = False,
    measure_compiles: opt.MeasureCompiles = None,
    measure: opt.Measure = False,
    repeats: opt.Repeats = None,
    model: opt.SweepModel = None,
    runner: opt.SweepRunner = None,
    compile_backend: opt.SweepBackend = None,
    device: opt.SweepDevice = None,
    dtype: opt.SweepDtype = None,
    executor: opt.ExecutorName = "local",
    jobs: opt.Jobs = None,
    dry_run: opt.DryRun = False,
    out_file: opt.OutFile = None,
    resume: opt.Resume = False,
    overwrite: opt.Overwrite = False,
    format: opt.TableFormat = "table",
    seed: opt.SweepSeed = None,
    quiet: opt.Quiet = False,
) -> None:
    """Price every policy of a grid on the same traffic: shapes, padding, compiles and the capture bill.

    Lists are separated by commas, and the grid is their product. Without traffic it is the lockstep run of `bench`.
    """
    with reported():
        from nanoserve_cli.sweep import Sweep, price_grid

        given = opt.flags_given(context)
        _check_flags(given, measure=measure, host_only=host_only)
        grid = _spec(context)
        points = grid.points()
        if dry_run:
            _print_points(points)
            return
        _check_out(out_file, resume=resume, overwrite=overwrite)
        run_on = _executor(executor, jobs, grid)
        with progress_bar(len(points), quiet=quiet) as bar:
            priced = price_grid(grid, lambda stage, done, _: bar(stage, done))
        for traffic in {id(one.traffic): one.traffic for one in priced}.values():
            for note in traffic.notes():
                say(f"{traffic.label}: {note}", quiet=quiet)
        work = Sweep(grid, priced, host_only=host_only)
        for note in work.notes():
            say(note, quiet=quiet)
        outcomes = _run(work, run_on, out_file, resume=resume, quiet=quiet)
        _report(work, outcomes, format)
        if out_file is not None:
            say(f"{sum(o.row is not None for o in outcomes)} rows in {out_file}", quiet=quiet)
        if failed := [outcome for outcome in outcomes if outcome.error is not None]:
            warn(f"{len(failed)} of {len(outcomes)} points failed")
            raise typer.Exit(EXIT_CHECK_FAILED)


def _spec(context: typer.Context) -> SweepSpec:
    """The spec file's sweep with this command line's flags over it."""
    from nanoserve_cli.sweep_flags import with_flags
    from nanoserve_cli.sweep_spec import load_document, spec_of

    path: Path | None = context.params["spec"]
    document = with_flags({} if path is None else load_document(path), context.params, opt.flags_given(context))
    return spec_of(document, context.params["trace_dir"], "" if path is None else str(path))


def _check_flags(given: dict[str, str | None], *, measure: bool, host_only: bool) -> None:
    """ValueError for flags that would do nothing together."""
    for when, flags, why in (
        (
            host_only,
            ("--measure", "--measure-compiles", "--model", "--device", "--dtype"),
            "needs torch: drop --host-only",
        ),
        ("--from" in given, ("--num-requests",), "draws requests, --from replays recorded ones: give one of them"),
        ("--from" in given or "--num-requests" in given, ("--rows", "--prompt", "--steps"), "is of a lockstep run"),
        ("--resume" in given, ("--overwrite",), "beside --resume: reuse the file's rows, or start over"),
        ("--out" not in given, ("--resume", "--overwrite"), "needs --out FILE"),
        ("--executor" not in given and not measure, ("--jobs",), "runs measured points: add --measure"),
    ):
        if when and (clash := next((flag for flag in flags if flag in given), None)):
            raise ValueError(f"{clash} {why}")


def _check_out(path: Path | None, *, resume: bool, overwrite: bool) -> None:
    """That the results can go where they are asked for, said before anything runs."""
    from nanoserve_cli.csv_file import RecordsError, prepare_file

    if path is None:
        return
    prepare_file(path)
    if path.exists() and path.stat().st_size and not (resume or overwrite):
        raise RecordsError(f"{path}: exists: --resume reuses its rows, --overwrite starts over")
    if overwrite:
        path.unlink(missing_ok=True)


def _executor(name: str, jobs: int | None, spec: SweepSpec) -> Executor:
    from nanoserve_cli.executors import InProcess, Processes, RayCluster

    if name == "ray":
        return RayCluster(num_cpus=1, num_gpus=1 if spec.measurement.device.startswith("cuda") else 0)
    return InProcess() if jobs is None or jobs == 1 else Processes(jobs)


def _run(work: Sweep, executor: Executor, path: Path | None, *, resume: bool, quiet: bool) -> list[Outcome]:
    """Every outcome in the grid's order; told as they come: a bar on a terminal, a line a point elsewhere."""
    from nanoserve_cli.sweep import reusable_rows, write_as_finished

    reusable = reusable_rows(path) if resume and path is not None and path.exists() else {}
    outcomes = []
    with _told(len(work.priced), quiet=quiet) as tell:
        running = work.run(executor, lambda *_: None, warn, reusable)
        for outcome in running if path is None else write_as_finished(path, running, work):
            outcomes.append(outcome)
            tell(outcome)
    return sorted(outcomes, key=lambda outcome: outcome.index)


@contextmanager
def _told(total: int, *, quiet: bool) -> Iterator[Any]:
    from nanoserve_cli.console import err

    on_terminal = err().is_terminal
    done = 0
    with progress_bar(total, quiet=quiet) as bar:

        def tell(outcome: Outcome) -> None:
            nonlocal done
            done += 1
            if outcome.error is not None:
                warn(f"{outcome.point.label}: {outcome.error}")
            elif not on_terminal:
                how = "reused" if outcome.reused else "done"
                say(f"{done}/{total} {outcome.point.label}: {how}", quiet=quiet)
            bar("points", done)

        yield tell


def _report(work: Sweep, outcomes: list[Outcome], format: str) -> None:
    from nanoserve_cli import sweep_tables
    from nanoserve_cli.csv_file import csv_text

    budget = sweep_tables.Budget(work.spec.budget_graphs, work.spec.budget_mib)
    lines = [sweep_tables.Line(o.point, _complete(o.row)) for o in outcomes if o.row is not None]
    if format == "json":
        sys.stdout.write(json.dumps(sweep_tables.document(lines, budget), indent=2) + "\n")
    elif format == "csv":
        sys.stdout.write(csv_text([line.row for line in lines]))
    elif format == "markdown":
        sys.stdout.write(sweep_tables.markdown(lines, budget))
    else:
        for table in sweep_tables.tables(lines, budget):
            show(table)
        if work.spec.measure and lines:
            show(sweep_tables.times_table(lines))


def _complete(row: dict[str, Any]) -> dict[str, Any]:
    """A row with every column of the schema."""
    from nanoserve_cli.columns import RUN_COLUMNS

    return {name: row.get(name) for name in RUN_COLUMNS}


def _print_points(points: tuple[Point, ...]) -> None:
    console = out()
    for number, point in enumerate(points, 1):
        console.print(f"{number:>4} {point.label}", markup=False, soft_wrap=True)
    console.print(f"{len(points)} points, nothing run", markup=False)
