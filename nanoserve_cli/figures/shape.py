"""The idea in four panels, drawn from a run that was really planned: open, bucketed, the sink, and what a set costs."""

from __future__ import annotations

from importlib import metadata
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from nanoserve.buckets import DecodeBuckets, Shape
from nanoserve.gates import CAPTURE_LIMIT
from nanoserve_cli.figures import style
from nanoserve_cli.figures.scatter import BUDGET_LINE
from nanoserve_cli.figures.shape_run import BLOCK_SIZE, FREE, NUM_BLOCKS, POLICY, REQUESTS, Example, paddings, run
from nanoserve_cli.figures.waste import EDGE, PARTS
from nanoserve_cli.tables import simple_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table

SERVER = (256, 8192)
MULTIPLES = (128, 512, 2048, 8192)
"""The limits and the width multiples of the last panel."""
HEIGHTS = (1.6, 1.6, 1.34, 1.5)
ROW_LOOKS = ("#2b2b2b", "#8fb0cf", "#d3d3d3")
LOOKS = {column: look for column, _, look in PARTS}
TO_SINK = style.BUDGET


def draw(*, layout: style.Layout = style.COLUMN) -> Figure:
    """The four panels. The run is planned anew, and is the same every time."""
    example = run()
    words = f"{len(REQUESTS)} requests, planned by nanoserve {metadata.version('nanoserve')} and drawn from its plans"
    with style.applied():
        figure = style.new_figure(layout)
        margins = style.Margins(left=0.5)
        axes = style.add_panels(figure, layout, HEIGHTS, source=words, margins=margins)
        for draw_panel, ax in zip((_draw_open, _draw_bucketed, _draw_sink), axes, strict=False):
            draw_panel(ax, example)
        _draw_bill(axes[3])
    return figure


def _draw_open(ax: Axes, example: Example) -> None:
    """The outline of every step, and its corner, the later the darker."""
    shapes = example.open_shapes
    for shape in shapes:
        _outline(ax, shape, color="#c4c4c4", lw=0.4, gid="open")
    corners = np.array([(shape.width, shape.rows) for shape in shapes])
    ax.plot(corners[:, 0], corners[:, 1], lw=0.5, color=style.SOFT, zorder=3)
    shades = [str(0.8 - 0.8 * at / (len(shapes) - 1)) for at in range(len(shapes))]
    ax.scatter(
        corners[:, 0], corners[:, 1], s=5, c=shades, edgecolors=style.INK, linewidths=0.3, zorder=4, gid="corners"
    )
    _axes_of_rectangles(ax)
    style.title(
        ax, f"As it comes: {len(shapes)} steps, {len(set(shapes))} shapes", "each step's corner, the later the darker"
    )
    largest = max(shapes, key=attrgetter("cells"))
    for shape, words, offset, ha in (
        (shapes[0], "first", (-4, 0), "right"),
        (largest, "largest", (0, -7), "center"),
        (shapes[-1], "last", (4, 0), "left"),
    ):
        ax.annotate(
            f"{words} {shape}",
            xy=(shape.width, shape.rows),
            xytext=offset,
            textcoords="offset points",
            size=style.SMALL,
            ha=ha,
            va="center",
            bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"},
        )


def _draw_bucketed(ax: Axes, example: Example) -> None:
    """The shapes that the same steps ran as, and one step in its shape with its padding."""
    plan = example.shown
    rows, width = plan.batch_size, plan.width
    lengths = plan.context_snapshot[:rows].tolist()
    for row, length in enumerate(lengths):
        _cells_of(ax, "live_cells", row, 1, 0, length)
        _cells_of(ax, "ragged_padding", row, 1, length, width)
    _cells_of(ax, "width_padding", 0, rows, width, plan.graph_width)
    _cells_of(ax, "row_padding", rows, plan.pad_rows, 0, plan.graph_width)
    for shape in example.presented:
        look = {"lw": 1.4} if shape == plan.shape else {"lw": 0.6, "ls": (0, (3, 2))}
        _outline(ax, shape, color=style.ACCENT, gid="presented", zorder=3, **look)
    corners = np.array([(shape.width, shape.rows) for shape in example.presented])
    ax.scatter(corners[:, 0], corners[:, 1], s=14, color=style.ACCENT, zorder=4, clip_on=False, gid="corners")
    _axes_of_rectangles(ax)
    style.title(
        ax,
        f"Bucketed: the same {len(example.plans)} steps, {len(example.presented)} shapes",
        f"one step, {plan.open_shape} run as {plan.shape}; waste of the run {example.cost.waste:.0%}",
    )
    shortest = lengths.index(min(lengths))
    _name_part(ax, lengths[shortest] / 2, shortest + 0.5, "live")
    _name_part(ax, (lengths[shortest] + width) / 2, shortest + 0.5, "ragged")
    _name_part(ax, (width + plan.graph_width) / 2, rows / 2, "width\npadding")
    _name_part(ax, plan.graph_width / 2, rows + plan.pad_rows / 2, "row padding")


def _name_part(ax: Axes, x: float, y: float, words: str) -> None:
    box = {"boxstyle": "square,pad=0.12", "facecolor": "white", "edgecolor": "none", "alpha": 0.9}
    ax.text(x, y, words, size=style.TINY + 0.5, ha="center", va="center", linespacing=1.0, bbox=box, zorder=5)


def _outline(ax: Axes, shape: Shape, **look: Any) -> None:
    from matplotlib.patches import Rectangle

    ax.add_patch(Rectangle((0, 0), shape.width, shape.rows, fill=False, **look))


def _cells_of(ax: Axes, part: str, row: int, rows: int, left: int, right: int) -> None:
    """Cells of one part, as waste's bars have it."""
    from matplotlib.patches import Rectangle

    if rows and right > left:
        ax.add_patch(Rectangle((left, row), right - left, rows, gid=part, **LOOKS[part], **EDGE))


def _axes_of_rectangles(ax: Axes) -> None:
    """Columns to the right, rows downwards, as in the step's matrix."""
    ax.set_xlim(0, POLICY.max_model_len)
    ax.set_ylim(POLICY.max_batch_size + 0.4, 0)
    ax.set_xticks((0, *POLICY.widths))
    ax.set_yticks(POLICY.rows)
    ax.set_xlabel("width (KV columns a row)")
    ax.set_ylabel("rows")


def _draw_sink(ax: Axes, example: Example) -> None:
    """The pool's blocks and the sink past the last; where each row of the shown step writes, and what it reads."""
    plan = example.shown
    slots = NUM_BLOCKS * BLOCK_SIZE
    sink = (slots + 0.03 * slots, slots + 0.13 * slots)
    _draw_pool(ax, example, sink)
    for row, x in enumerate((np.linspace(0.09, 0.8, plan.graph_rows) * slots).tolist()):
        is_padded = row >= plan.batch_size
        color, fill = (TO_SINK, "white") if is_padded else (style.ACCENT, ROW_LOOKS[row])
        write, length = int(plan.write_snapshot[row]), int(plan.context_snapshot[row])
        words = f"{'padded ' * is_padded}row {row}\nreads {length or 'nothing'}\nwrites slot {write}"
        target = sum(sink) / 2 if write == plan.sink_slot else write + 0.5
        _draw_row(ax, words, (x, 2.75), (target, 1.03), color, fill)
        if not length:
            _point_at_nothing(ax, (x, 2.75), (sum(sink) / 2, 2.75))
    ax.set_xlim(0, sink[1])
    ax.set_ylim(0.4, 3.45)
    ax.axis("off")
    style.title(
        ax,
        "Padding is inert: it reads nothing and writes the sink",
        f"shade: whose block; the sink is slot {plan.sink_slot}, one past the last of {NUM_BLOCKS} blocks",
    )


def _draw_pool(ax: Axes, example: Example, sink: tuple[float, float]) -> None:
    from matplotlib.patches import Rectangle

    last = NUM_BLOCKS * BLOCK_SIZE
    for block, owner in enumerate(example.owners.tolist()):
        color = "white" if owner == FREE else ROW_LOOKS[owner]
        block_look: style.Look = {"facecolor": color, "edgecolor": style.SOFT, "linewidth": 0.4, "clip_on": False}
        ax.add_patch(Rectangle((block * BLOCK_SIZE, 0), BLOCK_SIZE, 1, gid="block", **block_look))
    look: style.Look = {
        "facecolor": "white",
        "edgecolor": TO_SINK,
        "linewidth": 1.0,
        "hatch": ".....",
        "clip_on": False,
    }
    ax.add_patch(Rectangle((sink[0], 0), sink[1] - sink[0], 1, gid="sink", **look))
    for x, words, color, ha in (
        (0, "slot 0", style.SOFT, "left"),
        (last, f"{last - 1}", style.SOFT, "right"),
        (sum(sink) / 2, f"{example.shown.sink_slot}", TO_SINK, "center"),
    ):
        ax.text(x, -0.12, words, size=style.SMALL, color=color, ha=ha, va="top")


ARROW: style.Look = {"arrowstyle": "-|>", "linewidth": 0.9, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 6}


def _draw_row(
    ax: Axes, words: str, place: tuple[float, float], target: tuple[float, float], color: str, fill: str
) -> None:
    """One row of the step in words, with an arrow to the slot it writes."""
    ax.annotate(
        words,
        xy=target,
        xytext=place,
        size=style.TINY + 0.5,
        color="white" if fill == ROW_LOOKS[0] else style.INK,
        ha="center",
        va="center",
        linespacing=1.15,
        bbox={"boxstyle": "round,pad=0.25", "facecolor": fill, "edgecolor": color, "linewidth": 0.9},
        arrowprops={**ARROW, "color": color, "relpos": (0.5, 0)},
        zorder=3,
        gid="row",
    )


def _point_at_nothing(ax: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Where a row of length 0 reads."""
    look = ARROW | {"color": TO_SINK, "linestyle": (0, (2, 1.5)), "shrinkB": 5}
    ax.annotate("", xy=end, xytext=start, arrowprops=look, zorder=2)
    ax.text(*end, "\N{EMPTY SET}", size=style.TEXT + 2, color=TO_SINK, ha="center", va="center", gid="nothing")


def _draw_bill(ax: Axes) -> None:
    """Row buckets times width buckets at several multiples, and where a capture list becomes a compile bill."""
    policies = [DecodeBuckets(*SERVER, width_multiple=multiple) for multiple in MULTIPLES]
    counts = [policy.count for policy in policies]
    places = np.arange(len(policies))
    over = [count > CAPTURE_LIMIT for count in counts]
    for place, policy, is_over in zip(places.tolist(), policies, over, strict=True):
        look = LOOKS["width_padding"] if is_over else LOOKS["live_cells"]
        ax.barh([place], [policy.count], left=0, height=0.62, **look, **EDGE)
        ax.annotate(
            f"{len(policy.rows)} x {len(policy.widths)} = {policy.count}",
            xy=(policy.count, place),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            size=style.SMALL,
            bbox={"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"},
        )
    style.counts_axis(ax, 1, 6000, "shapes = row buckets x width buckets")
    ax.axvline(CAPTURE_LIMIT, gid="budget", **BUDGET_LINE)
    ax.annotate(
        f"{CAPTURE_LIMIT} graphs: beyond, a compile bill",
        xy=(CAPTURE_LIMIT, 1),
        xycoords=("data", "axes fraction"),
        xytext=(2, -1),
        textcoords="offset points",
        va="top",
        size=style.SMALL,
        color=style.BUDGET,
    )
    ax.set_yticks(places, [f"{multiple:,}" for multiple in MULTIPLES])
    ax.set_ylim(len(policies) - 0.5, -1.1)
    ax.set_ylabel("width multiple")
    style.title(ax, "A closed set is a product", f"up to {SERVER[0]} rows x {SERVER[1]:,} columns")


def facts() -> list[Table]:
    """The numbers of the four panels."""
    example = run()
    plan, cost = example.shown, example.cost
    ragged, width, row = paddings(plan)
    lines = [
        ("as it comes", f"{cost.steps} steps, {cost.open_shapes} shapes"),
        ("bucketed", f"{cost.shapes_used} used of {cost.shapes_available}, waste {cost.waste:.1%}"),
        ("one step", f"{plan.open_shape} run as {plan.shape}"),
        ("  its cells", f"{plan.live_cells} live, {ragged} ragged, {width} width, {row} row padding"),
        ("  its padded rows", f"{plan.pad_rows}, read nothing, write slot {plan.sink_slot}"),
        ("the pool", f"{NUM_BLOCKS} blocks of {BLOCK_SIZE}: slots 0 to {plan.sink_slot - 1}, then the sink"),
    ]
    policies = [DecodeBuckets(*SERVER, width_multiple=multiple) for multiple in MULTIPLES]
    products = [
        (
            f"{multiple:,}",
            f"{len(policy.rows)} x {len(policy.widths)} = {policy.count}",
            "over" if policy.count > CAPTURE_LIMIT else "within",
        )
        for multiple, policy in zip(MULTIPLES, policies, strict=True)
    ]
    title = f"Up to {SERVER[0]} rows x {SERVER[1]:,} columns"
    columns = ("width\nmultiple", "row x width buckets\n= shapes", f"{CAPTURE_LIMIT}\ngraphs")
    return [simple_table("One run", ("", ""), lines), simple_table(title, columns, products)]
