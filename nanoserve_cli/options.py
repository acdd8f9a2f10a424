"""Every option that more than one command takes, once: its flag, its help and its panel."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from nanoserve_cli.workload.formats import FORMATS

LOCKSTEP, TRAFFIC, ENGINE, CLOCK, OUTPUT = "Lockstep run", "Traffic", "Engine", "Clock", "Output"


def _in(panel: str, *flags: str, help: str, **more: Any) -> Any:
    return typer.Option(*flags, help=help, rich_help_panel=panel, **more)


def _folder(text: str) -> Path:
    """A folder's path. An empty one is an unset variable, not the folder one is in."""
    if not text.strip():
        raise typer.BadParameter("the folder's name is empty")
    return Path(text)


# Lockstep run
Rows = Annotated[int | None, _in(LOCKSTEP, help="Requests that decode together.", show_default="3", min=1)]
StepsList = Annotated[str | None, _in(LOCKSTEP, help="Decode steps of each run, a list.", show_default="8,64,128,512")]
Prompt = Annotated[int | None, _in(LOCKSTEP, help="Prompt tokens of each.", show_default="16", min=1)]

# Traffic
Source = Annotated[
    str | None,
    _in(TRAFFIC, "--from", "--trace", help="Replay a recorded trace: a file, or a key of `nanoserve fetch`."),
]
Format = Annotated[
    str | None,
    _in(
        TRAFFIC, help=f"Read the trace as this, not as its content says: {', '.join(known.name for known in FORMATS)}."
    ),
]
Strict = Annotated[bool, _in(TRAFFIC, "--strict", help="Stop at the first bad row; bad rows are skipped and counted.")]
TraceDir = Annotated[
    Path | None, _in(TRAFFIC, help="Where traces are looked up by key, before the cache.", envvar="NANOSERVE_TRACES")
]
Limit = Annotated[int | None, _in(TRAFFIC, help="Only the first N requests.", min=1)]
MaxLen = Annotated[
    Literal["reject", "clip"], _in(TRAFFIC, help="What becomes of a request longer than --max-model-len.")
]
NumRequests = Annotated[int | None, _in(TRAFFIC, help="Draw N synthetic requests.", min=1)]
RequestRate = Annotated[
    float | None,
    _in(TRAFFIC, help="Requests a second; with --from it replaces the recorded times.", show_default="inf"),
]
Burstiness = Annotated[float, _in(TRAFFIC, help="Gamma shape of the gaps: 1 is Poisson, below 1 is burstier.")]
PromptLen = Annotated[str, _in(TRAFFIC, help="Synthetic: N, uniform:LO,HI or lognormal:MEAN,SIGMA[,MAX] tokens.")]
OutputLen = Annotated[str, _in(TRAFFIC, help="The same for outputs.")]

# Engine
MaxBatch = Annotated[
    int | None, _in(ENGINE, help="Rows of the cache: the most requests in a step.", show_default="8", min=1)
]
MaxModelLen = Annotated[
    int | None, _in(ENGINE, help="Tokens of a row.", show_default="prompt + steps; 8192 for traffic", min=1)
]
CaptureMaxBatch = Annotated[int | None, _in(ENGINE, "--max-batch", help="The most rows.", show_default="256", min=1)]
CaptureModelLen = Annotated[int, _in(ENGINE, "--max-model-len", help="Tokens of a row.", min=1)]
WidthMultiple = Annotated[
    int | None, _in(ENGINE, help="Width buckets are the multiples of this.", show_default="128", min=1)
]
PolicyFile = Annotated[Path | None, _in(ENGINE, "--policy", help="A shape policy in YAML instead.")]
Model = Annotated[str, _in(ENGINE, help="tiny, small, smollm2, a checkpoint directory or a GGUF file.")]
Runner = Annotated[Literal["eager", "compiled", "graphs"], _in(ENGINE, help="How a decode step runs.")]
GraphBackend = Annotated[
    Literal["auto", "cuda", "recorded"],
    _in(ENGINE, help="Of --runner graphs. auto is cuda on CUDA; recorded replays the same semantics on any machine."),
]
GraphBody = Annotated[
    Literal["eager", "compiled"], _in(ENGINE, help="Of --graph-backend cuda: what is captured, as written or compiled.")
]
AllowPartial = Annotated[
    bool, _in(ENGINE, "--allow-partial", help="Go on with the graphs there are where a capture fails for memory.")
]
Audit = Annotated[bool, _in(ENGINE, "--audit", help="Run every gate on every step and refuse new storage. Slow.")]
CompileBackend = Annotated[
    Literal["count", "inductor"],
    _in(ENGINE, help="Of --runner compiled. count traces, makes no code, claims no speed."),
]
Dynamic = Annotated[
    Literal["off", "auto", "on"], _in(ENGINE, help="torch.compile's `dynamic` for the open run; auto is its default.")
]
Device = Annotated[str, _in(ENGINE, help="auto is CUDA where there is one, else cpu.")]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"],
    _in(ENGINE, help="auto is float32 on a CPU, else what the checkpoint says."),
]
BlockSize = Annotated[int, _in(ENGINE, help="Tokens of a KV block.", min=1)]
NumBlocks = Annotated[
    int | None,
    _in(ENGINE, help="Blocks of the KV pool; fewer preempt and recompute.", show_default="every row full", min=1),
]
HostOnly = Annotated[bool, _in(ENGINE, "--host-only", help="Plan every step and run none: no weights, no torch.")]
CheckInert = Annotated[
    bool, _in(ENGINE, "--check-inert", help="Before each step, poison unused memory and compare every bit. Slow.")
]

# Clock
Clock = Annotated[
    Literal["virtual", "real"], _in(CLOCK, help="virtual: a fixed grid, the same counts everywhere. real: latencies.")
]
StepMs = Annotated[float, _in(CLOCK, help="Milliseconds of a step on the virtual clock.")]
Speedup = Annotated[float, _in(CLOCK, help="Real clock: arrivals come this much faster.")]
Goodput = Annotated[
    str | None, _in(CLOCK, help="Real clock: limits in ms that a good request meets: 'ttft:500 tpot:50'.")
]

# Output
Seed = Annotated[int, _in(OUTPUT, help="Of weights, prompts and synthetic traffic.", min=0)]
Json = Annotated[bool, _in(OUTPUT, "--json", help="One JSON document on stdout.")]
OutDir = Annotated[
    Path | None,
    _in(
        OUTPUT,
        "--out",
        help="Write run.json, requests.jsonl and steps.csv here; add a row to runs.csv.",
        parser=_folder,
    ),
]
Quiet = Annotated[bool, _in(OUTPUT, "--quiet", "-q", help="No messages but warnings.")]


def flags_given(context: typer.Context) -> dict[str, str | None]:
    """The flags on this command line, by their first name, and the panel each belongs to."""
    return {
        parameter.opts[0]: getattr(parameter, "rich_help_panel", None)
        for parameter in context.command.params
        if (source := context.get_parameter_source(parameter.name or "")) is not None and source.name == "COMMANDLINE"
    }


def parse_list(text: str, what: str) -> tuple[int, ...]:
    """`"8,64"` as `(8, 64)`. ValueError, naming `what`, for an entry that is no positive integer or stands twice."""
    values = []
    for entry in text.split(","):
        if not entry.strip().isdecimal() or int(entry) < 1:
            raise ValueError(f"{what} takes integers of at least 1 with commas between, got {text!r}")
        values.append(int(entry))
    if len(set(values)) != len(values):
        raise ValueError(f"{what} names a value twice: {text!r}")
    return tuple(values)


def milliseconds(value: float, what: str) -> int:
    """Milliseconds in whole nanoseconds. ValueError, naming `what`, below a nanosecond or above eleven days."""
    if not 1e-6 <= value <= 1e9:
        raise ValueError(f"{what} takes 0.000001 to 1,000,000,000 milliseconds, got {value:g}")
    return round(value * 1e6)
