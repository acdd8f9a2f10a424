"""Only the policies that nothing beats: waste, and step time where it was measured, against shapes available."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from nanoserve.gates import CAPTURE_LIMIT
from nanoserve_cli.figures import labels, scatter, style, tradeoff
from nanoserve_cli.figures.points import Panel, Results, panels, source
from nanoserve_cli.figures.scatter import Key
from nanoserve_cli.tables import simple_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table

PANEL_INCHES = 2.7
STEP_MS = "step_ms_bucketed"
MEASURED = "decode step, ms (median)"


def draw(
    results: Results,
    *,
    budget_graphs: int = CAPTURE_LIMIT,
    metric: str = "waste",
    layout: style.Layout = style.COLUMN,
) -> Figure:
    """The fronts of every run in `results`: of `metric`, and of the step time where several were measured.

    ValueError where no run has two policies.
    """
    found = panels(results, least=2)
    drawn = [(panel, column) for panel in found for column in _columns(panel, metric)]
    key = Key.of(found)
    marks = [scatter.front_entry(), scatter.ring_entry(), *scatter.off_list_entries(found)]
    with style.applied():
        figure = style.new_figure(layout)
        axes = style.add_panels(
            figure, layout, [PANEL_INCHES] * len(drawn), source=source(results), legend=[*key.rows_of_legend(), marks]
        )
        ends = scatter.limits([panel.values("shapes_available") for panel in found], budget_graphs)
        for (panel, column), ax in zip(drawn, axes, strict=True):
            style.title(ax, panel.title, panel.subtitle)
            style.counts_axis(ax, *ends, scatter.SHAPES)
            if column == STEP_MS:
                ax.set_ylim(0, float(np.nanmax(panel.values(column))) * 1.1)
                ax.set_ylabel(MEASURED)
            else:
                style.percent_axis(ax, panel.values(column), tradeoff.METRICS[column])
            _draw_panel(ax, panel, key, column, budget_graphs)
    return figure


def _columns(panel: Panel, metric: str) -> Iterator[str]:
    """What is drawn of a panel."""
    yield metric
    if (~np.isnan(panel.values(STEP_MS))).sum() > 1:
        yield STEP_MS


def _draw_panel(ax: Axes, panel: Panel, key: Key, column: str, budget_graphs: int) -> None:
    x, y = panel.values("shapes_available"), panel.values(column)
    on_front = panel.front(column)
    best = panel.best_within(column, budget_graphs)
    words = scatter.draw_graphs_budget(ax, budget_graphs)
    line = scatter.draw_front(ax, x, y, on_front)
    key.draw(ax, panel, x, y, panel.comparable & ~on_front, color=style.FAINT, size=2.4)
    scatter.draw_off_list(ax, panel, x, y)
    key.draw(ax, panel, x, y, on_front, color=style.ACCENT, size=4.0)
    if best is not None:
        scatter.draw_ring(ax, x[best], y[best])
    wanted = tradeoff.front_labels(panel, x, y, on_front, best)
    known = ~np.isnan(y)
    labels.place(ax, wanted, markers=np.stack((x, y), axis=1)[known], lines=line, taken=[words])


def facts(results: Results, *, budget_graphs: int = CAPTURE_LIMIT, metric: str = "waste") -> list[Table]:
    """The front of each run as a table, and that of the step time where it was measured."""
    tables = []
    for panel in panels(results, least=2):
        tables.append(tradeoff.facts_of(panel, budget_graphs, metric, panel.front(metric)))
        if STEP_MS in _columns(panel, metric):
            tables.append(_times(panel))
    return tables


def _times(panel: Panel) -> Table:
    x, y = panel.values("shapes_available"), panel.values(STEP_MS)
    at = np.flatnonzero(panel.front(STEP_MS))
    lines = [(panel.policies[i], f"{x[i]:,.0f}", f"{y[i]:.3f}") for i in at[np.argsort(x[at], kind="stable")]]
    columns = ("policy", "shapes\navailable", "step\nms")
    caption = "front of measured step times (medians)"
    return simple_table(panel.title, columns, lines, caption=caption)
