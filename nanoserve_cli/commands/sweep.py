"""`nanoserve sweep`: what every policy of a grid would have cost on some traffic."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from nanoserve_cli import options as opt
from nanoserve_cli.console import EXIT_CHECK_FAILED, err, out, progress_bar, reported, say, show, warn

if TYPE_CHECKING:
    from nanoserve_cli.executors import Executor
    from nanoserve_cli.grid import Point, SweepSpec
    from nanoserve_cli.pricer import Priced
    from nanoserve_cli.sweep import Outcome, Row, Sweep


def sweep(
    context: typer.Context,
    spec: opt.SpecFile = None,
    width_multiple: opt.WidthMultiples = None,
    width_ladder: opt.WidthLadders = None,
    rows_ladder: opt.RowsLadders = None,
    max_batch: opt.MaxBatches = None,
    max_model_len: opt.MaxModelLens = None,
    link: opt.Link = False,
    dry_run: opt.DryRun = False,
    rows: opt.Rows = None,
    prompt: opt.Prompt = None,
    steps: opt.LockstepSteps = None,
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
    host_only: opt.SweepHostOnly = False,
    measure_compiles: opt.MeasureCompiles = None,
    measure: opt.Measure = False,
    model: opt.SweepModel = None,
    device: opt.SweepDevice = None,
    dtype: opt.SweepDtype = None,
    repeats: opt.Repeats = None,
    runner: opt.SweepRunner = None,
    compile_backend: opt.SweepBackend = None,
    executor: opt.ExecutorName = "local",
    jobs: opt.Jobs = None,
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
        from nanoserve_cli.sweep import Sweep, reusable_rows

        grid = _spec(context)
        _check_flags(opt.flags_given(context), grid, executor)
        if dry_run:
            _print_points(grid.points)
            return
        _check_out(out_file, may_exist=resume or overwrite)
        priced = _priced(grid, quiet=quiet)
        reusable = reusable_rows(out_file) if resume and out_file is not None and out_file.exists() else {}
        work = Sweep(grid, priced, reusable)
        for note in work.notes():
            say(note, quiet=quiet)
        if work.kept:
            say(f"{len(work.kept)} of {len(priced)} rows reused from {out_file}", quiet=quiet)
        outcomes = _run(work, _executor(executor, jobs, work), out_file, anew=overwrite, quiet=quiet)
        finished = work.kept | {outcome.index: outcome.row for outcome in outcomes if outcome.row is not None}
        _report(work, finished, format)
        if out_file is not None:
            say(f"{len(finished)} rows in {out_file}", quiet=quiet)
        if failed := [outcome for outcome in outcomes if outcome.error is not None]:
            warn(f"{len(failed)} of {len(priced)} points failed")
            raise typer.Exit(EXIT_CHECK_FAILED)


def _spec(context: typer.Context) -> SweepSpec:
    """The spec file's sweep with this command line's flags over it."""
    from nanoserve_cli.sweep_flags import with_flags
    from nanoserve_cli.sweep_spec import load_document, spec_of

    path: Path | None = context.params["spec"]
    document = with_flags({} if path is None else load_document(path), context.params, opt.flags_given(context))
    return spec_of(document, context.params["trace_dir"], "" if path is None else str(path))


def _check_flags(given: dict[str, str | None], grid: SweepSpec, executor: str) -> None:
    """ValueError for flags, of those that no spec has, that would do nothing here."""
    for when, flags, why in (
        ("--resume" in given, ("--overwrite",), "beside --resume: reuse the file's rows, or start over"),
        ("--out" not in given, ("--resume", "--overwrite"), "needs --out FILE"),
        (not grid.measure, ("--executor", "--jobs"), "is of points that run: add --measure"),
        (executor == "ray", ("--jobs",), "is of --executor local: a Ray cluster has its own"),
        (not grid.has_recorded_traffic, ("--trace-dir",), "is of recorded traces: add --from KEY"),
    ):
        if when and (clash := next((flag for flag in flags if flag in given), None)):
            raise ValueError(f"{clash} {why}")


def _check_out(path: Path | None, *, may_exist: bool) -> None:
    """That the results can go where they are asked for, said before anything runs."""
    from nanoserve_cli.csv_file import RecordsError, prepare_file

    if path is None:
        return
    prepare_file(path)
    if not may_exist and path.exists() and path.stat().st_size:
        raise RecordsError(f"{path}: exists: --resume reuses its rows, --overwrite starts over")


def _priced(grid: SweepSpec, *, quiet: bool) -> list[Priced]:
    """Every point's price; what became of each traffic's rows is said."""
    from nanoserve_cli.pricer import price_grid

    with progress_bar(len(grid.points), quiet=quiet) as bar:
        priced = price_grid(grid, lambda done: bar("pricing", done))
    for traffic in {id(one.traffic): one.traffic for one in priced}.values():
        for note in traffic.notes():
            say(f"{traffic.label}: {note}", quiet=quiet)
    return priced


def _executor(name: str, jobs: int | None, work: Sweep) -> Executor:
    from nanoserve_cli.executors import InProcess, Processes, RayCluster

    if name == "ray":
        on_cuda = work.engine is not None and work.engine.measurement.device.startswith("cuda")
        return RayCluster(num_cpus=1, num_gpus=1 if on_cuda else 0)
    return InProcess() if jobs is None or jobs == 1 else Processes(jobs)


def _run(work: Sweep, executor: Executor, path: Path | None, *, anew: bool, quiet: bool) -> list[Outcome]:
    """The outcome of every point that is to do; told as they come: a bar on a terminal, a line a point elsewhere."""
    from nanoserve_cli.sweep import write_as_finished

    with progress_bar(len(work.to_compile), quiet=quiet) as bar:
        work.compile(lambda done: bar("compiling", done))
    outcomes = []
    with _told(len(work.todo), quiet=quiet) as tell:
        running = work.run(executor, warn)
        for outcome in running if path is None else write_as_finished(path, running, work, anew=anew):
            outcomes.append(outcome)
            tell(outcome)
    return outcomes


@contextmanager
def _told(total: int, *, quiet: bool) -> Iterator[Callable[[Outcome], None]]:
    on_terminal = err().is_terminal
    done = 0
    with progress_bar(total, quiet=quiet) as bar:
        bar("points", 0)

        def tell(outcome: Outcome) -> None:
            nonlocal done
            done += 1
            if outcome.error is not None:
                warn(f"{outcome.point.label}: {outcome.error}")
            elif not on_terminal:
                say(f"{done}/{total} {outcome.point.label}", quiet=quiet)
            bar("points", done)

        yield tell


def _report(work: Sweep, rows: dict[int, Row], format: str) -> None:
    """What stdout gets: the rows in the grid's order."""
    from nanoserve_cli import sweep_tables
    from nanoserve_cli.csv_file import csv_text

    budget = sweep_tables.Budget(work.spec.budget_graphs, work.spec.budget_mib)
    lines = [sweep_tables.Line(work.priced[index].point, rows[index]) for index in sorted(rows)]
    sheets = sweep_tables.sheets(lines, budget, times=work.spec.measure)
    if format == "json":
        sys.stdout.write(json.dumps(sweep_tables.document(lines, budget), indent=2) + "\n")
    elif format == "csv":
        sys.stdout.write(csv_text([line.row for line in lines]))
    elif format == "markdown":
        sys.stdout.write("\n".join(sheet.markdown() for sheet in sheets))
    else:
        for sheet in sheets:
            show(sheet.table())


def _print_points(points: tuple[Point, ...]) -> None:
    console = out()
    for number, point in enumerate(points, 1):
        console.print(f"{number:>4} {point.label}", markup=False, soft_wrap=True)
    console.print(f"{len(points)} points, nothing run", markup=False)
