"""Shapes available against waste: what a larger closed set buys, a line a ladder, and the policies nothing beats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from nanoserve.gates import CAPTURE_LIMIT
from nanoserve_cli.figures import labels, scatter, style
from nanoserve_cli.figures.points import Panel, Results, panels, source
from nanoserve_cli.figures.scatter import Floats, Key, Marks
from nanoserve_cli.tables import simple_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table

PANEL_INCHES = 3.1
BEATEN, HAIRLINE = "#8a8a8a", "#d4d4d4"
METRICS = {"waste": "waste (1 - open / padded)", "total_waste": "total waste (1 - live / padded)"}


def draw(
    results: Results,
    *,
    budget_graphs: int = CAPTURE_LIMIT,
    metric: str = "waste",
    layout: style.Layout = style.COLUMN,
) -> Figure:
    """The trade-off of every run in `results`, a panel each. `metric` is one of `METRICS`.

    A hairline from each point leads to its shapes used. ValueError where no run has two policies.
    """
    found = panels(results, least=2)
    key = Key.of(found)
    with style.applied():
        figure = style.new_figure(layout)
        heights = [PANEL_INCHES] * len(found)
        axes = style.add_panels(figure, layout, heights, source=source(results), legend=_legend(found, key))
        ends = scatter.limits(
            [panel.values(column) for panel in found for column in ("shapes_used", "shapes_available")], budget_graphs
        )
        for panel, ax in zip(found, axes, strict=True):
            style.title(ax, panel.title, panel.subtitle)
            style.counts_axis(ax, *ends, scatter.SHAPES)
            style.percent_axis(ax, panel.values(metric), METRICS[metric])
            _draw_panel(ax, panel, key, metric, budget_graphs)
    return figure


def _legend(found: list[Panel], key: Key) -> list[list[Any]]:
    used = scatter.entry("to shapes used", ls="-", lw=0.5, marker="|", ms=4)
    marks = [scatter.front_entry(), scatter.ring_entry(), used, *scatter.off_list_entries(found)]
    return [*key.rows_of_legend(), marks]


def _draw_panel(ax: Axes, panel: Panel, key: Key, metric: str, budget_graphs: int) -> None:
    x, y = panel.values("shapes_available"), panel.values(metric)
    on_front = panel.front(metric)
    best = panel.best_within(metric, budget_graphs)
    words = scatter.draw_graphs_budget(ax, budget_graphs)
    drawn = [scatter.draw_ladders(ax, panel, key, x, y)]
    _draw_used(ax, panel.values("shapes_used"), x, y, on_front)
    drawn += [scatter.draw_front(ax, x, y, on_front)] * 2  # Twice: a label over the front costs twice a ladder's.
    key.draw(ax, panel, x, y, panel.comparable & ~on_front, color=BEATEN, size=2.6)
    key.draw(ax, panel, x, y, on_front, color=style.ACCENT, size=3.6)
    scatter.draw_off_list(ax, panel, x, y)
    if best is not None:
        scatter.draw_ring(ax, x[best], y[best])
    wanted = front_labels(panel, x, y, on_front, best)
    if len(x) <= scatter.FEW:
        rest = np.flatnonzero(~on_front)
        settings = [panel.words("setting")[at] for at in rest]
        wanted += scatter.labels_of(x[rest], y[rest], settings, color=style.SOFT, toward=45)
    else:
        wanted += scatter.names_of_ladders(ax, panel, x, y, but=on_front & ~panel.curves)
    labels.place(ax, wanted, markers=np.stack((x, y), axis=1), lines=np.concatenate(drawn), taken=[words])


def _draw_used(ax: Axes, used: Floats, x: Floats, y: Floats, on_front: Marks) -> None:
    for chosen, color, width, tick in ((~on_front, HAIRLINE, 0.35, 3.0), (on_front, style.SOFT, 0.5, 4.0)):
        ax.hlines(y[chosen], used[chosen], x[chosen], color=color, lw=width, zorder=1.5)
        ax.plot(used[chosen], y[chosen], ls="", marker="|", ms=tick, mew=width, color=color, zorder=1.5, gid="used")


def front_labels(panel: Panel, x: Floats, y: Floats, on_front: Marks, best: int | None) -> list[labels.Label]:
    """The settings on the front, but for curves, below it, where no point can be; what the budget buys in bold."""
    settings = np.array(panel.words("setting"))
    is_best = np.zeros(len(x), bool) if best is None else on_front & (x == x[best]) & (y == y[best])
    found = []
    for chosen, weight in ((is_best, "bold"), (on_front & ~is_best & ~panel.curves, "normal")):
        texts = settings[chosen].tolist()
        found += scatter.labels_of(x[chosen], y[chosen], texts, color=style.ACCENT, toward=225, weight=weight)
    return found


COLUMNS = ("policy", "shapes\navailable", "used", "waste", "total\nwaste", "off the\nlist", "")


def facts(results: Results, *, budget_graphs: int = CAPTURE_LIMIT, metric: str = "waste") -> list[Table]:
    """What `draw` shows as tables: each point, which are on the front, and what the budget buys."""
    return [facts_of(panel, budget_graphs, metric) for panel in panels(results, least=2)]


def facts_of(panel: Panel, budget_graphs: int, metric: str, chosen: Marks | None = None) -> Table:
    """The table of one panel, of its `chosen` rows or all."""
    rows, on_front = panel.rows, panel.front(metric)
    best = panel.best_within(metric, budget_graphs)
    order = rows.sort_values(["shapes_available", metric], kind="stable").index
    lines = []
    for at in order if chosen is None else order[chosen[order]]:
        row = rows.loc[at]
        over = bool(row["shapes_available"] > budget_graphs)
        words = ["front"] * bool(on_front[at]) + ["over"] * over + ["best"] * (at == best)
        lines.append(
            (
                panel.policies[at] if rows["file"].nunique() == 1 else f"{row['file']}: {panel.policies[at]}",
                f"{row['shapes_available']:,}",
                count(row["shapes_used"]),
                f"{row['waste']:.1%}",
                share(row["total_waste"]),
                count(row["off_list_steps"]),
                ", ".join(words),
            )
        )
    name = metric.replace("_", " ")
    bought = (
        "no policy is within" if best is None else f"best is {panel.policies[best]}, {name} {rows[metric][best]:.1%}"
    )
    table = simple_table(
        panel.title,
        COLUMNS,
        lines,
        caption=f"{panel.subtitle}\nfront: of those that cover every step, none has fewer shapes and less {name}\n"
        f"budget {budget_graphs:,} graphs: {bought}",
    )
    table.columns[-1].justify = "left"
    return table


def share(value: Any) -> str:
    """A share, or that there is none: where only rows are looked at nothing is known of cells."""
    import pandas as pd

    return "-" if pd.isna(value) else f"{value:.1%}"


def count(value: Any) -> str:
    """A count, or that there is none."""
    import pandas as pd

    return "-" if pd.isna(value) else f"{value:,}"
