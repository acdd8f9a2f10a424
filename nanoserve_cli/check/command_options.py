"""The options of a workload that is a command: read by that command's own parser, so that the two cannot differ."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import typer

from nanoserve_cli.check.workloads import BudgetError
from nanoserve_cli.yaml_file import check_keys


def parsed(
    kind: str, command: Callable[..., None], options: Mapping[str, Any], not_options: Collection[str]
) -> typer.Context:
    """A command's context for `options`: its flags without dashes, a list for what takes one. Raises BudgetError.

    `not_options` are parameters that say what becomes of a result, which `check` decides.
    """
    alone = typer.Typer(add_completion=False)
    alone.command()(command)
    parser: Any = typer.main.get_command(alone)
    flags = {
        parameter.opts[0].removeprefix("--").replace("-", "_"): parameter
        for parameter in parser.params
        if parameter.name not in not_options
    }
    check_keys(options, flags, kind, BudgetError)
    arguments = []
    for key, value in options.items():
        flag = flags[key].opts[0]
        if flags[key].is_flag:
            if not isinstance(value, bool):
                raise BudgetError(f"{kind}: {key} takes true or false, got {value!r}")
            arguments += [flag] * value
        else:
            arguments.append(f"{flag}={_text(kind, key, value)}")
    try:
        context: typer.Context = parser.make_context(kind, arguments)
    except typer.BadParameter as error:
        raise BudgetError(f"{kind}: {' '.join(error.format_message().split())}") from None
    return context


def _text(kind: str, key: str, value: Any) -> str:
    entries = value if isinstance(value, list) else [value]
    if not entries or any(isinstance(entry, bool) or not isinstance(entry, str | int | float) for entry in entries):
        raise BudgetError(f"{kind}: {key} takes a value or a list of them, got {value!r}")
    return ",".join(map(str, entries))
