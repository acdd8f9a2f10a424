"""A first budget file: what a policy costs on some traffic today, as limits, with a comment beside every one."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nanoserve_cli.check import DEFAULT_FILE
from nanoserve_cli.check.budget_file import SCHEMA_VERSION
from nanoserve_cli.check.update import written_as
from nanoserve_cli.columns import COLUMNS
from nanoserve_cli.pricer import Priced, price_grid
from nanoserve_cli.records import cost_columns
from nanoserve_cli.sweep_spec import spec_of

METRICS = ("shapes_available", "shapes_used", "padded_cells", "waste", "off_list_steps")
"""What whoever sets a policy decides, and traffic alone does not; all of them are better lower."""

_TEXT = """\
# What the decode shapes here may cost: `{check}` fails where a figure is beyond its limit.
# The figures are counts, the same on every machine: no GPU, no torch.
# After a change that is meant: {check} --update {name}
schema_version: {version}
# defaults:
#   soft: 2%    # up to 2 % beyond a limit is a warning
budgets:
  - name: {name}
    workload:
      sweep:    # any option of `nanoserve sweep`; under `bench:`, of `nanoserve bench`
{options}{identity}    limits:
{limits}    # Other limits: {{at_least: 1}}, {{exactly: 0}}, and {{reported: true}}, which is shown and is none.
    # Of a model that runs, `bench: {{runner: compiled}}`, there are more figures: recompiles_bucketed is one.
    # A time is a limit only where it is named.
    # Or by comparison with a results file, as `nanoserve sweep ... --out before.csv` writes it:
    # baseline: before.csv
    # regress: {{padded_cells: +1%}}
"""


def starter(options: Mapping[str, Any], *, name: str, path: Path, trace_dir: Path | None) -> str:
    """The text of a budget file for `path`: one workload, the sweep of `options`, and its counts as limits.

    Raises what such a sweep raises, and ValueError where the traffic takes no decode step.
    """
    priced = price_grid(spec_of(options, trace_dir, ""), lambda _: None)
    if not all(one.cost.steps for one in priced):
        raise ValueError(f"{name} takes no decode step: there is nothing to limit")
    command = ["nanoserve", "check", *([] if str(path) == DEFAULT_FILE else [str(path)])]
    return _TEXT.format(
        check=shlex.join(command),
        name=_flow(name),
        version=SCHEMA_VERSION,
        options="".join(f"        {key}: {_flow(value)}\n" for key, value in options.items()),
        identity="".join(_identity(priced[0])),
        limits="".join(_limits(priced)),
    )


def _identity(priced: Priced) -> Iterator[str]:
    if priced.trace_sha256 is not None:
        yield "    # The trace that the limits are of: of another one nothing is compared.\n"
        yield f"    trace_sha256: {_flow(priced.trace_sha256)}\n"


def _limits(priced: Sequence[Priced]) -> Iterator[str]:
    """A list that lacks its maxima is two rows, and a limit is on both."""
    rows, about = [cost_columns(one.cost) for one in priced], {column.name: column.about for column in COLUMNS}
    for metric in METRICS:
        value = written_as(max(row[metric] for row in rows), "at_most")
        yield f"      {f'{metric}: {{at_most: {value}}}':<42}# {about[metric]}\n"


def _flow(value: Any) -> str:
    """A value in YAML's flow style: as JSON has it, a plain word without quotes."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(entry)}" for key, entry in value.items()) + "}"
    is_word = isinstance(value, str) and value[:1].isalpha() and value.replace("-", "").isalnum() and value.isascii()
    return value if is_word and value.lower() not in _RESERVED else json.dumps(value, ensure_ascii=False)


_RESERVED = {"true", "false", "null", "yes", "no", "on", "off"}
