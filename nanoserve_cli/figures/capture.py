"""What a closed set costs to have: MiB of the graphs' pool and seconds of capturing, against shapes available."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nanoserve.gates import CAPTURE_LIMIT
from nanoserve_cli.figures import labels, scatter, style
from nanoserve_cli.figures.points import CAPTURE, Panel, Results, panels, source
from nanoserve_cli.figures.scatter import Floats, Key
from nanoserve_cli.figures.tradeoff import count
from nanoserve_cli.tables import simple_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table

PANEL_INCHES = 2.5
POLICY = (*CAPTURE, "policy", "rows_ladder", "width_ladder", "completed")


@dataclass(frozen=True)
class Bill:
    """One thing that captures cost: its predicted and its measured column, and the words of its axis."""

    predicted: str
    measured: str
    label: str


MIB = Bill("capture_mib", "capture_mib_measured", "MiB of the graphs' pool")
SECONDS = Bill("capture_s", "capture_s_measured", "seconds to capture all")


def draw(
    results: Results,
    *,
    budget_graphs: int = CAPTURE_LIMIT,
    budget_mib: float | None = None,
    layout: style.Layout = style.COLUMN,
) -> Figure:
    """The capture bill of every model and pair of limits in `results`: a panel for MiB, and one for seconds.

    A policy is drawn once, whatever traffic it was priced on. ValueError where nothing was predicted, or for a budget
    that is no number.
    """
    if budget_mib is not None and not 0 <= budget_mib < float("inf"):
        raise ValueError(f"a budget must be a number of MiB, got {budget_mib:g}")
    found = _panels(results)
    drawn = [(panel, bill) for panel in found for bill in _bills(panel)]
    key = Key.of(found)
    is_measured = any(_known(panel, bill.measured) for panel, bill in drawn)
    legend = [scatter.entry("predicted", marker="o", ms=3.6, color=style.ACCENT)]
    if is_measured:
        legend.append(scatter.entry("measured", marker="_", ms=5, mew=1.1, color=style.INK))
    if budget_mib is not None:
        legend.append(scatter.entry(f"budget {budget_mib:,g} MiB", **scatter.BUDGET_LINE))
    with style.applied():
        figure = style.new_figure(layout)
        heights = [PANEL_INCHES] * len(drawn)
        axes = style.add_panels(figure, layout, heights, source=source(results), legend=[*key.rows_of_legend(), legend])
        ends = scatter.limits([panel.values("shapes_available") for panel in found], budget_graphs)
        for (panel, bill), ax in zip(drawn, axes, strict=True):
            style.title(ax, panel.title, panel.subtitle)
            style.counts_axis(ax, *ends, scatter.SHAPES)
            _draw_panel(ax, panel, bill, key, budget_graphs, budget_mib if bill is MIB else None)
    return figure


def _panels(results: Results) -> list[Panel]:
    """The policies with a bill, each once."""
    billed = {name: frame[frame[MIB.predicted].notna()] for name, frame in results.items()}
    billed = {name: frame.drop_duplicates(list(POLICY)) for name, frame in billed.items() if len(frame)}
    if not billed:
        raise ValueError(
            f"{', '.join(results)}: {MIB.predicted} is empty in every row: no capture was priced; run `nanoserve "
            "sweep` with the extra nanoserve[engine] and without --host-only"
        )
    return panels(billed, by=CAPTURE)


def _bills(panel: Panel) -> Iterator[Bill]:
    yield MIB
    if _known(panel, SECONDS.predicted) or _known(panel, SECONDS.measured):
        yield SECONDS


def _known(panel: Panel, column: str) -> bool:
    return bool((~np.isnan(panel.values(column))).any())


def _draw_panel(ax: Axes, panel: Panel, bill: Bill, key: Key, budget_graphs: int, budget_mib: float | None) -> None:
    x, predicted, measured = panel.values("shapes_available"), panel.values(bill.predicted), panel.values(bill.measured)
    _scale(ax, (*predicted, *measured, np.nan if budget_mib is None else budget_mib))
    ax.set_ylabel(bill.label)
    words = scatter.draw_graphs_budget(ax, budget_graphs)
    if budget_mib is not None:
        scatter.draw_level_budget(ax, budget_mib)
    drawn = scatter.draw_ladders(ax, panel, key, x, predicted)
    known = ~np.isnan(predicted)
    key.draw(ax, panel, x, predicted, known, color=style.ACCENT, size=3.6)
    ax.vlines(x, predicted, measured, color=style.SOFT, lw=0.5, zorder=2)
    ax.plot(x, measured, ls="", marker="_", ms=5, mew=1.1, color=style.INK, zorder=4, gid="measured")
    if len(x) <= scatter.FEW:
        texts = [text for text, there in zip(panel.words("setting"), known, strict=True) if there]
        wanted = scatter.labels_of(x[known], predicted[known], texts, color=style.ACCENT, toward=135)
    else:
        wanted = scatter.names_of_ladders(ax, panel, x, predicted, but=np.zeros(len(x), bool))
    labels.place(ax, wanted, markers=_places(x, predicted, measured), lines=drawn, taken=[words])


def _scale(ax: Axes, values: tuple[float, ...]) -> None:
    """A y axis from 0, or a logarithmic one where the values differ too much for that."""
    least, most = float(np.nanmin(values)), float(np.nanmax(values))
    if 0 < least < most / 30:
        ax.set_yscale("log")
        ax.set_ylim(least / 2, most * 2.5)
        style.ticks_of_counts(ax.yaxis, 3.0, least / 2, most * 2.5)
    else:
        ax.set_ylim(0, most * 1.18 or 1.0)
        style.plain_numbers(ax.yaxis)


def _places(x: Floats, *values: Floats) -> Floats:
    """Where there is a marker, n x 2."""
    places = np.concatenate([np.stack((x, some), axis=1) for some in values])
    return np.asarray(places[~np.isnan(places).any(axis=1)], float)


def facts(results: Results, *, budget_graphs: int = CAPTURE_LIMIT, budget_mib: float | None = None) -> list[Table]:
    """The same bills as tables, over budget in words."""
    columns = ("policy", "shapes\navailable", "MiB", "MiB\nmeasured", "seconds", "seconds\nmeasured", "budget")
    tables = []
    for panel in _panels(results):
        lines = []
        for at, row in panel.rows.sort_values("shapes_available", kind="stable").iterrows():
            over = ["graphs"] * bool(row["shapes_available"] > budget_graphs)
            over += ["MiB"] * bool(budget_mib is not None and row[MIB.predicted] > budget_mib)
            figures = [_figure(row[name]) for bill in (MIB, SECONDS) for name in (bill.predicted, bill.measured)]
            verdict = f"over in {', '.join(over)}" if over else "within"
            lines.append((panel.policies[int(str(at))], count(row["shapes_available"]), *figures, verdict))
        limit = f"{budget_graphs:,} graphs" + ("" if budget_mib is None else f", {budget_mib:,g} MiB")
        tables.append(simple_table(panel.title, columns, lines, caption=f"{panel.subtitle}\nbudget: {limit}"))
    return tables


def _figure(value: Any) -> str:
    import pandas as pd

    return "-" if pd.isna(value) else f"{value:,.1f}"
