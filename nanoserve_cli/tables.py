"""Comparisons as tables: counts apart from times, every share with what it is a share of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from nanoserve.buckets import CaptureList
from nanoserve_cli.latency import METRICS
from nanoserve_cli.stats import Percentiles

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table

    from nanoserve_cli.assets import Asset
    from nanoserve_cli.bench import BenchRun
    from nanoserve_cli.planning import PlanTimes

Row = dict[str, Any]


def simple_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str | None = None
) -> Table:
    """A table that no width of terminal or pipe breaks inside a figure: headers carry their own line breaks."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        caption=caption,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_header=any(columns),
    )
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def counts_table(rows: Sequence[Row]) -> Table:
    """Shapes and cells of lockstep runs, a line each."""
    return simple_table(
        "Shapes and cells (counts: the same on every machine)",
        (
            "steps",
            "open\nshapes",
            "bucketed\nshapes",
            "shapes\navailable",
            "waste",
            "total\nwaste",
            "open\ncells",
            "padded\ncells",
        ),
        [
            (
                f"{row['steps']:,}",
                f"{row['open_shapes']:,}",
                f"{row['shapes_used']:,}",
                f"{row['shapes_available']:,}",
                f"{row['waste']:.1%}",
                f"{row['total_waste']:.1%}",
                f"{row['open_cells']:,}",
                f"{row['padded_cells']:,}",
            )
            for row in rows
        ],
        caption="waste = 1 - open / padded cells; total waste = 1 - live / padded cells",
    )


def compiles_table(rows: Sequence[Row]) -> Table:
    """What dynamo made of the shapes of lockstep runs."""
    return simple_table(
        "Compiles (dynamo's own count)",
        ("steps", "open", "bucketed", "bucketed,\nwarm", "torch.compile as it is,\non the open run"),
        [
            (
                f"{row['steps']:,}",
                _compiles(row["compiles_open"], row["abandoned_open"]),
                _compiles(row["compiles_bucketed"], 0),
                _compiles(row["recompiles_bucketed"], 0),
                row["falls_back_open"] or "keeps every shape",
            )
            for row in rows
        ],
    )


def captures_table(rows: Sequence[Row]) -> Table:
    """What lockstep runs captured and replayed."""
    return simple_table(
        "Graphs (counts)",
        ("steps", "open\ncaptures", "bucketed\ncaptures", "after\nwarm-up", "replay\nshare", "off the\nlist"),
        [
            (
                f"{row['steps']:,}",
                f"{row['captures_open']:,}",
                f"{row['captures_bucketed']:,}",
                f"{row['captures_after_warm_up']:,}",
                f"{row['replay_share']:.0%}",
                f"{row['off_list_steps']:,}",
            )
            for row in rows
        ],
        caption="the open run captures a graph a step and never replays it again: its step times below are captures",
    )


def planning_table(rows: Sequence[tuple[Row, PlanTimes]]) -> Table:
    """Host time to plan lockstep runs with nothing behind them."""
    return simple_table(
        "Planning on the host (this machine): ms a run, its cache made too",
        (
            "steps",
            "open\nmedian",
            "bucketed\nmedian",
            "open\nbest of 3",
            "bucketed\nbest of 3",
            "open\nus/step",
            "bucketed\nus/step",
        ),
        [
            (
                f"{row['steps']:,}",
                *(f"{ms:.2f}" for ms in (t.open_median, t.bucketed_median, t.open_best, t.bucketed_best)),
                *(f"{ms * 1e3 / row['steps']:.1f}" for ms in (t.open_median, t.bucketed_median)),
            )
            for row, t in rows
        ],
    )


def times_table(rows: Sequence[Row]) -> Table:
    """Times of lockstep runs: medians of this run on this machine."""
    return simple_table(
        "Decode steps (this machine, this run: compare within a line)",
        ("steps", "open\nms", "bucketed\nms", "ratio", "ratio,\nquartiles", "open\ntokens/s", "bucketed\ntokens/s"),
        [
            (
                f"{row['steps']:,}",
                *_figures(row, "step_ms", ".2f"),
                *_ratio(row),
                *_figures(row, "tokens_per_s", ",.0f"),
            )
            for row in rows
        ],
        caption="medians of forward and draw; ratio = bucketed / open, step by step",
    )


def traffic_table(row: Row, left_out: int) -> Table:
    """One replayed workload: what it held, what it presented, what the padding is made of."""
    lines = [
        ("requests replayed", f"{row['requests']:,}"),
        *([("left out, over max_model_len", f"{left_out:,}")] if left_out else []),
        *((f"  {name}", f"{row[name]:,}") for name in ("finished", "rejected", "failed") if row[name]),
        ("preemptions", f"{row['preemptions']:,}"),
        ("decode steps", f"{row['steps']:,}"),
    ]
    if row["steps"]:
        lines += [
            ("shapes open", f"{row['open_shapes']:,}"),
            ("shapes bucketed", f"{row['shapes_used']:,} used of {row['shapes_available']:,}"),
            ("cells padded", f"{row['padded_cells']:,}"),
            *(
                (f"  {name.replace('_', ' ')}", f"{row[name]:,} ({row[name] / row['padded_cells']:.1%})")
                for name in ("live_cells", "ragged_padding", "width_padding", "row_padding")
            ),
            ("waste (1 - open / padded)", f"{row['waste']:.1%}"),
            ("total waste (1 - live / padded)", f"{row['total_waste']:.1%}"),
            ("torch.compile as it is", row["falls_back_open"] or "keeps every open shape"),
        ]
        if row["off_list_steps"]:
            lines.append(("steps off the list, eager", f"{row['off_list_steps']:,}"))
        if row.get("captures_open") is not None:
            lines += [
                ("captures open", f"{row['captures_open']:,}"),
                ("captures bucketed", f"{row['captures_bucketed']:,}, {row['captures_after_warm_up']:,} after warm-up"),
                ("replay share", f"{row['replay_share']:.1%}"),
            ]
        else:
            lines += [
                ("compiles open", _compiles(row["compiles_open"], row["abandoned_open"])),
                ("compiles bucketed", _compiles(row["compiles_bucketed"], 0)),
            ]
    return simple_table("Open against bucketed (counts)", ("", ""), lines)


def traffic_times_table(row: Row) -> Table:
    """Times of one replayed workload."""
    measured = [("plan us", "plan_us", ".1f"), ("step ms", "step_ms", ".2f"), ("tokens/s", "tokens_per_s", ",.0f")]
    lines = [
        (f"{label}, median" if name != "tokens_per_s" else label, *_figures(row, name, spec))
        for label, name, spec in measured
        if row[f"{name}_open"] is not None
    ]
    if row["step_ratio"] is not None:
        ratio, quartiles = _ratio(row)
        lines += [("bucketed / open, step by step", "", ratio), ("  quartiles", "", quartiles)]
    return simple_table("Decode steps (this machine, this run)", ("", "open", "bucketed"), lines)


def fidelity_table(fidelity: Row) -> Table:
    """How faithfully the traffic was replayed."""
    spreads = {name: value for name, value in fidelity.items() if isinstance(value, Percentiles)}
    figures = [
        (name.replace("_", " "), *_spread(spreads[name]))
        if name in spreads
        else (name.replace("_", " "), _figure(value))
        for name, value in fidelity.items()
        if value is not None
    ]
    return simple_table("Replay", ("", "", "p50", "p90", "p99"), figures)


def latency_table(latency: dict[str, dict[str, Percentiles]]) -> Table:
    """Latencies of each mode, with their definitions underneath."""
    rows = [
        (
            f"{name} ms {mode}",
            f"{spread.p50:,.1f}",
            f"{spread.p90:,.1f}",
            f"{spread.p99:,.1f}",
            f"{spread.mean:,.1f}",
            f"{spread.samples:,}",
        )
        for name in (metric.name for metric in METRICS)
        for mode, found in latency.items()
        if (spread := found.get(name)) is not None
    ]
    shown = {name for found in latency.values() for name in found}
    definitions = "\n".join(f"{metric.name}: {metric.about}" for metric in METRICS if metric.name in shown)
    return simple_table("Latency", ("", "p50", "p90", "p99", "mean", "samples"), rows, caption=definitions)


def coverage(captures: CaptureList) -> str:
    """Which batches and widths a capture list has no graph for."""
    gaps = []
    largest = max(shape.rows for shape in captures.shapes)
    if largest < captures.max_batch_size:
        gaps.append(f"{largest + 1} to {captures.max_batch_size} rows")
    reach = {shape.rows: max(s.width for s in captures.shapes if s.rows >= shape.rows) for shape in captures.shapes}
    rows_of = {width: max(rows for rows, reached in reach.items() if reached == width) for width in reach.values()}
    gaps += [f"up to {r} rows above {w:,} columns" for w, r in rows_of.items() if w < captures.max_model_len]
    return f"capture list of {captures.count}: " + (f"no graph for {', '.join(gaps)}" if gaps else "covers every step")


def throughput_table(modes: dict[str, dict[str, float]]) -> Table:
    """Requests and tokens a second of each mode."""
    names = next(iter(modes.values()))
    rows = [(name.replace("_", " "), *(f"{found[name]:,.2f}" for found in modes.values())) for name in names]
    return simple_table("Throughput", ("", *modes), rows)


def remarks(run: BenchRun) -> Iterator[str]:
    """What else a reader of one run should know, a line each."""
    comparison = run.comparison
    if comparison.partings is not None and comparison.partings.requests:
        yield (
            f"{comparison.partings.requests} requests part between open and bucketed at a tie "
            f"(top-two logit gap at most {comparison.partings.widest_gap:.1g})"
        )
    if comparison.eager_partings is not None:
        parted = comparison.eager_partings.requests
        yield "tokens equal an eager run's" + (f", but for {parted} requests that part at a tie" if parted else "")
    if comparison.bucketed.warm_up_seconds is not None and run.runner != "eager":
        seconds = comparison.bucketed.warm_up_seconds
        yield f"{run.label}: {seconds:,.1f} s of warm-up before the bucketed run, in none of its steps"
    if comparison.open.compiled is not None and run.runner == "compiled":
        yield f"{run.label}: the open run's steps hold its {comparison.open.compiled.compiles} compiles"
    if comparison.open.graphs is not None:
        yield f"{run.label}: the open run's steps hold its {comparison.open.graphs.captures:,} captures"
    if not comparison.same_steps:
        opened, bucketed = comparison.open.replay.steps.total_steps, comparison.bucketed.replay.steps.total_steps
        yield f"real clock: the open run took {opened:,} steps, the bucketed {bucketed:,}; cells are its"
    partial = comparison.bucketed.policy
    if isinstance(partial, CaptureList) and partial != comparison.policy:
        yield f"partial {coverage(partial)}"
    if comparison.bucketed.inert_rows is not None:
        rows = (comparison.open.inert_rows or 0) + comparison.bucketed.inert_rows
        yield f"padding inert: {rows:,} rows compared bit for bit against poisoned memory"
    compiled = comparison.open.compiled
    if compiled is not None and compiled.presented > compiled.compiles and not compiled.abandoned:
        yield (
            f"dynamic: {compiled.presented:,} open shapes in {compiled.compiles} graphs, with sizes that are symbols: "
            "a capture needs fixed ones, so neither can be captured once for all shapes"
        )


def assets_table(assets: Sequence[tuple[Asset, Path | None]]) -> Table:
    """What `nanoserve fetch` knows, and where what it has is."""
    from rich.text import Text

    table = simple_table("nanoserve fetch KEY", ("key", "licence"), ())
    table.columns[1].justify = "left"
    table.add_column("where it is kept, and what it is", overflow="fold")
    for asset, path in assets:
        kept = "not here" if path is None else str(path)
        table.add_row(asset.key, asset.licence, Text(f"{kept}\n{asset.about}"))
    return table


def _compiles(compiles: int | None, abandoned: int | None) -> str:
    if compiles is None:
        return "not counted"
    return f"{compiles:,}" + (", given up" if abandoned else "")


def _figures(row: Row, name: str, spec: str) -> list[str]:
    values = (row[f"{name}_open"], row[f"{name}_bucketed"])
    return ["-" if value is None else format(value, spec) for value in values]


def _ratio(row: Row) -> tuple[str, str]:
    if row["step_ratio"] is None:
        return "-", "-"
    return f"{row['step_ratio']:.2f}", f"{row['step_ratio_low']:.2f}..{row['step_ratio_high']:.2f}"


def _spread(spread: Percentiles) -> tuple[str, str, str, str]:
    return "", f"{spread.p50:,.1f}", f"{spread.p90:,.1f}", f"{spread.p99:,.1f}"


def _figure(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
