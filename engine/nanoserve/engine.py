"""The engine: requests in, tokens out, one decode step and the prefills of the newly admitted at a time.

This module holds no tensor. What touches them is a worker; with none, steps are scheduled and planned all the same,
which is what a dry run of an hour of traffic takes seconds for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from nanoserve.buckets import CaptureList, DecodePolicy, Shape
from nanoserve.cache.kv import BatchedPagedKVCache, audit_blocks
from nanoserve.decode import RunnerOptions
from nanoserve.extras import import_engine
from nanoserve.memory import check_tables_fit
from nanoserve.plan import DecodePlan, check_plan, plan_decode
from nanoserve.prefill import PrefillBatch, plan_prefill
from nanoserve.sampling import SamplingParams
from nanoserve.scheduler import Request, RequestOutput, Scheduler
from nanoserve.worker import Drawn, PlanOnly, Worker

if TYPE_CHECKING:
    from nanoserve.model.decoder import Decoder

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class StepResult:
    """What one step did. `plan` is None where no row decoded; `outputs` are those finished or failed since the last.

    `tokens` are `(request_id, token)`, prefilled ones last; what a step made before it raised is among the next one's.
    Seconds are wall clock: `decode_seconds` and `prefill_seconds` end when the tokens are on the host.
    """

    plan: DecodePlan | None
    prefills: tuple[PrefillBatch, ...]
    admitted: tuple[str, ...]
    preempted: tuple[str, ...]
    moves: tuple[tuple[int, int], ...]
    tokens: tuple[tuple[str, int], ...]
    outputs: tuple[RequestOutput, ...]
    plan_seconds: float
    decode_seconds: float
    prefill_seconds: float


class Engine:
    """A continuous-batching engine over one model and one paged KV cache. Make one with `Engine.build`."""

    def __init__(
        self,
        cache: BatchedPagedKVCache,
        worker: Worker,
        *,
        vocab_size: int | None,
        eos_token_ids: Sequence[int] = (),
        max_prefill_tokens: int = 8192,
        audit: bool = False,
    ) -> None:
        self.cache = cache
        self.worker = worker
        self.scheduler = Scheduler(cache, vocab_size)
        self.eos_token_ids = frozenset(eos_token_ids)
        self.max_prefill_tokens = max_prefill_tokens
        self.audit = audit
        self._ended: list[RequestOutput] = []
        self._made: list[tuple[str, int]] = []
        self._gates_ran = False
        self._unnamed = 0

    @classmethod
    def build(
        cls,
        model: Decoder | str | None,
        max_batch_size: int,
        max_model_len: int,
        block_size: int = 16,
        num_blocks: int | None = None,
        device: str | None = None,
        dtype: str | None = None,
        runner: str = "eager",
        bucket_decode: bool | None = None,
        policy: DecodePolicy | CaptureList | None = None,
        *,
        compile_backend: str = "count",
        dynamic: str = "off",
        graph_backend: str = "auto",
        graph_body: str = "eager",
        max_prefill_tokens: int = 8192,
        audit: bool = False,
    ) -> Engine:
        """An engine over `model`: a decoder, what `load_model` takes ("tiny", "smollm2", a path), or None to plan only.

        `device` defaults to CUDA where there is one, `dtype` to the checkpoint's. `bucket_decode` is off unless a
        `policy` is given: the padding pays only where something reuses the graph. Steps off a capture list run
        eager and unpadded. The runner's options are those of `RunnerOptions`. `audit` runs every gate on every step,
        else they run on the first, and refuses new storage outside the traced region. ValueError for limits, pools,
        policies and options that do not fit together.
        """
        if policy is not None and not isinstance(policy, (DecodePolicy, CaptureList)):
            raise ValueError(f"policy must be a shape policy or a capture list, got {policy!r}")
        if max_prefill_tokens < 1:
            raise ValueError(f"max_prefill_tokens must be at least 1, got {max_prefill_tokens}")
        options = RunnerOptions(runner, compile_backend, dynamic, graph_backend, graph_body)
        check_tables_fit(max_batch_size, max_model_len, num_blocks or 0)
        cache = BatchedPagedKVCache(
            max_batch_size,
            max_model_len,
            block_size=block_size,
            num_blocks=num_blocks,
            bucket_decode=bucket_decode,
            policy=policy,
        )
        if model is None:
            return cls(cache, PlanOnly(), vocab_size=None, max_prefill_tokens=max_prefill_tokens, audit=audit)
        worker = import_engine("nanoserve.build", "an engine with a model").build_worker(
            model, cache, options, device=device, dtype=dtype, audit=audit
        )
        config = worker.decoder.config
        return cls(
            cache,
            worker,
            vocab_size=config.vocab_size,
            eos_token_ids=config.eos_token_ids,
            max_prefill_tokens=max_prefill_tokens,
            audit=audit,
        )

    @property
    def has_requests(self) -> bool:
        """Whether a step has anything to do: a request waits or runs, or one has ended and no step has said so yet."""
        return self.scheduler.has_requests or bool(self._ended)

    def warm_up(self, shapes: Sequence[Shape] | None = None, *, allow_partial: bool = False) -> float:
        """Runs every shape of the policy once with nobody in it, and allows no other afterwards; returns the seconds.

        `shapes` are fewer of them, where it is known which the traffic needs. Where a capture fails, `allow_partial`
        goes on with the graphs there are: the policy becomes the list of them, and steps off it run eager. ValueError
        without a policy, or for a shape outside its set; CaptureFailed where a capture fails and a list is not allowed.
        """
        policy = self.cache.decode_buckets
        if policy is None:
            raise ValueError(
                "an open engine has no closed set to warm up: build it with a policy or bucket_decode=True"
            )
        if shapes is not None and not set(shapes) <= set(policy.shapes):
            raise ValueError(f"{min(set(shapes) - set(policy.shapes))} is no shape of the policy: {policy.render()}")
        start = perf_counter()
        warmed = self.worker.warm_up(policy.shapes if shapes is None else shapes, allow_partial=allow_partial)
        if len(warmed) < len(policy.shapes if shapes is None else shapes):
            limits = {"max_batch_size": self.cache.max_batch_size, "max_model_len": self.cache.max_model_len}
            self.cache.decode_buckets = CaptureList(warmed, **limits)
            self.worker.restrict(self.cache.decode_buckets)
        audit_blocks(self.cache)
        return perf_counter() - start

    def add_request(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        request_id: str | None = None,
        sampling: SamplingParams | None = None,
        stop_token_ids: Sequence[int] = (),
        ignore_eos: bool = False,
    ) -> str:
        """Queues a request and returns its id. Raises RequestRejected, and disturbs nothing, if it can never run.

        It is taken if and only if `len(prompt) + max_tokens - 1 <= max_model_len`: the last token made needs no slot.
        """
        if request_id is None:
            request_id = self._next_id()
        stops = frozenset(stop_token_ids) | (frozenset() if ignore_eos else self.eos_token_ids)
        self.scheduler.add(request_id, prompt, max_tokens, sampling or SamplingParams(), stops)
        return request_id

    def abort(self, request_id: str) -> RequestOutput:
        """Ends a live request at whatever stage and returns its blocks. KeyError where there is none of that id."""
        return self.scheduler.abort(request_id)

    def step(self) -> StepResult:
        """One token for every running request, and the first for every one admitted.

        Where the forward raises, the requests that were in it end as failed, their blocks are free, and the error goes
        on to the caller; the others are untouched (admitted ones wait again) and the next step reports the failed.
        """
        schedule = self.scheduler.schedule()
        start = perf_counter()
        plan = self._plan(schedule.decode_rows)
        planned = perf_counter()
        if plan is not None:
            try:
                self._decode(plan)
            except BaseException:
                self.scheduler.put_back(schedule.admitted)
                raise
        decoded = perf_counter()
        prefills = plan_prefill([request.length for request in schedule.admitted], self.max_prefill_tokens)
        for batch in prefills:
            self._prefill(schedule.decode_rows, batch, schedule.admitted)
        prefilled = perf_counter()
        if self.audit:
            audit_blocks(self.cache)
        ended, self._ended = self._ended, []
        made, self._made = self._made, []
        return StepResult(
            plan=plan,
            prefills=prefills,
            admitted=tuple(request.request_id for request in schedule.admitted),
            preempted=tuple(request.request_id for request in schedule.preempted),
            moves=schedule.moves,
            tokens=tuple(made),
            outputs=tuple(ended),
            plan_seconds=planned - start,
            decode_seconds=decoded - planned,
            prefill_seconds=prefilled - decoded,
        )

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        sampling: SamplingParams | None = None,
        ignore_eos: bool = False,
    ) -> list[RequestOutput]:
        """Runs prompts to their end and returns their outputs in the prompts' order. The engine must be idle."""
        if self.scheduler.has_requests:
            raise ValueError("generate needs an idle engine: step it until has_requests is false")
        ids: list[str] = []
        try:
            for prompt in prompts:
                ids.append(self.add_request(prompt, max_tokens=max_tokens, sampling=sampling, ignore_eos=ignore_eos))
        except ValueError:
            for request_id in ids:
                self.abort(request_id)
            raise
        outputs: dict[str, RequestOutput] = {}
        while self.has_requests:
            outputs.update((output.request_id, output) for output in self.step().outputs)
        return [outputs[request_id] for request_id in ids]

    def feed(self, rows: int) -> Ints:
        """What the first `rows` rows feed into their next decode step: the last token of each, int64 `[rows]`."""
        return np.array([request.output[-1] for request in self._requests(0, rows)], dtype=np.int64)

    def _plan(self, rows: int) -> DecodePlan | None:
        if not rows:
            return None
        plan = plan_decode(self.cache, rows)
        if self.audit or not self._gates_ran:
            check_plan(plan, self.cache)
            self._gates_ran = True
        return plan

    def _decode(self, plan: DecodePlan) -> None:
        requests = self._requests(0, plan.batch_size)
        try:
            drawn = self.worker.decode(plan, self.feed(plan.batch_size), [request.sampler for request in requests])
        except BaseException as error:
            self._fail(0, len(requests), error)
            raise
        self.cache.advance(plan.batch_size)
        self._take(0, requests, drawn)

    def _prefill(self, decode_rows: int, batch: PrefillBatch, admitted: Sequence[Request]) -> None:
        requests = admitted[batch.first : batch.first + batch.prompts]
        first_row = decode_rows + batch.first
        prompts, samplers = [request.tokens for request in requests], [request.sampler for request in requests]
        try:
            drawn = self.worker.prefill(first_row, prompts, samplers)
        except BaseException as error:
            self._fail(first_row, len(requests), error)
            self.scheduler.put_back(admitted[batch.first + batch.prompts :])
            raise
        self._take(first_row, requests, drawn)

    def _take(self, first_row: int, requests: Sequence[Request], drawn: Drawn) -> None:
        """Appends each row's token to its request, and ends those that are done."""
        for row, (request, token, finite) in enumerate(zip(requests, *drawn, strict=True), first_row):
            if not finite:
                self._ended.append(self.scheduler.end(row, "failed", "the logits were not finite"))
                continue
            self._made.append((request.request_id, token))
            if reason := request.take(token):
                self._ended.append(self.scheduler.end(row, "finished", reason))

    def _fail(self, first_row: int, rows: int, error: BaseException) -> None:
        reason = f"{type(error).__name__}: {error}"
        self._ended += [self.scheduler.end(row, "failed", reason) for row in range(first_row, first_row + rows)]

    def _requests(self, first_row: int, rows: int) -> list[Request]:
        requests = [request for request in self.scheduler.running[first_row : first_row + rows] if request is not None]
        assert len(requests) == rows, "rows are a prefix without holes once a step is scheduled"
        return requests

    def _next_id(self) -> str:
        while True:
            request_id = f"request-{self._unnamed}"
            self._unnamed += 1
            if request_id not in self.scheduler:
                return request_id
