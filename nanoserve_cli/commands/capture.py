"""`nanoserve capture`: what a capture list costs in milliseconds and MiB, predicted first and then measured."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nanoserve_cli import options as opt
from nanoserve_cli.console import progress_bar, reported, say, show

if TYPE_CHECKING:
    from nanoserve_cli.capture import Bill, LazyBill

MAX_MODEL_LEN = 8192


def capture(
    width_multiple: Annotated[
        str, typer.Option(help="Width multiples, a list: a bill each.", rich_help_panel=opt.ENGINE)
    ] = "2048",
    max_batch: opt.CaptureMaxBatch = None,
    max_model_len: opt.CaptureModelLen = MAX_MODEL_LEN,
    policy: opt.PolicyFile = None,
    model: opt.Model = "tiny",
    graph_backend: opt.GraphBackend = "auto",
    device: opt.Device = "auto",
    dtype: opt.Dtype = "auto",
    block_size: opt.BlockSize = 16,
    num_blocks: opt.NumBlocks = None,
    graph_limit: Annotated[
        int | None,
        typer.Option(
            min=1, help="Keep the widest set of at most N graphs; wider steps run eager.", rich_help_panel="Budget"
        ),
    ] = None,
    mib_limit: Annotated[
        float | None,
        typer.Option(min=0, help="The same in MiB of the graphs' pool.", rich_help_panel="Budget"),
    ] = None,
    max_mib: Annotated[
        float, typer.Option(min=0, help="Capture nothing above this without --yes.", rich_help_panel="Budget")
    ] = 4096.0,
    max_seconds: Annotated[
        float, typer.Option(min=0, help="The same, of the predicted seconds.", rich_help_panel="Budget")
    ] = 60.0,
    yes: Annotated[bool, typer.Option("--yes", help="Capture whatever it costs.", rich_help_panel="Budget")] = False,
    source: opt.Source = None,
    limit: opt.Limit = None,
    num_requests: opt.NumRequests = None,
    request_rate: opt.RequestRate = None,
    prompt_len: opt.PromptLen = "256",
    output_len: opt.OutputLen = "64",
    seed: opt.Seed = 0,
    json_: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Price a capture list: MiB predicted for every shape, seconds for all, and the captures that fit, measured.

    With traffic, the other way is priced beside it: graphs made when a step first needs them, and who waits.
    """
    with reported():
        from nanoserve.memory import check_tables_fit
        from nanoserve_cli.capture import bill_for, price_lazily
        from nanoserve_cli.model_choice import choose_model
        from nanoserve_cli.policy_file import chosen_policy
        from nanoserve_cli.traffic import TrafficOptions, planned_replay

        has_traffic = source is not None or num_requests is not None
        multiples = opt.parse_list(width_multiple, "--width-multiple")
        choice = choose_model(model, device=device, dtype=dtype, seed=seed)
        assert choice.decoder is not None
        bills: list[tuple[Bill, LazyBill | None]] = []
        for multiple in multiples[:1] if policy is not None else multiples:
            chosen = chosen_policy(
                policy,
                max_batch_size=256 if max_batch is None and policy is None else max_batch,
                max_model_len=max_model_len if policy is None else None,
                width_multiple=multiple if policy is None else None,
                default_max_model_len=MAX_MODEL_LEN,
            )
            check_tables_fit(chosen.max_batch_size, chosen.max_model_len, num_blocks or 0)
            with progress_bar(chosen.count, quiet=quiet) as progress:
                bill = bill_for(
                    choice.decoder,
                    chosen,
                    block_size=block_size,
                    num_blocks=num_blocks,
                    graph_backend=graph_backend,
                    graph_limit=graph_limit,
                    pool_limit=None if mib_limit is None else mib_limit * 2**20,
                    byte_limit=None if yes else max_mib * 2**20,
                    second_limit=None if yes else max_seconds,
                    progress=progress,
                )
            lazy = None
            if has_traffic:
                traffic = TrafficOptions(
                    source=source,
                    limit=limit,
                    num_requests=num_requests,
                    request_rate=request_rate,
                    prompt_len=prompt_len,
                    output_len=output_len,
                    seed=seed,
                )
                lazy = price_lazily(planned_replay(traffic, chosen, block_size), bill.policy)
            bills.append((bill, lazy))
        if json_:
            sys.stdout.write(json.dumps([_document(bill, lazy) for bill, lazy in bills], indent=2) + "\n")
            return
        from nanoserve_cli import bill_tables

        for table in bill_tables.tables([bill for bill, _ in bills]):
            show(table)
        for bill, lazy in bills:
            for line in bill_tables.remarks(bill, lazy):
                say(line, quiet=quiet)


def _document(bill: Bill, lazy: LazyBill | None) -> dict[str, Any]:
    return {
        "policy": bill.policy.render(),
        "shapes": bill.policy.count,
        "bound": bill.bound,
        "predicted_bytes": bill.predicted_bytes,
        "sum_bytes": bill.sum_bytes,
        "predicted_seconds": list(bill.seconds),
        "held_bytes": bill.held_bytes,
        "process_bytes": bill.process_bytes,
        "not_captured": bill.not_captured,
        "persistent_bytes": asdict(bill.persistent) | {"inputs_if_one_set_per_shape": bill.inputs_per_shape},
        "num_blocks": bill.num_blocks,
        "graphs": [
            {
                "rows": price.shape.rows,
                "width": price.shape.width,
                "predicted_bytes": price.live_bytes,
                "unpriced": list(price.unpriced),
                "capture_ms": measured and measured.capture_seconds * 1e3,
                "warm_up_ms": measured and measured.warm_up_seconds * 1e3,
            }
            for price in bill.prices
            for measured in [bill.measured.get(price.shape)]
        ],
        "lazy": lazy and asdict(lazy),
    }
