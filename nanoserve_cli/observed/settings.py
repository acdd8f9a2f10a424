"""What a server's log says about the server: its capture list, its largest batch, how its lines are spaced."""

from __future__ import annotations

import re

_NUMBERS = re.compile(r"\d{1,9}")
_LIST = re.compile(r"[\d\s,]*")
_LONGEST_LIST = 1 << 16

# From what was asked for to what was captured: a later rank overrides an earlier one, as the servers do.
_LISTS = (
    re.compile(r"--(?:cudagraph-capture-sizes|cuda-graph-sizes|cuda-graph-bs(?:-decode)?)[ =](\d[\d, ]*)"),
    re.compile(r"(?:cudagraph_capture_sizes|cuda_graph_bs(?:_decode)?)\\*['\"]?\s*[:=]\s*\[([^\]]*)\]?"),
    re.compile(r"\"decode\\*\"\s*:\s*\{[^{}]*\"bs\\*\"\s*:\s*\[([^\]]*)\]?"),
    re.compile(r"(?:Capture sizes:|Capture cuda graph bs|Capture target decode CUDA graph end\. bs=) ?\[([^\]]*)\]?"),
)
_CAPTURED = len(_LISTS) - 1
_VALUES = {
    "max_num_seqs": "max_batch",
    "max_running_requests": "max_batch",
    "decode_log_interval": "decode_log_interval",
    "num_speculative_tokens": "speculative_tokens",
    "speculative_num_draft_tokens": "speculative_tokens",
}
_VALUE = re.compile(rf"({'|'.join(_VALUES)})\\*['\"]?\s*[:=]\s*(\d{{1,9}})\b")
_EAGER = re.compile(r"(?:enforce_eager|disable_cuda_graph)\\*['\"]?\s*[:=]\s*(true|false)\b", re.IGNORECASE)
_MODE = re.compile(r"- Mode: ([A-Z_]+)")
_HINTS = ("apture", "cuda_graph_", "cuda-graph-", "- Mode: ", "enforce_eager", "disable_cuda_graph", *_VALUES)


class ServerSettings:
    """Collected line by line; what the log does not hold is None.

    `capture_sizes` is ascending and without repeats: of several lists the one that says most surely what was
    captured, and of equals the last; `()` where the server was told to capture nothing. `lists_seen` counts the
    different ones of the surest kind. An empty list or one with an ellipsis is none. `graph_mode` is vLLM's, as its
    graph tables print it.
    """

    def __init__(self) -> None:
        self.max_batch: int | None = None
        self.decode_log_interval: int | None = None
        self.speculative_tokens: int | None = None
        self.graph_mode: str | None = None
        self._sizes: tuple[int, ...] | None = None
        self._eager = False
        self._rank = -1
        self._seen: set[tuple[int, ...]] = set()
        self._unfinished: tuple[int, str] | None = None

    @property
    def capture_sizes(self) -> tuple[int, ...] | None:
        """The capture list; see the class."""
        return () if self._eager and self._rank < _CAPTURED else self._sizes

    @property
    def lists_seen(self) -> int:
        """How many different capture lists of the surest kind there were."""
        return len(self._seen)

    def feed(self, line: str) -> None:
        """Takes what `line` says. A list that goes on over several lines, as in indented JSON, is put together."""
        if self._unfinished is not None:
            self._go_on(*self._unfinished, line)
        for hint in _HINTS:
            if hint in line:
                self._read(line)
                return

    def _read(self, line: str) -> None:
        for rank, pattern in enumerate(_LISTS):
            for match in pattern.finditer(line):
                self._begin(rank, match)
        for name, value in _VALUE.findall(line):
            setattr(self, _VALUES[name], int(value))
        if eager := _EAGER.search(line):
            self._eager = eager[1].lower() == "true"
        if mode := _MODE.search(line):
            self.graph_mode = mode[1]

    def _begin(self, rank: int, match: re.Match[str]) -> None:
        if rank == 0 or match[0].endswith("]"):
            self._take(rank, match[1])
        elif match.end() >= len(match.string.rstrip()):
            self._unfinished = (rank, match[1])

    def _go_on(self, rank: int, before: str, line: str) -> None:
        more, closed, _ = line.partition("]")
        self._unfinished = None
        if not _LIST.fullmatch(more) or len(before) > _LONGEST_LIST:
            return
        if closed:
            self._take(rank, before + more)
        else:
            self._unfinished = (rank, before + more)

    def _take(self, rank: int, text: str) -> None:
        if rank < self._rank or not _LIST.fullmatch(text):
            return
        sizes = tuple(sorted({int(number) for number in _NUMBERS.findall(text)} - {0}))
        if not sizes:
            return
        if rank > self._rank:
            self._rank, self._seen = rank, set()
        self._seen.add(sizes)
        self._sizes = sizes
