"""vLLM's log lines: the tables of `--cudagraph-metrics`, one line an iteration, one line an interval."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nanoserve_cli.observed.model import Decode, Mixed
from nanoserve_cli.observed.settings import ServerSettings
from nanoserve_cli.workload.errors import RowError

_TABLE_MODE = re.compile(r"\|\s*(?:CUDAGraphMode\.)?(?:FULL|PIECEWISE|NONE)\b")
_TABLE_ROW = re.compile(
    r"\|\s*(\d{1,9})\s*\|\s*(\d{1,9})\s*\|\s*(\d{1,9})\s*"
    r"\|\s*(?:CUDAGraphMode\.)?(FULL|PIECEWISE|NONE)\s*\|\s*(\d{1,15})\s*\|"
)
_ITERATION = re.compile(
    r"Iteration\((\d{1,12})\): (\d{1,9}) context requests?, (\d{1,9}) context tokens?, "
    r"(\d{1,9}) generation requests?, (\d{1,9}) generation tokens?"
)
_RANK = re.compile(r"DP(\d+)")
_RUNNING = re.compile(r"\bRunning: (\d{1,9}) reqs?\b")
_ENGINE = re.compile(r"Engine (\d+):")
_AGGREGATE = re.compile(r"(\d+) Engines Aggregated")
_PROCESS = re.compile(r"\(([^()]*pid=\d+)\)")


def graph_table_row(line: str) -> Decode | Mixed | None:
    """A row of the table: unpadded tokens, padded tokens, paddings, mode, count. A decode step has a token a row."""
    if not _TABLE_MODE.search(line):
        return None
    match = _TABLE_ROW.search(line)
    if match is None:
        raise RowError("table row cut short or garbled", line.strip())
    tokens, padded, paddings, count = (int(match[group]) for group in (1, 2, 3, 5))
    mode = match[4]
    if padded - tokens != paddings or tokens == 0:
        raise RowError("table row whose padded tokens are not its tokens and paddings", line.strip())
    if count == 0:
        return None
    return Decode(tokens, weight=count) if mode == "FULL" else Mixed(mode, tokens, padded, weight=count)


def graph_table_notes(settings: ServerSettings) -> Iterator[str]:
    """What the tables cannot tell."""
    yield "rows only: the tables have no widths"
    yield (
        "mode FULL is fitted; PIECEWISE and NONE are mixed or prefill steps, or decode steps off the list: "
        "counted, not fitted"
    )
    if settings.graph_mode == "FULL":
        yield "the server's mode is FULL: mixed steps replay full graphs too, so some rows here may be prefill tokens"
    yield from _speculative(settings)


def iteration(line: str) -> Decode | Mixed | None:
    """One step of one engine core: requests in prefill (context) and in decode (generation)."""
    match = _ITERATION.search(line)
    if match is None:
        raise RowError("iteration line cut short or garbled", line.strip())
    counter, context, context_tokens, rows, tokens = (int(group) for group in match.groups())
    rank = _RANK.search(line, 0, match.start())
    engine = rank[1] if rank else ""
    if context:
        return Mixed("context", context_tokens + tokens, engine=engine, counter=counter)
    return Decode(rows, engine=engine, counter=counter)


def iteration_notes(settings: ServerSettings) -> Iterator[str]:
    """What the iterations cannot tell."""
    yield "rows only: iterations have no widths"
    yield (
        "iterations with context requests are mixed: their rows decode too, but no decode graph serves them: "
        "counted by tokens, not fitted"
    )
    yield from _speculative(settings)


def engine_line(line: str) -> Decode | None:
    """The periodic line: how many requests run at that moment. A process is a series of its own."""
    if "throughput:" not in line:
        return None
    match = _RUNNING.search(line)
    if match is None:
        raise RowError("engine line cut short or garbled", line.strip())
    together = _AGGREGATE.search(line)
    if together and int(together[1]) > 1:
        raise RowError("line that adds up several engines: it does not tell the rows of one step")
    process, engine = _PROCESS.search(line), _ENGINE.search(line)
    return Decode(int(match[1]), engine=f"{process[1] if process else ''}/{engine[1] if engine else ''}")


def engine_notes(settings: ServerSettings) -> Iterator[str]:
    """What the periodic lines cannot tell."""
    yield "rows only: the lines have no widths, and do not say how many steps lie between them"
    yield "requests in prefill count as running"


def _speculative(settings: ServerSettings) -> Iterator[str]:
    if settings.speculative_tokens:
        yield (
            f"speculative decoding is on ({settings.speculative_tokens} tokens): a request takes up to "
            f"{settings.speculative_tokens + 1} tokens of a step, and vLLM's sizes are tokens"
        )
