"""Figures of results: each kind a function from data to a matplotlib `Figure`, and one to the same facts as tables.

Nothing heavy is imported before a figure is drawn. From a notebook::

    from nanoserve_cli.csv_file import read_results
    from nanoserve_cli.figures import KINDS

    KINDS["tradeoff"].draw({"mine": read_results(path)}, budget_graphs=64)
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from nanoserve_cli.workload.errors import did_you_mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table


@dataclass(frozen=True)
class Kind:
    """One kind of figure: a module here with `draw` and `facts`, imported when it is used.

    Both take what `takes` says first: results as a mapping of names to DataFrames, or a run's steps and a policy, or
    nothing; then the keywords `options`. `draw` takes a `layout` too.
    """

    module: str
    about: str
    takes: Literal["results", "steps", "nothing"]
    options: tuple[str, ...] = ()

    def draw(self, *data: Any, **options: Any) -> Figure:
        """The figure. Raises ValueError where the data cannot make one."""
        figure: Figure = self._module().draw(*data, **options)
        return figure

    def facts(self, *data: Any, **options: Any) -> list[Table]:
        """The same facts as tables."""
        tables: list[Table] = self._module().facts(*data, **options)
        return tables

    def _module(self) -> Any:
        return import_module(f"nanoserve_cli.figures.{self.module}")


KINDS = {
    kind.module: kind
    for kind in (
        Kind("tradeoff", "shapes available against waste", "results", ("budget_graphs", "metric")),
        Kind("shape", "the idea in four panels", "nothing"),
        Kind("capture", "what a set costs to capture", "results", ("budget_graphs", "budget_mib")),
        Kind("waste", "what the padded cells are, a bar a policy", "results"),
        Kind("steps", "where the steps of a run fall", "steps", ("policy",)),
        Kind("pareto", "the policies that none beats", "results", ("budget_graphs", "metric")),
    )
}


def kind_named(name: str) -> Kind:
    """The kind of that name; ValueError that names the nearest, or all."""
    if name not in KINDS:
        raise ValueError(f"no figure is called {name!r}: {did_you_mean(name, KINDS)}")
    return KINDS[name]
