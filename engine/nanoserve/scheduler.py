"""Which requests run in a step: first come first served by rows and blocks, preemption by recompute."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import index

from nanoserve.cache.blocks import KVCacheExhausted
from nanoserve.cache.kv import BatchedPagedKVCache
from nanoserve.sampling import Sampler, SamplingParams


class RequestRejected(ValueError):
    """A request that was never taken in; nothing else was disturbed.

    `reason` is duplicate_id, empty_prompt, no_output, too_long or unknown_token. There is none for a request that could
    never fit the pool: a cache always holds one request of `max_model_len` tokens, and a longer one is too_long.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class RequestOutput:
    """How one request ended, and what it made.

    `outcome` is finished, aborted or failed; `reason` says more: "length" or "stop", where it was aborted ("waiting",
    "running"), or the error.
    """

    request_id: str
    prompt_len: int
    tokens: tuple[int, ...]
    outcome: str
    reason: str
    preemptions: int


@dataclass(eq=False)
class Request:
    """A live request: what was asked, what it has made, and how often it was preempted."""

    request_id: str
    prompt: tuple[int, ...]
    max_tokens: int
    sampler: Sampler
    stop_token_ids: frozenset[int]
    arrival: int
    output: list[int] = field(default_factory=list)
    preemptions: int = 0

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt and output: what a recompute prefills."""
        return (*self.prompt, *self.output)

    @property
    def length(self) -> int:
        """How many tokens that is."""
        return len(self.prompt) + len(self.output)

    def take(self, token: int) -> str | None:
        """Appends a token; returns why the request is done with it, or None."""
        self.output.append(token)
        if token in self.stop_token_ids:
            return "stop"
        return "length" if len(self.output) >= self.max_tokens else None

    def ended(self, outcome: str, reason: str) -> RequestOutput:
        """The record of its end."""
        return RequestOutput(self.request_id, len(self.prompt), tuple(self.output), outcome, reason, self.preemptions)


@dataclass(frozen=True)
class Schedule:
    """One step: the first `decode_rows` rows decode, `admitted` (which hold the rows after them) prefill.

    `preempted` went back to the front of the queue; `moves` are the rows that compaction moved, `(source, target)`.
    """

    decode_rows: int
    admitted: tuple[Request, ...]
    preempted: tuple[Request, ...]
    moves: tuple[tuple[int, int], ...]


class Scheduler:
    """Continuous batching over one cache. `running[row]` is the request in that row, None where a hole is left."""

    def __init__(self, cache: BatchedPagedKVCache, vocab_size: int | None = None) -> None:
        self.cache = cache
        self.vocab_size = vocab_size
        self.waiting: deque[Request] = deque()
        self.running: list[Request | None] = []
        self._live: dict[str, Request] = {}
        self._arrivals = 0
        self._preempted: list[Request] = []
        self._moves: list[tuple[int, int]] = []

    @property
    def has_requests(self) -> bool:
        """Whether anything waits or runs."""
        return bool(self._live)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._live

    def add(
        self,
        request_id: str,
        prompt: Sequence[int],
        max_tokens: int,
        sampling: SamplingParams,
        stop_token_ids: frozenset[int],
    ) -> Request:
        """Takes a request in. Raises RequestRejected, and nothing else is disturbed, where it could never run."""
        try:
            tokens, max_tokens = tuple(map(index, prompt)), index(max_tokens)
        except TypeError:
            raise RequestRejected(
                "unknown_token",
                "a prompt is a sequence of integer token ids and max_tokens an integer: encode text first",
            ) from None
        self._check(request_id, tokens, max_tokens)
        request = Request(request_id, tokens, max_tokens, Sampler(sampling), stop_token_ids, self._arrivals)
        self._arrivals += 1
        self._live[request_id] = request
        self.waiting.append(request)
        return request

    def _check(self, request_id: str, prompt: tuple[int, ...], max_tokens: int) -> None:
        if request_id in self._live:
            raise RequestRejected(
                "duplicate_id", f"request id {request_id!r} is already live: give each request its own"
            )
        if not prompt:
            raise RequestRejected("empty_prompt", "the prompt is empty: a request needs at least one token")
        if max_tokens < 1:
            raise RequestRejected("no_output", f"max_tokens is {max_tokens}: a request makes at least one token")
        slots = len(prompt) + max_tokens - 1
        if slots > self.cache.max_model_len:
            raise RequestRejected(
                "too_long",
                f"{len(prompt)} prompt tokens and {max_tokens} outputs need {slots} slots, "
                f"max_model_len is {self.cache.max_model_len}",
            )
        outside = (
            next((t for t in prompt if not 0 <= t < self.vocab_size), None) if self.vocab_size is not None else None
        )
        if outside is not None:
            raise RequestRejected("unknown_token", f"token id {outside} is outside the vocabulary of {self.vocab_size}")

    def schedule(self) -> Schedule:
        """Decides one step: `prepare`, then admission. A row keeps its place from here to the end of the step."""
        decode_rows = self.prepare()
        schedule = Schedule(decode_rows, self._admit(), tuple(self._preempted), tuple(self._moves))
        self._preempted.clear()
        self._moves.clear()
        return schedule

    def prepare(self) -> int:
        """Grows, preempts and compacts, in that order; returns how many rows decode. Doing it twice changes nothing."""
        self._grow()
        self._compact()
        return len(self.running)

    def _grow(self) -> None:
        """A slot for every running row's token; the youngest are preempted until the pool has enough."""
        rows = self.cache.rows_to_grow()
        while rows.size > self.cache.allocator.num_free:
            self._preempted.append(self._preempt_youngest())
            rows = self.cache.rows_to_grow()
        if rows.size:
            self.cache.grow(rows)

    def _preempt_youngest(self) -> Request:
        running = [(request.arrival, row) for row, request in enumerate(self.running) if request is not None]
        if len(running) < 2:
            raise KVCacheExhausted("one request alone outgrew the pool: num_blocks holds less than max_model_len")
        _, row = max(running)
        request = self._vacate(row)
        request.preemptions += 1
        self.waiting.appendleft(request)
        return request

    def _compact(self) -> None:
        for source, target in self.cache.compact():
            self.running[target] = self.running[source]
            self._moves.append((source, target))
        del self.running[self.cache.num_rows :]

    def _admit(self) -> tuple[Request, ...]:
        admitted: list[Request] = []
        while self.waiting and self.cache.can_admit(self.waiting[0].length):
            request = self.waiting.popleft()
            self.cache.admit(request.length)
            self.running.append(request)
            admitted.append(request)
        return tuple(admitted)

    def put_back(self, admitted: Sequence[Request]) -> None:
        """Returns requests that were admitted but not prefilled to the front of the queue, in their order."""
        for request in reversed(admitted):
            self._vacate(self.row_of(request))
            self.waiting.appendleft(request)

    def row_of(self, request: Request) -> int:
        """The row a running request holds."""
        return self.running.index(request)

    def end(self, row: int, outcome: str, reason: str) -> RequestOutput:
        """Ends the request in `row`; its blocks are free at once, its row after the next compaction."""
        request = self._vacate(row)
        del self._live[request.request_id]
        return request.ended(outcome, reason)

    def abort(self, request_id: str) -> RequestOutput:
        """Ends a request wherever it is and returns its blocks. KeyError where no live request has that id."""
        request = self._live.get(request_id)
        if request is None:
            raise KeyError(f"no live request has the id {request_id!r}")
        if request in self.waiting:
            self.waiting.remove(request)
            del self._live[request_id]
            return request.ended("aborted", "waiting")
        return self.end(self.row_of(request), "aborted", "running")

    def _vacate(self, row: int) -> Request:
        request = self.running[row]
        if request is None:
            raise KeyError(f"row {row} holds no request")
        self.cache.release(row)
        self.running[row] = None
        return request
