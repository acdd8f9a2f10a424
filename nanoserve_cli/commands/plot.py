"""`nanoserve plot`: results as a figure, and the same facts as text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nanoserve_cli import options as opt
from nanoserve_cli.console import reported, say, show, warn
from nanoserve_cli.figures import KINDS

if TYPE_CHECKING:
    from pandas import DataFrame

    from nanoserve_cli.figures import Kind

_KNOWN = "; ".join(f"{name}: {kind.about}" for name, kind in KINDS.items())
_POLICY = "Grid of --kind steps"
_OPTION_OF = {
    "--budget-graphs": "budget_graphs",
    "--budget-mib": "budget_mib",
    "--total-waste": "metric",
    "--only": "results",
    "--max-batch": "policy",
    "--max-model-len": "policy",
    "--width-multiple": "policy",
    "--policy": "policy",
}
"""Which option of a figure each flag sets."""


def plot(
    context: typer.Context,
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="Results CSVs, drawn over one another; for --kind steps a steps.csv."),
    ] = None,
    kind: Annotated[str, typer.Option(metavar="KIND", help=f"{_KNOWN}.")] = "tradeoff",
    out: Annotated[
        Path | None,
        opt.in_panel(opt.OUTPUT, help="A .png, .svg or .pdf to write.", show_default="FILE-KIND.png, here"),
    ] = None,
    only: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only the runs whose traffic has this in its name.")
    ] = None,
    layout: Annotated[
        Literal["column", "slide"],
        opt.in_panel(opt.OUTPUT, help="3.5 inches wide, for a column of a paper, or 16:9, for a talk."),
    ] = "column",
    budget_graphs: opt.BudgetGraphs = None,
    budget_mib: opt.BudgetMib = None,
    total_waste: Annotated[
        bool, typer.Option("--total-waste", help="1 - live / padded cells in place of 1 - open / padded.")
    ] = False,
    max_batch: Annotated[
        int | None, opt.in_panel(_POLICY, help="The most rows.", show_default="the run's", min=1)
    ] = None,
    max_model_len: Annotated[
        int | None, opt.in_panel(_POLICY, help="The widest step.", show_default="the run's", min=1)
    ] = None,
    width_multiple: Annotated[
        int | None, opt.in_panel(_POLICY, help="Width buckets are its multiples.", show_default="128", min=1)
    ] = None,
    policy: Annotated[Path | None, opt.in_panel(_POLICY, "--policy", help="A shape policy in YAML instead.")] = None,
    quiet: opt.Quiet = False,
) -> None:
    """Draw results, and print the same facts as a table.

    The figure's corner says what the data are from. The same data give the same bytes.
    """
    with reported():
        from nanoserve_cli.figures import kind_named
        from nanoserve_cli.figures.style import LAYOUTS, check_suffix, save

        chosen, paths = kind_named(kind), files or []
        _check(kind, chosen, paths, opt.flags_given(context))
        target = _default_out(kind, paths) if out is None else out
        check_suffix(target)
        options: dict[str, Any] = {"metric": "total_waste"} if total_waste else {}
        options |= {} if budget_graphs is None else {"budget_graphs": budget_graphs}
        options |= {} if budget_mib is None else {"budget_mib": budget_mib}
        data: tuple[Any, ...] = ()
        titles: dict[str, str] = {}
        if chosen.takes == "results":
            data = (_results(paths, only),)
        elif chosen.takes == "steps":
            data, titles = _steps(paths[0], policy, max_batch, max_model_len, width_multiple)
        figure = chosen.draw(*data, **options, **titles, layout=LAYOUTS[layout])
        tables = chosen.facts(*data, **options)
        save(figure, target)
        for table in tables:
            show(table)
        say(f"figure in {target}", quiet=quiet)


def _check(name: str, kind: Kind, paths: list[Path], flags: dict[str, str | None]) -> None:
    """ValueError for files or flags that this kind of figure does not take."""
    if kind.takes == "nothing" and paths:
        raise ValueError(f"--kind {name} takes no FILE: it is drawn from a run of its own, and {paths[0]} is one")
    if kind.takes == "steps" and len(paths) != 1:
        raise ValueError(
            f"--kind {name} takes one steps.csv, as `nanoserve bench --out DIR` writes it: {_given(paths)}"
        )
    if kind.takes == "results" and not paths:
        raise ValueError(f"--kind {name} needs a results CSV: `nanoserve sweep --out FILE.csv` writes one")
    for at, path in enumerate(paths):
        if path in paths[:at]:
            raise ValueError(f"{path} is given twice: it would be drawn over itself")
    for flag in flags:
        if (option := _OPTION_OF.get(flag)) is not None and option not in (*kind.options, kind.takes):
            of = ", ".join(other for other, known in KINDS.items() if option in (*known.options, known.takes))
            raise ValueError(f"{flag} does nothing for --kind {name}: it is of {of}")


def _given(paths: list[Path]) -> str:
    return f"{len(paths)} were given" if paths else "none was given"


def _default_out(kind: str, paths: list[Path]) -> Path:
    """Here, named for the files and the kind: a figure of other files is another file."""
    stems = [path.stem for path in paths]
    names = stems if len(stems) <= 3 else [*stems[:2], f"{len(stems) - 2}-more"]
    return Path(f"{'-'.join([*names, kind])}.png")


def _results(paths: list[Path], only: str | None) -> dict[str, DataFrame]:
    """Results by the name of their file, or by its path where two have the same; of `only` some of the traffic."""
    from nanoserve_cli.csv_file import read_results

    stems = [path.stem for path in paths]
    found = {}
    for path, stem in zip(paths, stems, strict=True):
        frame = read_results(path)
        if cut := frame.attrs["cut"]:
            warn(f"{path}: {cut} lines cut short were left out")
        if only is not None:
            named = frame["workload"].str.contains(only, regex=False).fillna(False)
            if not named.any():
                raise ValueError(f"{path}: no run has {only!r} in its name: {', '.join(frame['workload'].unique())}")
            frame = frame[named].reset_index(drop=True)
        found[stem if stems.count(stem) == 1 else str(path)] = frame
    return found


def _steps(
    path: Path, policy: Path | None, max_batch: int | None, max_model_len: int | None, width_multiple: int | None
) -> tuple[tuple[Any, Any], dict[str, str]]:
    """A run's steps and the policy whose grid is drawn, whose limits are the run's where none are given."""
    from nanoserve_cli.policy_file import chosen_policy
    from nanoserve_cli.steps_file import read_recorded

    recorded = read_recorded(path)
    steps = recorded.steps
    most, widest = recorded.limits or (int(steps.rows.max()), int((steps.width + steps.steps - 1).max()))
    if policy is None:
        max_batch = most if max_batch is None else max_batch
    chosen = chosen_policy(
        policy,
        max_batch_size=max_batch,
        max_model_len=max_model_len,
        width_multiple=width_multiple,
        default_max_model_len=widest,
    )
    return (steps, chosen), {"traffic": recorded.traffic, "source": recorded.source}
