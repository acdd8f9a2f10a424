"""Figures of results: each kind a function from data to a matplotlib `Figure`, and one to the same facts as tables.

Nothing here imports matplotlib before a figure is drawn. From a notebook::

    from nanoserve_cli.csv_file import read_results
    from nanoserve_cli.figures import KINDS

    KINDS["tradeoff"].draw({"mine": read_results(path)}, budget_graphs=64)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from nanoserve_cli.figures import capture, pareto, shape, steps, tradeoff, waste
from nanoserve_cli.workload.errors import did_you_mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table


@dataclass(frozen=True)
class Kind:
    """One kind of figure.

    `draw` and `facts` take what `takes` says first: results as a mapping of names to DataFrames, or a run's steps and a
    policy, or nothing; then the keywords `options`. `draw` takes a `layout` too.
    """

    about: str
    takes: Literal["results", "steps", "nothing"]
    draw: Callable[..., Figure]
    facts: Callable[..., list[Table]]
    options: tuple[str, ...] = ()


KINDS = {
    "tradeoff": Kind(
        "shapes available against waste", "results", tradeoff.draw, tradeoff.facts, ("budget_graphs", "metric")
    ),
    "shape": Kind("the idea in four panels", "nothing", shape.draw, shape.facts),
    "capture": Kind(
        "what a set costs to capture", "results", capture.draw, capture.facts, ("budget_graphs", "budget_mib")
    ),
    "waste": Kind("what the padded cells are, a bar a policy", "results", waste.draw, waste.facts),
    "steps": Kind("where the steps of a run fall", "steps", steps.draw, steps.facts, ("policy",)),
    "pareto": Kind("the policies that none beats", "results", pareto.draw, pareto.facts, ("budget_graphs", "metric")),
}


def kind_named(name: str) -> Kind:
    """The kind of that name; ValueError that names the nearest, or all."""
    if name not in KINDS:
        raise ValueError(f"no figure is called {name!r}: {did_you_mean(name, KINDS)}")
    return KINDS[name]
