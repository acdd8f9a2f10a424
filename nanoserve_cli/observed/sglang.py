"""SGLang's decode lines: one every `decode_log_interval` decode steps, with rows and context tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator

from nanoserve_cli.observed.model import Decode
from nanoserve_cli.observed.settings import ServerSettings
from nanoserve_cli.workload.errors import RowError

DEFAULT_LOG_INTERVAL = 40

_BATCH = re.compile(r"Decode batch(?: \[\d+\])?[,.] *(?:#running-req: (\d{1,9}),)?")
_TOKENS = re.compile(r"#(?:full )?token: (\d{1,12})\b")
_GRAPH = re.compile(r"\b(?:cuda|npu|cpu) graph: (True|False)")
_RANK = re.compile(r"\b(DP|TP|PP)(\d+)\b")


def decode_line(line: str) -> Decode | None:
    """A decode line, of the present shape or the older one. DP ranks are engines; TP and PP ranks repeat theirs."""
    match = _BATCH.search(line)
    if match is None:
        return None
    if match[1] is None:
        raise RowError("decode line cut short or garbled", line.strip())
    ranks = dict(_RANK.findall(line, 0, match.start()))
    tokens, graph = _TOKENS.search(line, match.end()), _GRAPH.search(line, match.end())
    return Decode(
        int(match[1]),
        engine=ranks.get("DP", "0"),
        voice=f"{ranks.get('TP', '0')}/{ranks.get('PP', '0')}",
        graphed=graph and graph[1] == "True",
        tokens=int(tokens[1]) if tokens else None,
    )


def decode_scale(settings: ServerSettings) -> int:
    """Decode steps that a line stands for."""
    return settings.decode_log_interval or DEFAULT_LOG_INTERVAL


def decode_notes(settings: ServerSettings) -> Iterator[str]:
    """What the decode lines cannot tell."""
    yield "rows only: a line gives the tokens of all rows, so their mean is a lower bound of the width"
    known = "as the log says" if settings.decode_log_interval else "the default, assumed"
    yield f"each line stands for {decode_scale(settings)} decode steps ({known})"
    if settings.speculative_tokens:
        yield "speculative decoding is on: a row takes several tokens of a step"
