"""Results to draw: small traffic that is really simulated and priced, in files of the schema; and what to find in a
figure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.text import Annotation, Text

from nanoserve import ladders
from nanoserve.pricing import StepsIndex
from nanoserve.simulate import simulate
from nanoserve.step_time import FixedStep
from nanoserve.steps import Steps
from nanoserve.workload import Workload
from nanoserve_cli.columns import SCHEMA_VERSION
from nanoserve_cli.csv_file import read_results, write_rows
from nanoserve_cli.records import cost_columns
from nanoserve_cli.workload.synthetic import parse_length, synthetic_workload

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

Row = dict[str, Any]
LADDERS = tuple(ladders.ROW_LADDERS)
WIDTHS = ("multiple:128", "multiple:512", "multiple:2048", "multiple:8192")


@cache
def steps_of(seed: int = 0, max_batch: int = 64) -> Steps:
    """The decode steps of 150 drawn requests on the virtual clock."""
    drawn = synthetic_workload(
        150,
        request_rate=12.0,
        burstiness=0.5,
        prompt_len=parse_length("lognormal:900,1.0,6000"),
        output_len=parse_length("lognormal:120,0.8,900"),
        seed=seed,
    )
    return simulate(drawn, max_batch, step_time=FixedStep(25_000_000)).steps


@cache
def lockstep() -> Steps:
    """The seed's run: 3 rows of 16 tokens, 512 steps."""
    return simulate(Workload.lockstep(3, 16, 512), 8, step_time=FixedStep(25_000_000)).steps


def rows(
    rules: Sequence[str] = LADDERS,
    widths: Sequence[str] = WIDTHS,
    *,
    steps: Steps | None = None,
    max_batch: int = 64,
    max_model_len: int = 8192,
    **more: Any,
) -> list[Row]:
    """A row a policy as a sweep has it: incomplete lists come twice, completed and as they are."""
    index = StepsIndex(steps_of() if steps is None else steps)
    base = {
        "schema_version": SCHEMA_VERSION,
        "started_utc": "2026-03-04T05:06:07+00:00",
        "nanoserve_version": "0.1.0",
        "git_sha": "0123456789abcdef",
        "git_dirty": False,
        "seed": 0,
        "trace_key": "some-trace",
        "trace_sha256": "ab12cd34" * 8,
        "workload": "some-trace",
        "clock": "virtual",
        "step_time": "25",
    }
    found = []
    for rule in rules:
        for width in widths:
            limits = (max_batch, max_model_len)
            own, whole = ladders.capture_list(rule, width, *limits), ladders.completed(rule, width, *limits)
            settings = {"max_batch_size": max_batch, "max_model_len": max_model_len}
            settings |= {"rows_ladder": rule, "width_ladder": width}
            for policy, completed in ((whole, True), (own, False)):
                if completed or own.count != whole.count:
                    words = {"policy": policy.render(), "completed": completed}
                    found.append(base | settings | words | cost_columns(index.price(policy)) | more)
    return found


def read(folder: Path, some: Iterable[Row], name: str = "sweep") -> DataFrame:
    """Rows as `read_results` gives them back."""
    path = folder / f"{name}.csv"
    write_rows(path, list(some))
    return read_results(path)


def named(where: Figure | Axes, gid: str) -> Iterator[Any]:
    """Every artist that was drawn under that name, in the order it was added."""
    return (artist for artist in where.findobj(Artist) if artist.get_gid() == gid)


def offsets(where: Figure | Axes, gid: str = "points") -> list[tuple[float, float]]:
    """The places of all markers of that name, sorted."""
    pairs = [np.stack(line.get_data(), axis=1) for line in named(where, gid)]
    return sorted(map(tuple, np.concatenate(pairs).tolist()))


def box_of(text: Text) -> tuple[float, float, float, float]:
    """A text's own box in pixels, its leader left out."""
    figure: Any = text.figure
    renderer = figure.canvas.get_renderer()
    if isinstance(text, Annotation):
        text.update_positions(renderer)
    return tuple(Text.get_window_extent(text, renderer).extents.tolist())


def overlapping(boxes: Sequence[tuple[float, float, float, float]]) -> list[tuple[int, int]]:
    """The pairs of boxes that share more than an edge."""
    return [
        (i, j)
        for i, a in enumerate(boxes)
        for j, b in enumerate(boxes[:i])
        if a[0] < b[2] and a[2] > b[0] and a[1] < b[3] and a[3] > b[1]
    ]


def overhang(figure: Figure) -> float:
    """How many points anything drawn reaches beyond the figure's edges; at most 0 where all is inside."""
    box = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    return 72 * float(max(-box.x0, -box.y0, box.x1 - width, box.y1 - height))


def words_in(where: Figure | Axes) -> list[str]:
    """Every text that is not empty."""
    return [text.get_text() for text in where.findobj(Text) if text.get_text()]
