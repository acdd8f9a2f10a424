"""What figures over shapes available share: marks that tell points apart, budgets in words, the front's staircase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nanoserve_cli.figures import labels, style
from nanoserve_cli.figures.points import Panel, joined

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[np.float64]
Marks = NDArray[np.bool_]
Places = NDArray[np.intp]

FEW = 14
"""Points of a panel up to which each has its own label."""
MARKERS = "os^DvP*X"
LINES = ("-", "--", ":", "-.")
FILLS = ("full", "none", "left", "bottom")
POINTS, FRONT, BUDGET = "points", "front", "budget"
"""By which what is drawn is known among a figure's artists."""
OVER_BUDGET = "#f4f4f4"
BUDGET_LINE: style.Look = {"color": style.BUDGET, "lw": 0.9, "ls": (0, (4, 2))}
SHAPES = "shapes available (graphs to capture)"


@dataclass(frozen=True)
class Key:
    """What tells points apart: a marker a width rule, a line and a fill a file. Neither needs colour."""

    markers: dict[str, str]
    files: tuple[str, ...]
    is_multiple: bool

    @classmethod
    def of(cls, found: Sequence[Panel]) -> Key:
        """For all panels of a figure. Width rules beyond the markers there are share one."""
        widths = list(dict.fromkeys(width for panel in found for width in panel.rows["width"]))
        files = tuple(dict.fromkeys(file for panel in found for file in panel.rows["file"]))
        markers = {width: MARKERS[at] if len(widths) <= len(MARKERS) else "o" for at, width in enumerate(widths)}
        return cls(markers, files, all(width.isdecimal() for width in widths))

    def line(self, file: str) -> str:
        """The line style of a file."""
        return LINES[self.files.index(file) % len(LINES)]

    def fill(self, file: str) -> Any:
        """The fill of a file's markers."""
        return FILLS[self.files.index(file) % len(FILLS)]

    def rows_of_legend(self) -> list[list[Any]]:
        """Legend entries of what this figure has several of."""
        widths, files = [], []
        if len(set(self.markers.values())) > 1:
            word = "width multiple " if self.is_multiple else "width "
            for at, (width, marker) in enumerate(self.markers.items()):
                widths.append(entry(f"{word if at == 0 else ''}{width or 'of a file'}", marker=marker, ms=3.4))
        if len(self.files) > 1:
            for file in self.files:
                files.append(entry(file, ls=self.line(file), lw=0.8, marker="o", ms=3.4, fillstyle=self.fill(file)))
        return [widths, files]

    def draw(self, axes: Axes, panel: Panel, x: Floats, y: Floats, chosen: Marks, *, color: str, size: float) -> None:
        """The chosen points of a panel."""
        for (file, width), group in panel.rows.groupby(["file", "width"], sort=False):
            at = group.index.to_numpy()[chosen[group.index]]
            axes.plot(
                x[at],
                y[at],
                ls="",
                marker=self.markers[str(width)],
                ms=size,
                mew=0.5,
                color=color,
                fillstyle=self.fill(str(file)),
                markerfacecoloralt="white",
                zorder=3 if size < 3 else 4,
                gid=POINTS,
            )


def entry(label: str, *, ls: str = "", color: str = style.SOFT, **more: Any) -> Any:
    """One legend entry."""
    from matplotlib.lines import Line2D

    look: style.Look = {"mew": 0.5, "markerfacecoloralt": "white"} | more
    return Line2D([], [], ls=ls, color=color, label=label, **look)


def draw_off_list(axes: Axes, panel: Panel, x: Floats, y: Floats) -> None:
    """The points of lists that left steps eager, which no front takes."""
    off = ~panel.comparable
    axes.plot(x[off], y[off], ls="", marker="x", ms=3, mew=0.6, color=style.SOFT, zorder=3, gid=POINTS)


def off_list_entries(found: Sequence[Panel]) -> list[Any]:
    """Their legend entry, where there are any."""
    if all(panel.comparable.all() for panel in found):
        return []
    return [entry("steps off the list run eager", marker="x", ms=3.2, mew=0.6)]


FRONT_LINE: style.Look = {"lw": 2.2, "color": style.ACCENT, "alpha": 0.3, "solid_joinstyle": "round"}


def front_entry() -> Any:
    """The front in a legend."""
    return entry("Pareto front", ls="-", **FRONT_LINE)


def draw_front(axes: Axes, x: Floats, y: Floats, on_front: Marks) -> Floats:
    """The least that can be had for so many shapes, as a staircase. Returns samples of it for `labels.place`."""
    at = np.flatnonzero(on_front)
    at = at[np.lexsort((y[at], x[at]))]
    steps_x, steps_y = np.repeat(x[at], 2)[1:], np.repeat(y[at], 2)[:-1]
    axes.plot(steps_x, steps_y, zorder=2.5, gid=FRONT, **FRONT_LINE)
    return samples(axes, steps_x, steps_y)


def draw_ring(axes: Axes, x: float, y: float) -> None:
    """A ring around what a budget buys."""
    axes.plot([x], [y], ls="", marker="o", ms=7.5, mew=0.8, mec=style.BUDGET, mfc="none", zorder=5, gid="best")


def ring_entry() -> Any:
    """The ring in a legend."""
    return entry("least within budget", marker="o", ms=5.5, mec=style.BUDGET, mfc="none", mew=0.8)


def draw_graphs_budget(axes: Axes, graphs: int) -> Floats:
    """A line at a budget of graphs, in words, with what is over it shaded. Returns the words' box in pixels."""
    low, high = np.log(axes.get_xlim())
    at_right = (np.log(graphs) - low) / (high - low) > 0.6
    axes.axvspan(graphs, axes.get_xlim()[1], color=OVER_BUDGET, zorder=0, lw=0)
    axes.axvline(graphs, zorder=1, gid=BUDGET, **BUDGET_LINE)
    text = axes.annotate(
        f"budget {graphs:,} graphs",
        xy=(graphs, 1),
        xycoords=("data", "axes fraction"),
        xytext=(-2 if at_right else 2, -1),
        textcoords="offset points",
        ha="right" if at_right else "left",
        va="top",
        size=style.SMALL,
        color=style.BUDGET,
        gid=BUDGET,
    )
    return np.array(text.get_window_extent(style.renderer_of(axes.figure)).extents, float)


def draw_level_budget(axes: Axes, level: float) -> None:
    """The same at a height; its words are in the legend."""
    axes.axhline(level, zorder=1, gid=BUDGET, **BUDGET_LINE)


def samples(axes: Axes, x: Floats, y: Floats, *, every: float = 12.0) -> Floats:
    """Points along a polyline, one in so many pixels, in data coordinates (n x 2)."""
    if not len(x):
        return np.zeros((0, 2))
    corners = axes.transData.transform(np.stack((x, y), axis=1))
    along = np.concatenate(([0.0], np.cumsum(np.hypot(*np.diff(corners, axis=0).T))))
    places = np.linspace(0, along[-1], int(along[-1] / every) + 2)
    pixels = np.stack([np.interp(places, along, corners[:, axis]) for axis in (0, 1)], axis=1)
    return np.asarray(axes.transData.inverted().transform(pixels), float)


def labels_of(x: Floats, y: Floats, texts: Sequence[str], **how: Any) -> list[labels.Label]:
    """One label a place: points that coincide share it."""
    places: dict[tuple[float, float], list[str]] = {}
    for px, py, text in zip(x.tolist(), y.tolist(), texts, strict=True):
        places.setdefault((px, py), []).append(text)
    return [labels.Label(joined(words), px, py, **how) for (px, py), words in places.items()]


def ladders(panel: Panel) -> list[Places]:
    """The rows of each row ladder, or of each width rule where no ladder has two, ascending in shapes available."""
    rows = panel.rows
    by = "name" if rows.groupby(["file", "name"]).size().max() > 1 else "width"
    groups = rows.sort_values("shapes_available", kind="stable").groupby(["file", by], sort=False)
    return [group.index.to_numpy() for _, group in groups]


def draw_ladders(axes: Axes, panel: Panel, key: Key, x: Floats, y: Floats) -> Floats:
    """A line through the points of each ladder. Returns samples of them."""
    drawn = [np.zeros((0, 2))]
    for at in ladders(panel):
        known = at[~np.isnan(y[at])]
        axes.plot(x[known], y[known], ls=key.line(panel.words("file")[at[0]]), lw=0.6, color=style.FAINT, zorder=2)
        drawn.append(samples(axes, x[known], y[known]))
    return np.concatenate(drawn)


def names_of_ladders(axes: Axes, panel: Panel, x: Floats, y: Floats, but: Marks) -> list[labels.Label]:
    """The name of each ladder that has no point among `but`, at the one of its points that has most room."""
    room = _room(axes, x, y)
    at = np.array([some[np.argmax(room[some])] for some in ladders(panel) if not but[some].any()], int)
    names = np.array(panel.words("name"))
    return labels_of(x[at], y[at], names[at].tolist(), color=style.SOFT, toward=0)


def _room(axes: Axes, x: Floats, y: Floats) -> Floats:
    """How far each point is from the nearest that is elsewhere, in pixels; -1 of one that is nowhere."""
    pixels = axes.transData.transform(np.stack((x, y), axis=1))
    apart = np.hypot(*(pixels[:, None] - pixels[None]).transpose(2, 0, 1))
    room = np.where((apart < 1) | np.isnan(apart), np.inf, apart).min(axis=1)
    return np.where(np.isnan(y), -1.0, room)


def limits(values: Sequence[Floats], budget: float, *, beyond: float = 2.0) -> tuple[float, float]:
    """The ends of a logarithmic axis that shows all of `values` and a budget."""
    known = np.concatenate([some[~np.isnan(some)] for some in values])
    return min(float(known.min()), budget) / 1.5, max(float(known.max()), budget) * beyond
