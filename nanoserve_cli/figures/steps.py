"""Where traffic falls: steps by rows and width as a heat map, the policy's grid over it, and both margins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from nanoserve.buckets import CaptureList, DecodePolicy, Shape
from nanoserve.pricing import RunCost, StepsIndex
from nanoserve.steps import Steps
from nanoserve_cli.figures import style
from nanoserve_cli.tables import simple_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage
    from rich.table import Table

Policy = DecodePolicy | CaptureList
Counts = NDArray[np.int64]

PANEL_INCHES = 3.4
BESIDE, GAP = 0.42, 0.05
"""Inches of the margins' histograms, and between them and the map."""
MOST_BINS = 96
FEW_SHAPES = 48
"""Shapes in view up to which each says its share of the steps."""
LEAST_SHARE = 0.0005
"""A share below this would be written as 0.0%."""
SHOWN_SHAPES = 20
GRID = "#a63603"


@dataclass(frozen=True)
class View:
    """The part of a policy's rectangle that a run reaches: its largest buckets, and how many rows and columns a bin
    holds."""

    rows: int
    width: int
    row_bin: int
    width_bin: int

    @classmethod
    def of(cls, index: StepsIndex, policy: Policy) -> View:
        """Up to the bucket that covers the most rows and the widest step, each by itself."""
        most = int(index.rows[-1])
        rows = min((shape.rows for shape in policy.shapes if shape.rows >= most), default=most)
        width = min((shape.width for shape in policy.shapes if shape.width >= index.widest), default=index.widest)
        return cls(rows, width, -(-rows // MOST_BINS), -(-width // MOST_BINS))

    def edges(self) -> tuple[Counts, Counts]:
        """The last row count and the last width of each bin."""
        return (
            np.arange(1, -(-self.rows // self.row_bin) + 1) * self.row_bin,
            np.arange(1, -(-self.width // self.width_bin) + 1) * self.width_bin,
        )


def draw(
    steps: Steps, policy: Policy, *, traffic: str = "", source: str = "", layout: style.Layout = style.COLUMN
) -> Figure:
    """The run's heat map under a policy or a capture list, up to the buckets that it reaches.

    ValueError for a run of no steps, or where one is outside the policy's limits.
    """
    index, cost = _priced(steps, policy)
    view = View.of(index, policy)
    counts = index.histogram(*view.edges())
    with style.applied():
        figure = style.new_figure(layout)
        margins = style.Margins(top=0.28 + BESIDE + GAP, right=0.1 + BESIDE + GAP)
        (ax,) = style.add_panels(figure, layout, [PANEL_INCHES], source=source, margins=margins)
        heat = _draw_heat(ax, counts, view)
        grid = cells(policy, view)
        _draw_grid(ax, grid)
        if len(grid) <= FEW_SHAPES:
            _write_shares(ax, grid, cost, view)
        _draw_margins(ax, counts, view, heat)
        style.title(
            ax, traffic or "Steps by rows and width", _words(cost), lift=(BESIDE + GAP) * 72, beyond=margins.right
        )
    return figure


def _priced(steps: Steps, policy: Policy) -> tuple[StepsIndex, RunCost]:
    index = StepsIndex(steps)
    if not index.steps:
        raise ValueError("there is no step to draw: the run decoded nothing")
    return index, index.price(policy)


def _words(cost: RunCost) -> str:
    parts = [
        f"{cost.steps:,} steps on {cost.shapes_used:,} of {cost.shapes_available:,} shapes",
        f"waste {cost.waste:.1%}, total {cost.total_waste:.1%}",
    ]
    if cost.off_list_steps:
        parts.insert(1, f"{cost.off_list_steps:,} off the list")
    return style.DOT.join(parts)


def _draw_heat(ax: Axes, counts: Counts, view: View) -> AxesImage:
    """Steps of each bin, darker for more, on a logarithmic scale; no step is white."""
    from matplotlib import colormaps
    from matplotlib.colors import LinearSegmentedColormap, LogNorm
    from matplotlib.ticker import MaxNLocator

    blues = LinearSegmentedColormap.from_list("steps", colormaps["Blues"](np.linspace(0.22, 1.0, 64)))
    row_edges, width_edges = view.edges()
    image = ax.imshow(
        np.ma.masked_equal(counts, 0),
        origin="lower",
        aspect="auto",
        interpolation="nearest",
        extent=(0.5, float(width_edges[-1]) + 0.5, 0.5, float(row_edges[-1]) + 0.5),
        norm=LogNorm(1, max(2, int(counts.max()))),
        cmap=blues,
        zorder=1,
    )
    ax.set_xlim(0.5, view.width + 0.5)
    ax.set_ylim(0.5, view.rows + 0.5)
    ax.set_xlabel("width (KV columns a row)")
    ax.set_ylabel("rows")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, nbins=8, steps=[1, 2, 2.5, 5, 10]))
        style.plain_numbers(axis)
    return image


@dataclass(frozen=True)
class Cell:
    """Steps that run as one shape, or off a list as none: those above `left` and `low`, up to `right` and `high`."""

    shape: Shape | None
    left: int
    low: int
    right: int
    high: int


def cells(policy: Policy, view: View) -> list[Cell]:
    """The policy's grid over a view. Row counts with the same shapes are one band."""
    found = []
    for shapes, band in groupby(range(1, view.rows + 1), policy.shapes_for_rows):
        counts = list(band)
        low, high, left = counts[0] - 1, counts[-1], 0
        for shape in takewhile(lambda shape: shape.width <= view.width, shapes):
            found.append(Cell(shape, left, low, shape.width, high))
            left = shape.width
        if left < view.width:
            found.append(Cell(None, left, low, view.width, high))
    return found


def _draw_grid(ax: Axes, grid: Sequence[Cell]) -> None:
    """The edges of the cells, and a hatch where steps are off the list."""
    from matplotlib.collections import LineCollection
    from matplotlib.patches import Rectangle

    edges = [((c.left, c.high), (c.right, c.high), (c.right, c.low)) for c in grid]
    lines = [[(x + 0.5, y + 0.5) for x, y in edge] for edge in edges]
    width = 0.2 if len(grid) > FEW_SHAPES * 4 else 0.5
    ax.add_collection(LineCollection(lines, colors=GRID, linewidths=width, zorder=3, gid="grid"))
    for cell in grid:
        if cell.shape is None:
            corner, size = (cell.left + 0.5, cell.low + 0.5), (cell.right - cell.left, cell.high - cell.low)
            look: style.Look = {"facecolor": "none", "edgecolor": GRID, "hatch": "xxxx", "linewidth": 0}
            ax.add_patch(Rectangle(corner, *size, zorder=2, gid="off the list", **look))


def _write_shares(ax: Axes, grid: Sequence[Cell], cost: RunCost, view: View) -> None:
    """The share of the steps that each shape ran, in its corner, where the cell has room for it."""
    box = ax.get_window_extent()
    points = np.array([box.width, box.height]) * 72 / ax.figure.dpi / (view.width, view.rows)
    ran = dict(cost.steps_per_shape)
    for cell in grid:
        share = ran.get(cell.shape, 0) / cost.steps if cell.shape is not None else 0.0
        across, up = points * (cell.right - cell.left, cell.high - cell.low)
        if share < LEAST_SHARE or across < 4.4 * style.TINY or up < 1.6 * style.TINY:
            continue
        ax.annotate(
            f"{share:.1%}",
            xy=(cell.right + 0.5, cell.high + 0.5),
            xytext=(-1.5, -1.5),
            textcoords="offset points",
            ha="right",
            va="top",
            size=style.TINY,
            bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
            zorder=4,
            gid="share",
        )


def _draw_margins(ax: Axes, counts: Counts, view: View, heat: AxesImage) -> None:
    """Steps by width above the map, by rows at its right, and the scale of the map in the corner between."""
    box = ax.get_window_extent()
    inch = ax.figure.dpi
    across, up = inch / box.width, inch / box.height
    row_edges, width_edges = (np.concatenate(([0], edges)) + 0.5 for edges in view.edges())
    above = ax.inset_axes((0, 1 + GAP * up, 1, BESIDE * up), sharex=ax)
    beside = ax.inset_axes((1 + GAP * across, 0, BESIDE * across, 1), sharey=ax)
    above.stairs(counts.sum(axis=0), width_edges, fill=True, color=style.SOFT, gid="by width")
    beside.stairs(counts.sum(axis=1), row_edges, fill=True, color=style.SOFT, orientation="horizontal", gid="by rows")
    for margin in (above, beside):
        margin.axis("off")
    above.set_ylim(0, None)
    beside.set_xlim(0, None)
    scale = ax.inset_axes((1 + GAP * across, 1 + (GAP + 0.22) * up, BESIDE * across, 0.07 * up))
    bar = ax.figure.colorbar(heat, cax=scale, orientation="horizontal")
    most = int(counts.max())
    bar.set_ticks([1, max(2, most)], labels=["1", _short(max(2, most))])
    bar.ax.minorticks_off()
    bar.ax.tick_params(labelsize=style.TINY, length=1.5, pad=1)
    bar.outline.set_linewidth(0.4)
    scale.set_title("steps", size=style.TINY, pad=1.5)


def _short(value: int) -> str:
    """A count in at most four characters."""
    for size, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if value >= size:
            return f"{value / size:.0f}{letter}" if value >= 10 * size else f"{value / size:.1f}{letter}"
    return str(value)


def facts(steps: Steps, policy: Policy, *, traffic: str = "") -> list[Table]:
    """The shapes that ran most, and how many steps each."""
    _, cost = _priced(steps, policy)
    by_steps = sorted(cost.steps_per_shape, key=lambda entry: (-entry[1], entry[0]))
    lines = [_line(str(shape), count, cost) for shape, count in by_steps[:SHOWN_SHAPES]]
    if rest := by_steps[SHOWN_SHAPES:]:
        lines.append(_line(f"{len(rest):,} others", sum(count for _, count in rest), cost))
    if cost.off_list_steps:
        lines.append(_line("off the list, eager", cost.off_list_steps, cost))
    return [simple_table(traffic or "Steps", ("shape", "steps", "share"), lines, caption=_words(cost))]


def _line(name: str, count: int, cost: RunCost) -> tuple[str, str, str]:
    return name, f"{count:,}", f"{count / cost.steps:.1%}"
