"""What the computed cells are: live, ragged, width and row parts, a bar a policy, the least waste at the top."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from nanoserve_cli.figures import style
from nanoserve_cli.figures.points import Panel, Results, panels, source
from nanoserve_cli.tables import simple_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table

PARTS: tuple[tuple[str, str, style.Look], ...] = (
    ("live_cells", "live", {"facecolor": "#2b2b2b"}),
    ("ragged_padding", "ragged", {"facecolor": "#8fb0cf"}),
    ("width_padding", "width padding", {"facecolor": "#dce5ed", "hatch": "//////"}),
    ("row_padding", "row padding", {"facecolor": "#ffffff", "hatch": "....."}),
)
"""The column of each part, its words, and how it looks: told apart by lightness and hatch."""
EDGE: style.Look = {"edgecolor": "#3d5a75", "linewidth": 0.4}
BAR_INCHES = 0.115
MAX_BARS = 200


def draw(results: Results, *, layout: style.Layout = style.COLUMN) -> Figure:
    """Every policy's padded cells as shares, a panel a run. ValueError where a row lacks a part."""
    from matplotlib.patches import Patch

    found = panels(results)
    if (bars := sum(len(panel.rows) for panel in found)) > MAX_BARS:
        raise ValueError(
            f"{bars} policies are more than the {MAX_BARS} bars of a figure: --only draws some of the runs"
        )
    with style.applied():
        figure = style.new_figure(layout)
        names = [name for panel in found for name in _names(panel)]
        margins = style.Margins(left=style.width_of(figure, names, size=style.SMALL) + 0.1, right=0.7)
        axes = style.add_panels(
            figure,
            layout,
            [margins.top + margins.bottom + BAR_INCHES * (len(panel.rows) + 2) for panel in found],
            source=source(results),
            margins=margins,
            legend=[[Patch(label=words, **look, **EDGE) for _, words, look in PARTS]],
            is_stretched=False,
        )
        for panel, ax in zip(found, axes, strict=True):
            style.title(ax, panel.title, panel.subtitle, beyond=margins.right)
            _draw_panel(ax, panel)
    return figure


def _draw_panel(ax: Axes, panel: Panel) -> None:
    order, shares = _order(panel), _shares(panel)
    places = np.arange(len(order))
    start = np.zeros(len(order))
    for (column, _, look), share in zip(PARTS, shares[:, order], strict=True):
        ax.barh(places, share, left=start, height=0.78, label=column, **look, **EDGE)
        start = start + share
    ax.set_ylim(len(order) - 0.4, -1.6)
    ax.set_yticks(places, [_names(panel)[at] for at in order])
    ax.tick_params(axis="y", length=0)
    ax.set_xlim(0, 1)
    style.as_percent(ax.xaxis)
    ax.set_xlabel("share of the padded cells")
    for side in ("left", "bottom"):
        ax.spines[side].set_visible(False)
    _write_wastes(ax, panel, order)


def _write_wastes(ax: Axes, panel: Panel, order: NDArray[np.intp]) -> None:
    """The two wastes of each bar as numbers to its right."""
    for offset, words, column in ((22, "waste", "waste"), (48, "total", "total_waste")):
        values = panel.values(column)
        for place, text in [(-1.0, words), *((float(at), f"{values[i]:.1%}") for at, i in enumerate(order))]:
            ax.annotate(
                text,
                xy=(1, place),
                xycoords=("axes fraction", "data"),
                xytext=(offset, 0),
                textcoords="offset points",
                ha="right",
                va="center",
                size=style.SMALL,
                color=style.SOFT if place < 0 else style.INK,
                gid=column,
            )


def _order(panel: Panel) -> NDArray[np.intp]:
    """Rows by waste, and by total waste and then shapes where that is equal."""
    return np.lexsort((panel.values("shapes_available"), panel.values("total_waste"), panel.values("waste")))


def _names(panel: Panel) -> list[str]:
    if panel.rows["file"].nunique() == 1:
        return panel.policies
    return [f"{file}: {policy}" for file, policy in zip(panel.words("file"), panel.policies, strict=True)]


def _shares(panel: Panel) -> NDArray[np.float64]:
    """The parts of each row as shares of its padded cells, `(parts, rows)`; 0 of a run of no step."""
    padded = panel.values("padded_cells")
    parts = np.stack([panel.values(column) for column, _, _ in PARTS])
    if np.isnan(parts).any():
        column = PARTS[int(np.argwhere(np.isnan(parts))[0][0])][0]
        raise ValueError(f"{panel.title}: a row has no {column}: it is no finished run")
    return np.asarray(parts / np.maximum(padded, 1), float)


def facts(results: Results) -> list[Table]:
    """The same shares as a table a run."""
    columns = ("policy", *(words.removesuffix(" padding") for _, words, _ in PARTS), "waste", "total\nwaste")
    tables = []
    for panel in panels(results):
        shares, names = _shares(panel), _names(panel)
        wastes = np.stack((panel.values("waste"), panel.values("total_waste")))
        lines = [(names[at], *(f"{value:.1%}" for value in (*shares[:, at], *wastes[:, at]))) for at in _order(panel)]
        tables.append(
            simple_table(
                panel.title,
                columns,
                lines,
                caption=f"{panel.subtitle}\nshares of the padded cells; waste = width + row, total waste adds ragged",
            )
        )
    return tables
