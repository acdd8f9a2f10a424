"""`nanoserve init`: a first budget file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from nanoserve_cli import options as opt
from nanoserve_cli.check import DEFAULT_FILE
from nanoserve_cli.console import reported, say


def init(
    source: opt.Source = None,
    trace_dir: opt.TraceDir = None,
    limit: opt.Limit = None,
    max_batch: opt.MaxBatch = None,
    max_model_len: Annotated[
        int | None, opt.in_panel(opt.ENGINE, help="Tokens of a row.", show_default="8192", min=1)
    ] = None,
    rows_ladder: Annotated[str, opt.in_panel(opt.ENGINE, help="Row buckets: {row_ladders} or list:A,B,C.")] = "pow2",
    width_multiple: opt.WidthMultiple = None,
    out_file: opt.BudgetOut = None,
    quiet: opt.Quiet = False,
) -> None:
    """Write a first budget file for `nanoserve check`: what a policy costs on a trace today, as limits, commented.

    Without --from it is the lockstep run of `bench`.
    """
    with reported():
        from nanoserve_cli.check.starter import starter

        path = Path(DEFAULT_FILE) if out_file is None else out_file
        if path.exists():
            raise ValueError(f"{path} exists: choose another --out, or edit it; it was not changed")
        traffic: dict[str, Any] = {} if source is None else {"from": source}
        if limit is not None:
            if source is None:
                raise ValueError("--limit is of a recorded trace: add --from")
            traffic["limit"] = limit
        options = {
            **({"traffic": traffic} if traffic else {}),
            "max_batch": 8 if max_batch is None else max_batch,
            "max_model_len": 8192 if max_model_len is None else max_model_len,
            "rows_ladder": rows_ladder,
            "width_multiple": 128 if width_multiple is None else width_multiple,
            "host_only": True,
        }
        name = "lockstep-512" if source is None else Path(source).name.partition(".")[0]
        text = starter(options, name=name, path=path, trace_dir=trace_dir)
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
        typer.echo(path)
        say("next: nanoserve check" + ("" if str(path) == DEFAULT_FILE else f" {path}"), quiet=quiet)
