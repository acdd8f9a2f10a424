"""`nanoserve bench`: what a closed decode shape costs on some traffic, and what it buys."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from nanoserve_cli import options as opt
from nanoserve_cli.console import out, progress_bar, reported, say, show, warn
from nanoserve_cli.units import NS_PER_MS

if TYPE_CHECKING:
    from rich.table import Table

    from nanoserve_cli.bench import BenchRun
    from nanoserve_cli.model_choice import ModelChoice
    from nanoserve_cli.policy_file import Policy
    from nanoserve_cli.traffic import Traffic

TRAFFIC_MAX_MODEL_LEN = 8192


def bench(
    context: typer.Context,
    rows: opt.Rows = None,
    steps: opt.StepsList = None,
    prompt: opt.Prompt = None,
    source: opt.Source = None,
    format: opt.Format = None,
    strict: opt.Strict = False,
    trace_dir: opt.TraceDir = None,
    limit: opt.Limit = None,
    max_len: opt.MaxLen = "reject",
    num_requests: opt.NumRequests = None,
    request_rate: opt.RequestRate = None,
    burstiness: opt.Burstiness = 1.0,
    prompt_len: opt.PromptLen = "256",
    output_len: opt.OutputLen = "64",
    max_batch: opt.MaxBatch = None,
    max_model_len: opt.MaxModelLen = None,
    width_multiple: opt.WidthMultiple = None,
    policy: opt.PolicyFile = None,
    model: opt.Model = "tiny",
    runner: opt.Runner = "eager",
    compile_backend: opt.CompileBackend = "count",
    dynamic: opt.Dynamic = "off",
    graph_backend: opt.GraphBackend = "auto",
    graph_body: opt.GraphBody = "eager",
    allow_partial: opt.AllowPartial = False,
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    block_size: opt.BlockSize = 16,
    num_blocks: opt.NumBlocks = None,
    host_only: opt.HostOnly = False,
    check_inert: opt.CheckInert = False,
    audit: opt.Audit = False,
    clock: opt.Clock = "virtual",
    step_ms: opt.StepMs = 25.0,
    speedup: opt.Speedup = 1.0,
    goodput: opt.Goodput = None,
    seed: opt.Seed = 0,
    json_: opt.Json = False,
    out_dir: opt.OutDir = None,
    quiet: opt.Quiet = False,
) -> None:
    """Run traffic through the engine twice, open and bucketed: what the padding costs and what it buys.

    Without traffic it is a lockstep run of a few equal requests. With --from or --num-requests it is that traffic, on a
    virtual clock whose counts are the same on every machine, or on a real one with latencies.
    """
    with reported():
        from nanoserve.decode import RunnerOptions
        from nanoserve_cli.bench import bench_lockstep, bench_traffic
        from nanoserve_cli.compare import ClockSettings, EngineSettings
        from nanoserve_cli.csv_file import prepare_folder
        from nanoserve_cli.latency import parse_goodput
        from nanoserve_cli.model_choice import choose_model
        from nanoserve_cli.policy_file import chosen_policy
        from nanoserve_cli.traffic import TrafficOptions, load_traffic

        has_traffic = source is not None or num_requests is not None
        check_flags(context, has_traffic=has_traffic, host_only=host_only, clock=clock, runner=runner)
        if goodput is not None and not goodput.strip():
            raise ValueError("--goodput names no limit: write 'ttft:500' or the like")
        goodput_ms = parse_goodput((goodput or "").split())
        clocking = ClockSettings(clock, opt.milliseconds(step_ms, "--step-ms"), speedup, seed)
        if out_dir is not None:
            prepare_folder(out_dir)
        traffic_options = TrafficOptions.of(context.params)
        policy_for = partial(
            chosen_policy,
            policy,
            max_batch_size=max_batch,
            max_model_len=max_model_len,
            width_multiple=width_multiple,
        )
        default_policy = policy_for(default_max_model_len=TRAFFIC_MAX_MODEL_LEN)
        traffic = load_traffic(traffic_options, default_policy.max_model_len) if has_traffic else None
        try:
            choice = choose_model(None if host_only else model, device=device, dtype=dtype, seed=seed)
        except ImportError as error:
            raise ImportError(f"{error}, or add --host-only") from error
        compiles = runner == "compiled" or graph_body == "compiled"
        backend = usable_backend(compile_backend, choice) if compiles else compile_backend
        engine = EngineSettings(
            policy=default_policy,
            decoder=choice.decoder,
            runner=RunnerOptions(runner, backend, dynamic, graph_backend, graph_body),
            block_size=block_size,
            num_blocks=num_blocks,
            check_inert=check_inert,
            allow_partial=allow_partial,
            audit=audit,
        )
        lockstep = partial(
            bench_lockstep,
            opt.parse_list("8,64,128,512" if steps is None else steps, "--steps"),
            rows=3 if rows is None else rows,
            prompt_len=16 if prompt is None else prompt,
            policy_for=lambda needed: policy_for(default_max_model_len=needed),
        )
        replayed = None if traffic is None else partial(bench_traffic, traffic, goodput_ms=goodput_ms)
        _announce(traffic, default_policy, quiet=quiet)
        with progress_bar(None if traffic is None else len(traffic.workload), quiet=quiet) as progress:
            if replayed is None:
                runs = lockstep(engine=engine, clock=clocking, progress=progress)
            else:
                runs = [replayed(engine=engine, clock=clocking, progress=progress)]
        ladders = (
            {} if policy is not None else {"rows_ladder": "pow2", "width_ladder": f"multiple:{width_multiple or 128}"}
        )
        document = runs_document(runs, choice, engine, clocking, ladders)
        _report(runs, document, json_=json_, out_dir=out_dir, quiet=quiet)


def _announce(traffic: Traffic | None, policy: Policy, *, quiet: bool) -> None:
    """What is known before anything runs: what became of the trace's rows, and what a capture list lacks."""
    from nanoserve.buckets import CaptureList
    from nanoserve_cli.tables import coverage

    if isinstance(policy, CaptureList):
        say(coverage(policy), quiet=quiet)
    if traffic is not None:
        for note in traffic.notes():
            say(f"{traffic.label}: {note}", quiet=quiet)


def _report(runs: list[BenchRun], document: dict[str, Any], *, json_: bool, out_dir: Path | None, quiet: bool) -> None:
    """Warnings on stderr, the result on stdout, the files where they were asked for."""
    for run in runs:
        cost = run.comparison.cost
        if cost.off_list_steps:
            counts = f"{cost.off_list_steps:,} of {cost.steps:,}"
            warn(f"{run.label}: {counts} steps were off the capture list and ran eager, unpadded")
    if json_:
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        _render(runs)
    if out_dir is not None:
        _write(out_dir, document, runs)
        say(f"results in {out_dir}", quiet=quiet)


def check_flags(context: typer.Context, *, has_traffic: bool, host_only: bool, clock: str, runner: str) -> None:
    """ValueError for flags that would do nothing together: better than a run that ignores one."""
    given = opt.flags_given(context)
    add_traffic = "add --from FILE or --num-requests N"
    for flag, panel in given.items():
        if panel == (opt.LOCKSTEP if has_traffic else opt.TRAFFIC):
            where = "a lockstep run, not of traffic" if has_traffic else f"traffic: {add_traffic}"
            raise ValueError(f"{flag} is a flag of {where}")
    if "--from" in given and "--num-requests" in given:
        raise ValueError("--from replays what was recorded, --num-requests draws: give one of them")
    if clock == "real" and not has_traffic:
        raise ValueError(f"--clock real needs arrivals: {add_traffic}")
    if clock == "real" and host_only:
        raise ValueError("--clock real needs a model that runs: drop --host-only")
    for when, flags, why in (
        ("--from" in given, _DRAWN, "is of drawn requests, --from replays recorded ones"),
        ("--num-requests" in given, _RECORDED, "is of a recorded trace, --num-requests draws one"),
        ("--request-rate" not in given, ("--burstiness",), "shapes drawn arrivals: add --request-rate"),
        (clock == "virtual", ("--speedup",), "needs --clock real: the virtual clock has no speed"),
        (clock == "virtual", ("--goodput",), "needs --clock real: the virtual clock has no latencies"),
        (clock == "real", ("--step-ms",), "is the grid of --clock virtual"),
        (host_only, _MODEL, "needs a model that runs: drop --host-only"),
        (runner == "eager", ("--compile-backend",), "is of --runner compiled"),
        (runner != "graphs", ("--graph-backend", "--graph-body", "--allow-partial"), "is of --runner graphs"),
    ):
        if when and (clash := next((flag for flag in flags if flag in given), None)):
            raise ValueError(f"{clash} {why}")


_DRAWN = ("--prompt-len", "--output-len")
_RECORDED = ("--format", "--strict", "--trace-dir")
_MODEL = ("--model", "--runner", "--compile-backend", "--dynamic", "--device", "--dtype", "--check-inert", "--audit")


def usable_backend(backend: str, choice: ModelChoice) -> str:
    """`backend`, or the counting one, said once, where there is nothing to compile with."""
    if choice.device is None:
        return backend
    import torch

    from nanoserve.decode import CompilerMissing
    from nanoserve.decode.compiled import check_compiler

    try:
        check_compiler(backend, torch.device(choice.device))
    except CompilerMissing as error:
        warn(f"{error}; going on with --compile-backend count")
        return "count"
    return backend


def runs_document(
    runs: list[BenchRun], choice: ModelChoice, engine: Any, clock: Any, ladders: dict[str, str]
) -> dict[str, Any]:
    """The whole bench as `run.json` has it; `ladders` are the rules of its policy where flags gave it."""
    from nanoserve_cli.provenance import provenance

    trace = None if runs[0].traffic is None else runs[0].traffic.trace
    return {
        **provenance(
            seed=clock.seed,
            device=choice.device,
            trace_key=None if trace is None else trace.key,
            trace_sha256=None if trace is None else trace.sha256,
        ),
        "settings": {
            "model": choice.name,
            "model_source": choice.source,
            "model_sha256": choice.sha256,
            "dtype": choice.dtype,
            **({"runner": "host-only"} if choice.decoder is None else asdict(engine.runner)),
            "block_size": engine.block_size,
            "num_blocks": engine.num_blocks,
            **ladders,
            "clock": clock.kind,
            "step_time": f"{clock.step_ns / NS_PER_MS:g}" if clock.kind == "virtual" else None,
            "speedup": clock.speedup if clock.kind == "real" else None,
        },
        "runs": [run.document() for run in runs],
    }


def _render(runs: list[BenchRun]) -> None:
    from nanoserve_cli import tables

    console = out()
    for table in _tables(runs):
        show(table)
    for line in dict.fromkeys(line for run in runs for line in tables.remarks(run)):
        console.print(line, markup=False)


def _tables(runs: list[BenchRun]) -> Iterator[Table]:
    from nanoserve_cli import tables

    rows = [run.row() for run in runs]
    measured = runs[0].comparison.partings is not None
    if runs[0].traffic is None:
        yield tables.counts_table(rows)
        yield tables.planning_table([(row, r.planning) for row, r in zip(rows, runs, strict=True) if r.planning])
        if measured:
            has_graphs = runs[0].comparison.bucketed.graphs is not None
            yield tables.captures_table(rows) if has_graphs else tables.compiles_table(rows)
            yield tables.times_table(rows)
        return
    yield tables.traffic_table(rows[0], runs[0].traffic.fitted.rejected)
    if rows[0]["steps"]:
        yield tables.traffic_times_table(rows[0])
    yield tables.fidelity_table(runs[0].fidelity())
    if latency := runs[0].latency():
        yield tables.latency_table(latency)
        yield tables.throughput_table(runs[0].throughput())


def _write(folder: Path, document: dict[str, Any], runs: list[BenchRun]) -> None:
    from nanoserve_cli.csv_file import append_row
    from nanoserve_cli.records import write_run

    for run, entry in zip(runs, document["runs"], strict=True):
        own = folder if len(runs) == 1 else folder / run.label
        write_run(own, document | {"runs": [entry]}, run.comparison)
        append_row(folder / "runs.csv", document | document["settings"] | entry)
