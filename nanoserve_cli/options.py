"""Every option that more than one command takes, once: its flag, its help and its panel."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from nanoserve_cli.workload.formats import FORMATS

LOCKSTEP, TRAFFIC, ENGINE, CLOCK, OUTPUT = "Lockstep run", "Traffic", "Engine", "Clock", "Output"
GRID, BUDGET, COMPILES, MEASURE = "Grid", "Budget", "Compiles and captures", "Measurement"


def in_panel(panel: str, *flags: str, help: str, **more: Any) -> Any:
    """An option in a panel of the help."""
    return typer.Option(*flags, help=help, rich_help_panel=panel, **more)


class Command(TyperCommand):
    """A command whose help names in braces what the library lists: that is imported when the help is asked for."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Fills in the lists."""
        late = [parameter for parameter in self.params if "{" in (getattr(parameter, "help", None) or "")]
        if late:
            lists = _lists()
            for parameter in late:
                parameter.help = parameter.help.format_map(lists)  # type: ignore[attr-defined]
        super().format_help(ctx, formatter)


def _lists() -> dict[str, str]:
    """What help texts name in braces."""
    from nanoserve.ladders import ROW_LADDERS, WIDTH_RULES
    from nanoserve.step_time import FORMS as STEP_TIMES
    from nanoserve_cli.emit import EMITTERS
    from nanoserve_cli.observed.detect import format_names

    return {
        "row_ladders": ", ".join(ROW_LADDERS),
        "width_rules": WIDTH_RULES,
        "step_times": STEP_TIMES,
        "engines": ", ".join(EMITTERS),
        "observed_formats": ", ".join(format_names()),
    }


def _target(text: str) -> Path:
    """A path to write to. An empty one is an unset variable, not the folder one is in."""
    if not text.strip():
        raise typer.BadParameter("the name is empty")
    return Path(text)


# Lockstep run
Rows = Annotated[int | None, in_panel(LOCKSTEP, help="Requests that decode together.", show_default="3", min=1)]
StepsList = Annotated[
    str | None, in_panel(LOCKSTEP, help="Decode steps of each run, a list.", show_default="8,64,128,512")
]
Prompt = Annotated[int | None, in_panel(LOCKSTEP, help="Prompt tokens of each.", show_default="16", min=1)]

# Traffic
Source = Annotated[
    str | None,
    in_panel(TRAFFIC, "--from", "--trace", help="Replay a recorded trace: a file, or a key of `nanoserve fetch`."),
]
Format = Annotated[
    str | None,
    in_panel(
        TRAFFIC, help=f"Read the trace as this, not as its content says: {', '.join(known.name for known in FORMATS)}."
    ),
]
Strict = Annotated[
    bool, in_panel(TRAFFIC, "--strict", help="Stop at the first bad row; bad rows are skipped and counted.")
]
TraceDir = Annotated[
    Path | None,
    in_panel(TRAFFIC, help="Where traces are looked up by key, before the cache.", envvar="NANOSERVE_TRACES"),
]
Limit = Annotated[int | None, in_panel(TRAFFIC, help="Only the first N requests.", min=1)]
MaxLen = Annotated[
    Literal["reject", "clip"], in_panel(TRAFFIC, help="What becomes of a request longer than --max-model-len.")
]
NumRequests = Annotated[int | None, in_panel(TRAFFIC, help="Draw N synthetic requests.", min=1)]
RequestRate = Annotated[
    float | None,
    in_panel(TRAFFIC, help="Requests a second; with --from it replaces the recorded times.", show_default="inf"),
]
Burstiness = Annotated[float, in_panel(TRAFFIC, help="Gamma shape of the gaps: 1 is Poisson, below 1 is burstier.")]
PromptLen = Annotated[str, in_panel(TRAFFIC, help="Synthetic: N, uniform:LO,HI or lognormal:MEAN,SIGMA[,MAX] tokens.")]
OutputLen = Annotated[str, in_panel(TRAFFIC, help="The same for outputs.")]

# Engine
MaxBatch = Annotated[
    int | None, in_panel(ENGINE, help="Rows of the cache: the most requests in a step.", show_default="8", min=1)
]
MaxModelLen = Annotated[
    int | None, in_panel(ENGINE, help="Tokens of a row.", show_default="prompt + steps; 8192 for traffic", min=1)
]
CaptureMaxBatch = Annotated[
    int | None, in_panel(ENGINE, "--max-batch", help="The most rows.", show_default="256", min=1)
]
CaptureModelLen = Annotated[int, in_panel(ENGINE, "--max-model-len", help="Tokens of a row.", min=1)]
WidthMultiple = Annotated[
    int | None, in_panel(ENGINE, help="Width buckets are the multiples of this.", show_default="128", min=1)
]
PolicyFile = Annotated[Path | None, in_panel(ENGINE, "--policy", help="A shape policy in YAML instead.")]
Model = Annotated[str, in_panel(ENGINE, help="tiny, small, smollm2, a checkpoint directory or a GGUF file.")]
Runner = Annotated[Literal["eager", "compiled", "graphs"], in_panel(ENGINE, help="How a decode step runs.")]
GraphBackend = Annotated[
    Literal["auto", "cuda", "recorded"],
    in_panel(
        ENGINE, help="Of --runner graphs. auto is cuda on CUDA; recorded replays the same semantics on any machine."
    ),
]
GraphBody = Annotated[
    Literal["eager", "compiled"],
    in_panel(ENGINE, help="Of --graph-backend cuda: what is captured, as written or compiled."),
]
AllowPartial = Annotated[
    bool, in_panel(ENGINE, "--allow-partial", help="Go on with the graphs there are where a capture fails for memory.")
]
Audit = Annotated[bool, in_panel(ENGINE, "--audit", help="Run every gate on every step and refuse new storage. Slow.")]
CompileBackend = Annotated[
    Literal["count", "inductor"],
    in_panel(ENGINE, help="Of --runner compiled. count traces, makes no code, claims no speed."),
]
Dynamic = Annotated[
    Literal["off", "auto", "on"],
    in_panel(ENGINE, help="torch.compile's `dynamic` for the open run; auto is its default."),
]
Device = Annotated[str, in_panel(ENGINE, help="auto is CUDA where there is one, else cpu.")]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"],
    in_panel(ENGINE, help="auto is float32 on a CPU, else what the checkpoint says."),
]
BlockSize = Annotated[int, in_panel(ENGINE, help="Tokens of a KV block.", min=1)]
NumBlocks = Annotated[
    int | None,
    in_panel(ENGINE, help="Blocks of the KV pool; fewer preempt and recompute.", show_default="every row full", min=1),
]
HostOnly = Annotated[bool, in_panel(ENGINE, "--host-only", help="Plan every step and run none: no weights, no torch.")]
CheckInert = Annotated[
    bool, in_panel(ENGINE, "--check-inert", help="Before each step, poison unused memory and compare every bit. Slow.")
]

# Clock
Clock = Annotated[
    Literal["virtual", "real"],
    in_panel(CLOCK, help="virtual: a fixed grid, the same counts everywhere. real: latencies."),
]
StepMs = Annotated[float, in_panel(CLOCK, help="Milliseconds of a step on the virtual clock.")]
Speedup = Annotated[float, in_panel(CLOCK, help="Real clock: arrivals come this much faster.")]
Goodput = Annotated[
    str | None, in_panel(CLOCK, help="Real clock: limits in ms that a good request meets: 'ttft:500 tpot:50'.")
]

# Output
Seed = Annotated[int, in_panel(OUTPUT, help="Of weights, prompts and synthetic traffic.", min=0)]
Json = Annotated[bool, in_panel(OUTPUT, "--json", help="One JSON document on stdout.")]
OutDir = Annotated[
    Path | None,
    in_panel(
        OUTPUT,
        "--out",
        help="Write run.json, requests.jsonl, steps.csv and step_times.csv here; add a row to runs.csv.",
        parser=_target,
    ),
]
Quiet = Annotated[bool, in_panel(OUTPUT, "--quiet", "-q", help="No messages but warnings.")]


# Sweep
SpecFile = Annotated[Path | None, in_panel(GRID, help="A sweep as YAML; flags go over what it says.")]
WidthMultiples = Annotated[
    str | None,
    in_panel(GRID, "--width-multiple", help="Width buckets are the multiples of each; a list.", show_default="128"),
]
WidthLadders = Annotated[
    str | None,
    in_panel(GRID, "--width-ladder", help="Other width rules, a list: each is {width_rules}."),
]
RowsLadders = Annotated[
    str | None,
    in_panel(
        GRID,
        "--rows-ladder",
        help="Row rules, a list: each is {row_ladders} or list:A,B,C.",
        show_default="pow2",
    ),
]
MaxBatches = Annotated[str | None, in_panel(GRID, "--max-batch", help="Most rows of a step, a list.", show_default="8")]
MaxModelLens = Annotated[
    str | None, in_panel(GRID, "--max-model-len", help="Tokens of a row, a list.", show_default="8192")
]
Link = Annotated[bool, in_panel(GRID, "--link", help="Pair the lists entry by entry instead of taking their product.")]
DryRun = Annotated[bool, in_panel(GRID, "--dry-run", help="Print the points and stop.")]
LockstepSteps = Annotated[int | None, in_panel(LOCKSTEP, help="Decode steps.", show_default="512", min=1)]
Sources = Annotated[
    list[str] | None,
    in_panel(TRAFFIC, "--from", "--trace", help="A recorded trace, file or key of `nanoserve fetch`; may be repeated."),
]
TraceFormat = Annotated[
    str | None,
    in_panel(TRAFFIC, help=f"Read traces as this, not as they say: {', '.join(known.name for known in FORMATS)}."),
]
StepTime = Annotated[str | None, in_panel(CLOCK, help="How long a step lasts: {step_times}", show_default="25")]
BudgetGraphs = Annotated[int | None, in_panel(BUDGET, help="Graphs a list may have.", show_default="64", min=1)]
BudgetMib = Annotated[float | None, in_panel(BUDGET, help="MiB its graphs may take, as predicted.", min=0)]
SweepHostOnly = Annotated[
    bool, in_panel(COMPILES, "--host-only", help="Arithmetic only: no torch, no compiles, no MiB.")
]
MeasureCompiles = Annotated[
    bool | None,
    in_panel(
        COMPILES,
        "--measure-compiles/--no-measure-compiles",
        help="Count dynamo's compiles, each shape once.",
        show_default="up to 64 shapes",
    ),
]
SweepModel = Annotated[
    str | None,
    in_panel(MEASURE, "--model", help="Whose step is compiled, priced in MiB and run.", show_default="tiny"),
]
SweepDevice = Annotated[
    str | None, in_panel(MEASURE, "--device", help="auto is CUDA where there is one, else cpu.", show_default="auto")
]
SweepDtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"] | None,
    in_panel(MEASURE, "--dtype", help="auto is float32 on a CPU, else the checkpoint's.", show_default="auto"),
]
Measure = Annotated[bool, in_panel(MEASURE, "--measure", help="Run every point too: step times, captures. Slow.")]
Repeats = Annotated[
    int | None,
    in_panel(MEASURE, help="Runs of a point; times are medians, counts must be equal.", show_default="1", min=1),
]
SweepRunner = Annotated[
    Literal["eager", "compiled", "graphs"] | None,
    in_panel(MEASURE, "--runner", help="How a measured step runs.", show_default="eager"),
]
SweepBackend = Annotated[
    Literal["count", "inductor"] | None,
    in_panel(MEASURE, "--compile-backend", help="Of --runner compiled.", show_default="count"),
]
ExecutorName = Annotated[
    Literal["local", "ray"],
    in_panel(MEASURE, "--executor", help="Where measured points run: here, or on a Ray cluster."),
]
Jobs = Annotated[
    int | None, in_panel(MEASURE, help="Measured points run in N processes here.", show_default="1", min=1)
]
OutFile = Annotated[
    Path | None, in_panel(OUTPUT, "--out", help="Write a CSV, row by row as points finish.", parser=_target)
]
BudgetOut = Annotated[
    Path | None,
    in_panel(
        OUTPUT,
        "--out",
        help="Where it goes; a file that is there stays as it is.",
        show_default="nanoserve.budget.yaml",
        parser=_target,
    ),
]
Resume = Annotated[bool, in_panel(OUTPUT, "--resume", help="Reuse the rows of --out that this very sweep made.")]
Overwrite = Annotated[bool, in_panel(OUTPUT, "--overwrite", help="Start --out anew.")]
TableFormat = Annotated[Literal["table", "markdown", "csv", "json"], in_panel(OUTPUT, help="What stdout gets.")]
SweepSeed = Annotated[
    int | None, in_panel(OUTPUT, "--seed", help="Of weights and synthetic traffic.", show_default="0", min=0)
]


def flags_given(context: typer.Context) -> dict[str, str | None]:
    """The flags on this command line, by their first name, and the panel each belongs to."""
    return {
        parameter.opts[0]: getattr(parameter, "rich_help_panel", None)
        for parameter in context.command.params
        if (source := context.get_parameter_source(parameter.name or "")) is not None and source.name == "COMMANDLINE"
    }


def parse_list(text: str, what: str, *, distinct: bool = True) -> tuple[int, ...]:
    """`"8,64"` as `(8, 64)`. ValueError, naming `what`, for an entry that is no positive integer.

    And for one that stands twice where all must be `distinct`.
    """
    values = []
    for entry in text.split(","):
        if not entry.strip().isdecimal() or int(entry) < 1:
            raise ValueError(f"{what} takes integers of at least 1 with commas between, got {text!r}")
        values.append(int(entry))
    if distinct and len(set(values)) != len(values):
        raise ValueError(f"{what} names a value twice: {text!r}")
    return tuple(values)


def milliseconds(value: float, what: str) -> int:
    """Milliseconds in whole nanoseconds. ValueError, naming `what`, below a nanosecond or above eleven days."""
    if not 1e-6 <= value <= 1e9:
        raise ValueError(f"{what} takes 0.000001 to 1,000,000,000 milliseconds, got {value:g}")
    return round(value * 1e6)
