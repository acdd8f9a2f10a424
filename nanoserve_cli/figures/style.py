"""How every figure looks: sizes in inches, greys that survive a photocopier, and files with the same bytes twice.

Nothing here is global: `applied` sets matplotlib's parameters while a figure is made or written and puts them back.
"""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from nanoserve_cli.csv_file import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, SOFT, FAINT = "#1a1a1a", "#6e6e6e", "#b4b4b4"
ACCENT = "#08519c"
BUDGET = "#a50f15"
TEXT, SMALL, TINY = 7.0, 6.0, 5.0
"""Font sizes in points: of titles and axes, of labels in a panel, of the source in the corner."""
DPI = 300
SUFFIXES = (".png", ".svg", ".pdf")
DOT = " · "

Look = dict[str, Any]
"""Keywords of an artist."""

_PARAMETERS: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": TEXT,
    "axes.titlesize": TEXT,
    "axes.labelsize": TEXT,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": SOFT,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.minor.size": 1.5,
    "ytick.minor.size": 1.5,
    "xtick.major.pad": 2,
    "ytick.major.pad": 2,
    "axes.labelpad": 2,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.4,
    "text.hinting": "none",  # or a text's width would depend on the resolution by more than its scale
    "figure.dpi": DPI,
    "savefig.dpi": DPI,
    "svg.hashsalt": "nanoserve",
    "pdf.fonttype": 42,
}
# What a format would write by itself that differs between two runs or two installations.
_METADATA: dict[str, dict[str, Any]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


@dataclass(frozen=True)
class Layout:
    """How wide a figure is, in inches, and how many panels stand side by side in it."""

    width: float
    columns: int
    least_height: float


LAYOUTS = {"column": Layout(3.5, 1, 0.0), "slide": Layout(7.2, 2, 4.05)}
"""A column of a paper, panels below one another; or a 16:9 slide, panels beside one another."""
COLUMN = LAYOUTS["column"]


@dataclass(frozen=True)
class Margins:
    """Inches around the axes of a panel."""

    left: float = 0.48
    right: float = 0.08
    top: float = 0.36
    bottom: float = 0.34


@contextmanager
def applied() -> Iterator[None]:
    """Matplotlib's defaults with ours on top, whatever the user's own file of parameters says, for a while."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        # A name in a script that the font lacks is drawn as boxes; the table beside the figure has it whole.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(cast(Any, _PARAMETERS))
        yield


def new_figure(layout: Layout) -> Figure:
    """A figure of the layout's width, of no height yet, with a canvas of its own."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(layout.width, 1.0))
    FigureCanvasAgg(figure)
    return figure


def add_panels(
    figure: Figure,
    layout: Layout,
    heights: Sequence[float],
    *,
    source: str,
    margins: Margins | None = None,
    legend: Sequence[Sequence[Any]] = (),
    is_stretched: bool = True,
) -> list[Axes]:
    """Axes below a legend and above the source, `heights` inches each with their margins; sets the figure's height.

    In a layout of several columns a row is as high as its highest panel. A figure lower than the layout's least height
    grows to it: its panels do, or where they are not stretched, the space below them.
    """
    margins = margins or Margins()
    columns = min(layout.columns, len(heights))
    rows = [max(heights[at : at + columns]) for at in range(0, len(heights), columns)]
    above = _add_legend(figure, legend) if legend else 0.03
    below = _add_source(figure, source)
    total = max(layout.least_height, above + below + sum(rows))
    growth = (total - above - below) / sum(rows) if is_stretched else 1.0
    figure.set_size_inches(layout.width, total)
    panel_width = layout.width / columns
    axes = []
    for at, height in enumerate(heights):
        row, column = divmod(at, columns)
        own = growth * (rows[row] if is_stretched else height)
        top = total - above - growth * sum(rows[:row])
        box = (
            (column * panel_width + margins.left) / layout.width,
            (top - own + margins.bottom) / total,
            (panel_width - margins.left - margins.right) / layout.width,
            (own - margins.bottom - margins.top) / total,
        )
        axes.append(figure.add_axes(box))
    return axes


def _add_legend(figure: Figure, rows: Sequence[Sequence[Any]]) -> float:
    """Legend entries in the rows they are given, a row broken where it is wider than the figure. Returns the inches."""
    from matplotlib.transforms import ScaledTranslation

    taken = 0.04
    waiting = [list(row) for row in rows if row]
    while waiting:
        row = waiting.pop(0)
        legend = figure.legend(
            handles=row,
            loc="upper left",
            bbox_to_anchor=(0.0, 1.0),
            ncols=len(row),
            frameon=False,
            borderaxespad=0,
            borderpad=0,
            handlelength=1.6,
            handletextpad=0.5,
            columnspacing=1.2,
        )
        box = legend.get_window_extent(renderer_of(figure))
        if len(row) > 1 and box.width / figure.dpi > figure.get_size_inches()[0] - 0.1:
            legend.remove()
            half = -(-len(row) // 2)
            waiting[:0] = [row[:half], row[half:]]
            continue
        corner = ScaledTranslation(0.05, -taken, figure.dpi_scale_trans)
        legend.set_bbox_to_anchor((0.0, 1.0), transform=figure.transFigure + corner)
        taken += float(box.height / figure.dpi) + 0.03
    return taken


def _add_source(figure: Figure, source: str) -> float:
    """Where the data are from, in the lower left corner. Returns the height it takes in inches."""
    from matplotlib.transforms import ScaledTranslation

    width = figure.get_size_inches()[0]
    lines = textwrap.wrap(source, int(width * 72 / (0.58 * TINY)))
    corner = ScaledTranslation(0.05, 0.05, figure.dpi_scale_trans)
    text = figure.text(0, 0, "\n".join(lines), size=TINY, color=SOFT, va="bottom", transform=corner, linespacing=1.15)
    text.set_gid("source")
    return 0.07 + len(lines) * TINY * 1.25 / 72


def renderer_of(figure: Any) -> Any:
    """What measures texts: the figure's own canvas."""
    return figure.canvas.get_renderer()


def width_of(figure: Figure, texts: Sequence[str], **font: Any) -> float:
    """The width in inches of the widest of `texts`; 0 of none."""
    renderer = renderer_of(figure)
    widest = 0.0
    for words in texts:
        text = figure.text(0, 0, words, **font)
        widest = max(widest, float(text.get_window_extent(renderer).width) / figure.dpi)
        text.remove()
    return widest


def save(figure: Figure, path: Path) -> None:
    """Writes a figure as its suffix says: the same figure gives the same bytes, and half a file is never there.

    Raises ValueError for another suffix than .png, .svg or .pdf, OSError where the file cannot be written.
    """
    suffix = check_suffix(path)
    content = io.BytesIO()
    with applied():
        figure.savefig(content, format=suffix[1:], metadata=_METADATA[suffix])
    try:
        write_atomically(path, content.getvalue())
    except OSError as error:
        raise OSError(f"{path}: cannot be written: {error.strerror or error}") from None


def check_suffix(path: Path) -> str:
    """The lower-case suffix of a figure's file; ValueError for one that no figure is written as."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{path}: a figure is written as {', '.join(SUFFIXES)}, not {suffix or 'a name without one'}")
    return suffix


def title(axes: Axes, text: str, below: str = "", *, lift: float = 0.0, beyond: float = Margins.right) -> None:
    """A panel's title at its left, a line of what it is of below it, both `lift` points up from the axes.

    Each is cut at a word where it would end more than `beyond` inches to the right of the axes.
    """
    lift += 3.0
    first = lift + 7.5 if below else lift
    room = axes.get_window_extent().width / axes.figure.dpi + beyond
    for words, size, weight, color, up in ((text, TEXT, "bold", INK, first), (below, SMALL, "normal", SOFT, lift)):
        axes.annotate(
            _cut(axes.figure, words, room, size=size, weight=weight),
            xy=(0, 1),
            xycoords="axes fraction",
            xytext=(0, up),
            textcoords="offset points",
            size=size,
            weight=weight,
            color=color,
        )


def _cut(figure: Any, text: str, room: float, **font: Any) -> str:
    """A text, or as many of its words as `room` inches have place for, and an ellipsis."""
    words = text.split(" ")
    kept = text
    while width_of(figure, [kept], **font) > room and len(words) > 1:
        words.pop()
        kept = f"{' '.join(words)} ..."
    return kept


def counts_axis(axes: Axes, low: float, high: float, label: str) -> None:
    """A logarithmic x axis of counts, with plain numbers on it."""
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    ticks_of_counts(axes.xaxis, 1.7 if high / low < 60 else 3.0, low, high)
    axes.set_xlabel(label)


def ticks_of_counts(axis: Any, least_ratio: float, low: float, high: float) -> None:
    """Plain numbers on a logarithmic axis: 1, 2, 5, 10, ... or 1, 3, 10, ... where they would stand too close."""
    from matplotlib.ticker import FixedLocator, NullFormatter

    steps = (1, 2, 5) if least_ratio < 2 else (1, 3)
    marks = [step * 10**power for power in range(-3, 13) for step in steps]
    axis.set_major_locator(FixedLocator([mark for mark in marks if low <= mark <= high]))
    plain_numbers(axis)
    axis.set_minor_formatter(NullFormatter())


def plain_numbers(axis: Any) -> None:
    """Numbers as they are, thousands apart, never times a power of ten."""
    from matplotlib.ticker import FuncFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))


def percent_axis(axes: Axes, values: Any, label: str) -> None:
    """A y axis of shares as percent, from 0 to a little above `values`; from below them where all are far from 0."""
    least, most = float(min(values)), max(0.02, float(max(values)))
    axes.set_ylim(
        0 if least < most / 2 else least - 0.35 * (most - least) - 0.01, most + 0.08 * min(most, most - least + 0.1)
    )
    as_percent(axes.yaxis)
    axes.set_ylabel(label)


def as_percent(axis: Any) -> None:
    """Shares as percent on an axis."""
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
