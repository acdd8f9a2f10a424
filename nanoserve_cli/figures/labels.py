"""Labels beside points, none over another: tried at many offsets, measured with the renderer, led by a line when far.

Deterministic: the same points give the same offsets, which are in points and so hold for every format.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from nanoserve_cli.figures.style import INK, SMALL, renderer_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation

Floats = NDArray[np.float64]
Marks = NDArray[np.bool_]

GID = "label"
"""By which a label is known among a figure's artists."""

DIRECTIONS = 24
GAPS = (3.0, 5.0, 8.0, 12.0, 16.0, 21.0, 27.0, 34.0, 42.0, 52.0, 64.0, 78.0, 94.0, 112.0, 132.0)
"""Points between an anchor and its label."""
LED_FROM = 6.0
"""A label farther than this has a leader line."""
CLEARANCE = 1.0
"""Points around a label in which no other may be."""
PASSES = 6
ORDERS = 48
"""Orders in which the labels choose, of which the cheapest outcome is taken."""
CONSIDERED = 120
"""Places of a label that are weighed against the others', the cheapest by themselves; all where one finds no room."""
# What a blemish costs, in points of distance.
LINE_UNDER = 2.0  # each sample of a line under a label
MARKER_UNDER = 60.0
NEARER = 25.0  # each marker nearer to a label than its own
NEARER_THOUGH_LED = 3.0  # the same where a leader tells
LEADER_OVER_MARKER = 25.0
LEADER_OVER_LINE = 0.5
LEADER_OVER_LABEL = 60.0
LEADER_OVER_LEADER = 45.0
ASTRAY = 4.0  # a label on the other side than it likes: twice this
HOMELESS = 1000.0


@dataclass(frozen=True)
class Label:
    """A text for the point `(x, y)` in data coordinates. `toward` is the direction it likes, in degrees."""

    text: str
    x: float
    y: float
    color: str = INK
    size: float = SMALL
    weight: str = "normal"
    toward: float | None = None


def place(
    axes: Axes, labels: Sequence[Label], *, markers: Floats, lines: Floats, taken: Sequence[Floats] = ()
) -> list[Annotation]:
    """Writes `labels` into `axes` and returns those there was room for, in their order.

    `markers` (n x 2, data) are kept free where that is cheap, `lines` (n x 2, data: samples of what is drawn) where it
    is cheaper; `taken` are boxes `(x0, y0, x1, y1)` in pixels that no label may touch. Call it when the axes have their
    place and limits.
    """
    frame = _Frame(axes)
    there, drawn = frame.of_data(markers), frame.of_data(lines)
    boxes = [frame.of_pixels(np.asarray(box).reshape(2, 2)).ravel() for box in taken]
    for considered in (CONSIDERED, DIRECTIONS * len(GAPS)):
        ways = [_Ways(frame, label, there, drawn, boxes, considered) for label in labels]
        chosen = _cheapest(ways)
        if None not in chosen:
            break
    return [
        _annotate(axes, label, way, at) for label, way, at in zip(labels, ways, chosen, strict=True) if at is not None
    ]


def _cheapest(ways: Sequence[_Ways]) -> list[int | None]:
    """The best of several outcomes, each of another order in which the labels choose; the same orders every time."""
    shuffled = np.random.default_rng(0)
    orders = [np.arange(len(ways)), *(shuffled.permutation(len(ways)) for _ in range(ORDERS - 1))]
    _, chosen = min((_settled(ways, order.tolist()) for order in orders), key=lambda found: round(found[0], 3))
    return chosen


class _Frame:
    """Points from the lower left corner of some axes."""

    def __init__(self, axes: Axes) -> None:
        box = axes.get_window_extent()
        self.axes = axes
        self.per_pixel = 72 / axes.figure.dpi
        self.corner = np.array([box.x0, box.y0])
        self.bounds = np.array([box.width, box.height]) * self.per_pixel

    def of_pixels(self, pixels: Floats) -> Floats:
        return np.asarray((pixels - self.corner) * self.per_pixel, float)

    def of_data(self, values: Floats) -> Floats:
        return self.of_pixels(self.axes.transData.transform(np.asarray(values, float).reshape(-1, 2)))

    def size_of(self, label: Label) -> Floats:
        text = self.axes.text(0, 0, label.text, size=label.size, weight=label.weight, va="bottom")
        box = text.get_window_extent(renderer_of(self.axes.figure))
        text.remove()
        return np.array([box.width, box.height]) * self.per_pixel


class _Ways:
    """Every place that one label could have: its box, the end of its leader, and what it costs by itself."""

    def __init__(
        self, frame: _Frame, label: Label, markers: Floats, lines: Floats, taken: Sequence[Floats], considered: int
    ) -> None:
        angle, gap = (a.ravel() for a in np.meshgrid(np.arange(DIRECTIONS) * (2 * np.pi / DIRECTIONS), GAPS))
        unit = np.stack((np.cos(angle), np.sin(angle)), axis=1)
        half = frame.size_of(label) / 2
        self.anchor = frame.of_data(np.array([label.x, label.y]))[0]
        centre = self.anchor + gap[:, None] * unit + np.clip(unit * 1.5, -1, 1) * half
        boxes = np.hstack((centre - half, centre + half))
        free = (boxes[:, :2] >= 0.5).all(axis=1) & (boxes[:, 2:] <= frame.bounds - 0.5).all(axis=1)
        for box in taken:
            free &= ~_overlap(boxes, box)
        boxes, gap, angle = boxes[free], gap[free], angle[free]
        cost = gap + LINE_UNDER * _covered(boxes, lines, 0.5) + MARKER_UNDER * _covered(boxes, markers, 1.5)
        others = markers[np.abs(markers - self.anchor).max(axis=1, initial=0) >= 0.5]
        nearer = (_apart(boxes, others) < gap[:, None] + 0.5).sum(axis=1)
        cost += np.where(gap > LED_FROM, NEARER_THOUGH_LED, NEARER) * nearer
        if label.toward is not None:
            cost += ASTRAY * (1 - np.cos(angle - math.radians(label.toward)))
        kept = np.argsort(np.round(cost, 6), kind="stable")[:considered]
        self.boxes, self.cost, self.led = boxes[kept], cost[kept], gap[kept] > LED_FROM
        self.ends = np.clip(self.anchor, self.boxes[:, :2], self.boxes[:, 2:])
        self.leaders = self.anchor + np.linspace(0.1, 1, 12)[None, :, None] * (self.ends - self.anchor)[:, None]
        self.cost += self.led * LEADER_OVER_MARKER * _passed(self.leaders, others, 1.8)
        self.cost += self.led * LEADER_OVER_LINE * _passed(self.leaders, lines, 1.0)
        self._beside: dict[tuple[int, int], Floats] = {}

    def beside(self, other: _Ways, at: int) -> Floats:
        """What each place costs more where `other` has its place `at`: infinity where the two would overlap."""
        if (id(other), at) not in self._beside:
            self._beside[id(other), at] = self._weigh(other, at)
        return self._beside[id(other), at]

    def _weigh(self, other: _Ways, at: int) -> Floats:
        box, end = other.boxes[at], other.ends[at]
        cost = np.where(_overlap(self.boxes, box), np.inf, 0.0)
        under = ((self.leaders > box[:2] - 0.5) & (self.leaders < box[2:] + 0.5)).all(axis=2).any(axis=1)
        cost += LEADER_OVER_LABEL * (self.led & under)
        if other.led[at]:
            cost += LEADER_OVER_LABEL * (_covered(self.boxes, other.leaders[at], 0.5) > 0)
            cost += LEADER_OVER_LEADER * (self.led & _crossing(self.anchor, self.ends, other.anchor, end))
        return cost


def _settled(ways: Sequence[_Ways], order: Sequence[int]) -> tuple[float, list[int | None]]:
    """Places chosen one label after the other, and again beside the others' choices. Returns their cost and them."""
    chosen: list[int | None] = [None] * len(ways)
    costs = [HOMELESS] * len(ways)
    for _ in range(PASSES):
        before = list(chosen)
        for index in order:
            cost = ways[index].cost.copy()
            for other, at in enumerate(chosen):
                if other != index and at is not None:
                    cost += ways[index].beside(ways[other], at)
            best = int(np.argmin(np.round(cost, 6))) if cost.size else 0
            homed = cost.size > 0 and bool(np.isfinite(cost[best]))
            chosen[index], costs[index] = (best, float(cost[best])) if homed else (None, HOMELESS)
        if chosen == before:
            break
    return sum(costs), chosen


def _annotate(axes: Axes, label: Label, way: _Ways, at: int) -> Annotation:
    box, end = way.boxes[at], way.ends[at]
    offset = box[:2] - way.anchor
    arrow = {
        "arrowstyle": "-",
        "linewidth": 0.4,
        "color": label.color,
        "shrinkA": 0.3,
        "shrinkB": 1.5,
        "relpos": tuple(((end - box[:2]) / (box[2:] - box[:2])).tolist()),
    }
    annotation = axes.annotate(
        label.text,
        xy=(label.x, label.y),
        xytext=(float(offset[0]), float(offset[1])),
        textcoords="offset points",
        ha="left",
        va="bottom",
        size=label.size,
        weight=label.weight,
        color=label.color,
        arrowprops=arrow if way.led[at] else None,
        bbox={"boxstyle": "square,pad=0.02", "facecolor": "white", "edgecolor": "none", "alpha": 0.75},
        zorder=6,
    )
    annotation.set_gid(GID)
    return annotation


def _overlap(boxes: Floats, other: Floats) -> Marks:
    return np.asarray(
        (boxes[:, 0] < other[2] + CLEARANCE)
        & (boxes[:, 2] > other[0] - CLEARANCE)
        & (boxes[:, 1] < other[3] + CLEARANCE)
        & (boxes[:, 3] > other[1] - CLEARANCE)
    )


def _apart(boxes: Floats, points: Floats) -> Floats:
    """The distance of each box from each point, `(boxes, points)`."""
    across = [
        np.maximum(boxes[:, axis, None] - points[None, :, axis], points[None, :, axis] - boxes[:, axis + 2, None])
        for axis in (0, 1)
    ]
    return np.asarray(np.hypot(*(np.maximum(distance, 0) for distance in across)))


def _covered(boxes: Floats, points: Floats, around: float) -> NDArray[np.int64]:
    """How many of `points` each box covers."""
    inside = np.ones((len(boxes), len(points)), bool)
    for axis in (0, 1):
        value = points[None, :, axis]
        inside &= (value > boxes[:, axis, None] - around) & (value < boxes[:, axis + 2, None] + around)
    return np.asarray(inside.sum(axis=1))


def _passed(leaders: Floats, points: Floats, around: float) -> NDArray[np.int64]:
    """How many of `points` each leader, `(n, samples, 2)`, comes near to."""
    near = np.ones((*leaders.shape[:2], len(points)), bool)
    for axis in (0, 1):
        near &= np.abs(leaders[:, :, None, axis] - points[None, None, :, axis]) < around
    return np.asarray(near.any(axis=1).sum(axis=1))


def _crossing(start: Floats, ends: Floats, other_start: Floats, other_end: Floats) -> Marks:
    """Whether each segment from `start` to one of `ends` crosses the other segment."""

    def side(a: Floats, b: Floats, c: Floats) -> Floats:
        return np.asarray(
            (b[..., 0] - a[..., 0]) * (c[..., 1] - a[..., 1]) - (b[..., 1] - a[..., 1]) * (c[..., 0] - a[..., 0])
        )

    one = side(start, ends, other_start) * side(start, ends, other_end)
    two = side(other_start, other_end, start) * side(other_start, other_end, ends)
    return np.asarray((one < 0) & (two < 0))
