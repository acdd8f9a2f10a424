"""`nanoserve tune`: the best capture list for recorded traffic, under a budget, and how far to trust it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryFile
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nanoserve_cli import options as opt
from nanoserve_cli.console import out, reported, say, show, warn

if TYPE_CHECKING:
    from nanoserve.step_time import StepTime
    from nanoserve_cli.emit import Emission
    from nanoserve_cli.tuning.run import Tuned
    from nanoserve_cli.tuning.verify import Proof

FIT, TRUST, ENGINE, PROOF = "Fit", "How far it can be trusted", "Into an engine", "Proof"


def tune(
    context: typer.Context,
    source: Annotated[
        str | None,
        opt.in_panel(opt.TRAFFIC, "--from", help="A request trace, a steps.csv or a server's log: file or key."),
    ] = None,
    format: Annotated[
        str | None, opt.in_panel(opt.TRAFFIC, help="Read it as this, not as its content says: {observed_formats}.")
    ] = None,
    strict: opt.Strict = False,
    trace_dir: opt.TraceDir = None,
    limit: opt.Limit = None,
    max_len: opt.MaxLen = "reject",
    num_requests: opt.NumRequests = None,
    request_rate: opt.RequestRate = None,
    burstiness: opt.Burstiness = 1.0,
    prompt_len: opt.PromptLen = "256",
    output_len: opt.OutputLen = "64",
    max_batch: Annotated[
        int | None,
        opt.in_panel(FIT, help="Most rows of a step.", show_default="the server's own in its log, else 256", min=1),
    ] = None,
    max_model_len: Annotated[int, opt.in_panel(FIT, help="Tokens of a row.", min=1)] = 8192,
    budget_graphs: Annotated[
        int | None,
        opt.in_panel(
            FIT,
            help="Graphs the list may have.",
            show_default="36; as many as the server's own list",
            min=1,
            max=10_000,
        ),
    ] = None,
    budget_mib: Annotated[
        float | None, opt.in_panel(FIT, help="The same in MiB beside the pool, at --graph-mib each.", min=0)
    ] = None,
    graph_mib: Annotated[
        float, opt.in_panel(FIT, help="MiB of one more graph: TensorRT-LLM publishes 10 for a large model.")
    ] = 10.0,
    budget_seconds: Annotated[
        float | None, opt.in_panel(FIT, help="The same in seconds of capturing, at --graph-seconds each.", min=0)
    ] = None,
    graph_seconds: Annotated[
        float, opt.in_panel(FIT, help="Seconds of one capture: TensorRT-LLM publishes 0.5 for a large model.")
    ] = 0.5,
    target: Annotated[
        str | None,
        opt.in_panel(FIT, help="Not a budget but the fewest graphs that have waste:5% or match:LADDER."),
    ] = None,
    objective: Annotated[
        Literal["rows", "cells", "time"] | None,
        opt.in_panel(FIT, help="What to save.", show_default="cells; rows where widths are unknown or not taken"),
    ] = None,
    step_times: Annotated[
        Path | None, opt.in_panel(FIT, help="step_times.csv of a bench: the cost of --objective time.")
    ] = None,
    row_granularity: Annotated[int, opt.in_panel(FIT, help="Row buckets are multiples of this.", min=1)] = 1,
    width_granularity: Annotated[int, opt.in_panel(FIT, help="Width buckets are multiples of this.", min=1)] = 128,
    keep_rows: Annotated[str | None, opt.in_panel(FIT, help="Row buckets that must be in the list: 1,2,4.")] = None,
    max_pad: Annotated[
        float | None,
        opt.in_panel(FIT, help="Most padding of any batch, seen or not, as a share of its graph's rows: 0.5."),
    ] = None,
    holdout: Annotated[
        float | None,
        opt.in_panel(
            TRUST, help="The last share of the time judges and is not fitted.", show_default="0.3 where there is time"
        ),
    ] = None,
    loads: Annotated[str, opt.in_panel(TRUST, help="Arrival rates to simulate, as factors, a list: 0.5,1,2.")] = "1",
    robust: Annotated[
        Literal["mean", "minimax"],
        opt.in_panel(TRUST, help="One list for all loads: the least mean waste, or the least worst regret."),
    ] = "mean",
    prior: Annotated[
        float | None,
        opt.in_panel(
            TRUST,
            help="Even weight on all sizes, seen or not, as a share of the traffic's.",
            show_default="chosen on the end of the fit part",
        ),
    ] = None,
    step_time: opt.StepTime = None,
    emit: Annotated[str | None, opt.in_panel(ENGINE, help="Print what this engine takes: {engines}.")] = None,
    cudagraph_mode: Annotated[str, opt.in_panel(ENGINE, help="vLLM's.")] = "FULL_AND_PIECEWISE",
    spec_tokens: Annotated[int, opt.in_panel(ENGINE, help="Draft tokens a row.", min=0)] = 0,
    tensor_parallel: Annotated[int, opt.in_panel(ENGINE, help="GPUs.", min=1)] = 1,
    max_num_batched_tokens: Annotated[int | None, opt.in_panel(ENGINE, help="Most tokens of one step.", min=1)] = None,
    kv_block: Annotated[int, opt.in_panel(ENGINE, help="Tokens of the engine's KV block (gaudi).", min=1)] = 128,
    verify: Annotated[
        bool, opt.in_panel(PROOF, "--verify", help="Run the fitted list and what it replaces on steps held out.")
    ] = False,
    verify_steps: Annotated[int, opt.in_panel(PROOF, help="Decode steps to run, each six times.", min=4)] = 80,
    model: Annotated[
        str, opt.in_panel(PROOF, help="tiny, small, smollm2, a checkpoint directory or a GGUF file.")
    ] = "tiny",
    device: Annotated[str, opt.in_panel(PROOF, help="auto is CUDA where there is one, else cpu.")] = "auto",
    out_file: Annotated[
        Path | None, opt.in_panel(opt.OUTPUT, "--out", help="Write every score as a results CSV.")
    ] = None,
    policy_out: Annotated[
        Path | None, opt.in_panel(opt.OUTPUT, help="Write the list as a policy for `bench --policy`.")
    ] = None,
    seed: opt.Seed = 0,
    json_: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Fit the best capture list to your traffic, score it on traffic it has not seen, and print it for your engine.

    --from takes a request trace, a steps.csv, or a server's log: vLLM's graph tables, iteration and engine lines,
    SGLang's decode lines, lifecycle records, a CSV or Prometheus dump of running requests.
    """
    with reported():
        from nanoserve_cli.csv_file import prepare_file
        from nanoserve_cli.emit import EmitTarget
        from nanoserve_cli.emit import emit as emitted
        from nanoserve_cli.tuning.flags import settings_of
        from nanoserve_cli.tuning.run import tune as tuned_for

        settings = settings_of(context.params, opt.flags_given(context))
        if out_file is not None:
            prepare_file(out_file)
        if policy_out is not None:
            _check_target(policy_out)
        if verify:
            from nanoserve.extras import import_engine

            import_engine("nanoserve.build", "--verify")
        tuned = tuned_for(settings, progress=lambda message: say(message, quiet=quiet or not sys.stderr.isatty()))
        report = tuned.report
        emission = None
        if emit is not None:
            emission = emitted(
                emit,
                EmitTarget(
                    report.decision.recommended.policy,
                    report.evidence.max_batch_size,
                    report.evidence.max_model_len,
                    cudagraph_mode=cudagraph_mode,
                    spec_tokens=spec_tokens,
                    tensor_parallel=tensor_parallel,
                    max_num_batched_tokens=max_num_batched_tokens,
                    block_size=kv_block,
                ),
            )
        proof = _proof(tuned, settings.clock, model, device, seed, verify_steps) if verify else None
        _write(tuned, out_file, policy_out, seed, settings.clock.render(), quiet=quiet)
        if json_:
            from nanoserve_cli.tuning.document import document

            sys.stdout.write(json.dumps(document(tuned, emission, proof), indent=2) + "\n")
        else:
            _render(tuned, emission, proof, quiet=quiet)


def _proof(tuned: Tuned, grid: StepTime, model: str, device: str, seed: int, steps: int) -> Proof:
    """On the first load; of the best fitted list even where it is not recommended."""
    from nanoserve_cli.compare import ClockSettings
    from nanoserve_cli.model_choice import choose_model
    from nanoserve_cli.tuning.verify import verify

    choice = choose_model(model, device=device, dtype="auto", seed=seed)
    assert choice.decoder is not None
    decision, load = tuned.report.decision, tuned.report.loads[0].load
    clock = ClockSettings(step_ns=grid.ns(0, 0), seed=seed)
    by_rows = tuned.report.objective.name == "rows"
    return verify(decision.best, decision.baseline, load, choice.decoder, clock, steps=steps, by_rows=by_rows)


def _render(tuned: Tuned, emission: Emission | None, proof: Proof | None, *, quiet: bool) -> None:
    from nanoserve_cli.tuning import tables

    report = tuned.report
    if eager := tables.eager_line(report.evidence):
        _line(eager)
    for note in report.evidence.notes:
        say(f"{report.evidence.label}: {note}", quiet=quiet)
    for one in report.loads:
        show(tables.load_table(one, report))
    for text in tables.legend(report):
        _line(text)
    sys.stdout.write("\n")
    if report.shared:
        show(tables.shared_table(report))
    if tuned.settled:
        show(tables.settled_table(tuned.settled, report))
    if tuned.step_time_fit is not None:
        for text in (*tables.step_time_lines(tuned.step_time_fit), ""):
            _line(text)
    if proof is not None:
        show(tables.proof_table(proof))
    for text in tables.recommendation(report):
        _line(text)
    for caution in tuned.cautions:
        warn(caution)
    if emission is not None:
        _emit(emission)


def _line(text: str) -> None:
    """A line of the report, broken between words where the terminal or the pipe ends, and indented further there."""
    indent = " " * (len(text) - len(text.lstrip()) + 2)
    sys.stdout.write("\n".join(wrap(text, out().width, subsequent_indent=indent, break_on_hyphens=False)) + "\n")


def _emit(emission: Emission) -> None:
    for title, text in emission.blocks:
        sys.stdout.write(f"\n# {emission.engine} ({emission.checked_against}): {title}\n{text.rstrip()}\n")
    for warning in emission.warnings:
        warn(f"{emission.engine}: {warning}")


def _check_target(path: Path) -> None:
    """That a policy can be written there: said before the fit and not after it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ValueError(f"--policy-out {path}: cannot be written: {error.strerror or error}") from None


def _write(
    tuned: Tuned, out_file: Path | None, policy_out: Path | None, seed: int, step_time: str, *, quiet: bool
) -> None:
    from nanoserve_cli.csv_file import write_atomically, write_rows
    from nanoserve_cli.policy_file import policy_text
    from nanoserve_cli.tuning.rows import rows

    if out_file is not None:
        write_rows(out_file, list(rows(tuned.report, step_time=step_time, seed=seed)))
        say(f"results in {out_file}", quiet=quiet)
    if policy_out is not None:
        write_atomically(policy_out, policy_text(tuned.report.decision.recommended.policy))
        say(f"policy in {policy_out}: nanoserve bench --policy {policy_out}", quiet=quiet)
