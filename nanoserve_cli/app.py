"""The command `nanoserve`: wiring only."""

from __future__ import annotations

from typing import Annotated

import typer

from nanoserve_cli.commands.bench import bench
from nanoserve_cli.commands.capture import capture
from nanoserve_cli.commands.check import check
from nanoserve_cli.commands.compare import compare
from nanoserve_cli.commands.doctor import doctor
from nanoserve_cli.commands.fetch import fetch
from nanoserve_cli.commands.generate import generate
from nanoserve_cli.commands.init import init
from nanoserve_cli.commands.plot import plot
from nanoserve_cli.commands.sweep import sweep
from nanoserve_cli.commands.tune import tune
from nanoserve_cli.console import EXIT_CODES, EXIT_INTERRUPTED
from nanoserve_cli.options import Command

app = typer.Typer(
    name="nanoserve",
    help="Which shapes may a decode step present, and what does that choice cost?",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (bench, sweep, tune, plot, compare, check, init, capture, fetch, generate, doctor):
    app.command(cls=Command, epilog=EXIT_CODES)(command)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"nanoserve {version('nanoserve')}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Which shapes may a decode step present, and what does that choice cost?"""


def main() -> None:
    """The console script."""
    try:
        app()
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None
