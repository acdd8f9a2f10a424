"""The engine end to end: the same tokens however a step is run, nothing lost, errors that stay where they belong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from near_ties import NEAR, assert_same_but_for_near_ties, top_two_gap

from nanoserve import (
    BlocksUnsound,
    DecodeBuckets,
    DecodePlan,
    DoesNotFit,
    Engine,
    KVCacheExhausted,
    PlanUnsound,
    RequestOutput,
    RequestRejected,
    SamplingParams,
    Shape,
    SlotsUnsound,
    StaircaseBuckets,
    StepResult,
    audit_blocks,
)
from nanoserve.prefill import PrefillBatch, plan_prefill, prefill_padding_waste

torch = pytest.importorskip("torch")

from nanoserve.model.decoder import Decoder  # noqa: E402
from nanoserve.sampling import Sampler  # noqa: E402

Build = Callable[..., Engine]

ROWS, LONGEST = 8, 48
PROMPT_LENS = (5, 16, 1, 9, 17, 3, 12, 2, 7, 11)
CROWD = (4, 8, 16, 32, 30, 8, 16, 4, 21, 2)
PROMPTS = [[(31 * i + 7 * j * j + 3) % 97 for j in range(length)] for i, length in enumerate(PROMPT_LENS)]
BUCKETS = DecodeBuckets(ROWS, LONGEST, width_multiple=16)
STAIRS = StaircaseBuckets(ROWS, LONGEST, {4: [20, 48], 8: [32, 48]})


def drain(engine: Engine, limit: int = 2000) -> list[StepResult]:
    results = []
    while engine.has_requests:
        results.append(engine.step())
        assert len(results) < limit, "the engine makes no progress"
    return results


def outputs_of(results: Sequence[StepResult]) -> dict[str, RequestOutput]:
    return {output.request_id: output for step in results for output in step.outputs}


def serve(engine: Engine, order: Sequence[int] = range(len(CROWD)), **options: Any) -> dict[int, tuple[int, ...]]:
    """The crowd's tokens by request, submitted in `order`."""
    for i in order:
        engine.add_request(PROMPTS[i], max_tokens=CROWD[i], request_id=str(i), **options)
    tokens = {int(name): output.tokens for name, output in outputs_of(drain(engine)).items()}
    assert audit_blocks(engine.cache) == 0
    return tokens


def partings(decoder: Decoder, first: dict[int, tuple[int, ...]], second: dict[int, tuple[int, ...]]) -> int:
    """How many requests part. Where two runs part, the choice must have been a near tie (1e-4), else it is a fault."""
    assert first.keys() == second.keys()
    for i, tokens in first.items():
        assert len(tokens) == len(second[i]) == CROWD[i]
    return sum(not assert_same_but_for_near_ties(decoder, PROMPTS[i], first[i], second[i]) for i in first)


# The same tokens (invariant 9).

WAYS: dict[str, dict[str, Any]] = {
    "bucketed": {"policy": BUCKETS},
    "default buckets": {"bucket_decode": True},
    "staircase": {"policy": STAIRS},
    "compiled": {"policy": BUCKETS, "runner": "compiled"},
    "preempted": {"num_blocks": 12, "block_size": 4},
    "preempted, bucketed": {"num_blocks": 12, "block_size": 4, "policy": BUCKETS},
    "blocks of one token": {"block_size": 1},
    "blocks larger than the longest": {"block_size": 64},
    "prompts prefilled alone": {"max_prefill_tokens": 1},
    "prompts prefilled in pairs": {"max_prefill_tokens": 32},
}


@pytest.fixture(scope="module")
def alone(shared_decoder: Decoder) -> dict[int, tuple[int, ...]]:
    """Every request by itself, open and eager: what all others are held against."""
    import copy

    tokens = {}
    for i in range(len(CROWD)):
        engine = Engine.build(copy.deepcopy(shared_decoder), ROWS, LONGEST, device="cpu", audit=True)
        tokens |= serve(engine, [i])
    return tokens


def test_the_crowd_makes_tokens_that_depend_on_their_prompts(alone: dict[int, tuple[int, ...]]) -> None:
    """Else the comparisons below would pass on an engine that reads nothing at all."""
    assert len({tokens[:2] for tokens in alone.values()}) == len(CROWD)
    assert all(len(set(tokens)) > len(tokens) // 3 for tokens in alone.values())


def test_the_first_token_of_a_decode_is_what_a_prefill_of_its_history_gives(
    decoder: Decoder, alone: dict[int, tuple[int, ...]]
) -> None:
    """The paged read against one dense causal forward, token by token."""
    for i in (0, 2, 4):
        for at in range(0, CROWD[i], 3):
            history = [*PROMPTS[i], *alone[i][:at]]
            engine = Engine.build(decoder, 1, LONGEST, device="cpu")
            (output,) = engine.generate([history], max_tokens=1)
            assert output.tokens[0] == alone[i][at] or top_two_gap(decoder, history) < NEAR


@pytest.mark.parametrize("way", ["open", *WAYS])
def test_greedy_tokens_are_the_same_alone_and_in_a_crowd(
    way: str, build: Build, decoder: Decoder, alone: dict[int, tuple[int, ...]]
) -> None:
    engine = build(ROWS, LONGEST, **WAYS.get(way, {}))
    if engine.cache.bucket_decode:
        engine.warm_up()
    count = partings(decoder, alone, serve(engine))
    print(f"{way}: {count} of {len(CROWD)} requests part from the run alone, each at a near tie")


@pytest.mark.parametrize("order", [range(9, -1, -1), (4, 9, 0, 7, 2, 5, 8, 1, 6, 3)])
def test_greedy_tokens_are_the_same_in_any_row_and_order(
    order: Sequence[int], build: Build, decoder: Decoder, alone: dict[int, tuple[int, ...]]
) -> None:
    tokens = serve(build(ROWS, LONGEST, policy=BUCKETS), order)
    print(f"{partings(decoder, alone, tokens)} of {len(CROWD)} requests part, each at a near tie")


def test_the_preempted_runs_were_preempted(build: Build) -> None:
    """A pool that happened to be large enough would make the comparison above empty."""
    engine = build(ROWS, LONGEST, **WAYS["preempted"])
    for i, prompt in enumerate(PROMPTS):
        engine.add_request(prompt, max_tokens=CROWD[i])
    results = drain(engine)
    assert sum(len(step.preempted) for step in results) >= 3
    assert sum(output.preemptions for output in outputs_of(results).values()) >= 3


def test_open_and_bucketed_runs_present_the_same_open_shapes(build: Build) -> None:
    """One schedule for both, and the shapes that ran are the policy's for the shapes that were needed."""
    runs = []
    for options in ({}, {"policy": BUCKETS}, {"policy": BUCKETS, "runner": "compiled"}):
        engine = build(ROWS, LONGEST, **options)
        for i, prompt in enumerate(PROMPTS):
            engine.add_request(prompt, max_tokens=CROWD[i])
        runs.append([step.plan for step in drain(engine) if step.plan])
    opened = [[plan.open_shape for plan in run] for run in runs]
    assert opened[0] == opened[1] == opened[2]
    assert [plan.shape for plan in runs[0]] == opened[0]
    bucketed = [BUCKETS.shape_for(shape.rows, shape.width) for shape in opened[0]]
    assert [plan.shape for plan in runs[1]] == [plan.shape for plan in runs[2]] == bucketed


def test_a_compiled_run_compiles_nothing_after_its_warm_up(build: Build) -> None:
    engine = build(ROWS, LONGEST, policy=STAIRS, runner="compiled")
    engine.warm_up()
    region = engine.worker.runner.region  # type: ignore[attr-defined]
    assert region.compiles == STAIRS.count == 4
    serve(engine)
    assert (region.compiles, region.recompiles) == (4, 0)
    engine.warm_up()
    assert (region.compiles, region.recompiles) == (4, 0)


# One request on the clock.


@pytest.mark.parametrize(("prompt", "outputs"), [(5, 9), (16, 1), (16, 2), (1, 17), (40, 9)])
def test_a_request_prefills_in_its_first_tick_and_decodes_outputs_less_one(prompt: int, outputs: int) -> None:
    engine = Engine.build(None, 4, LONGEST, audit=True)
    engine.add_request([0] * prompt, max_tokens=outputs, request_id="a")
    results = drain(engine)
    assert results[0].plan is None
    assert results[0].prefills == (PrefillBatch(0, 1, prompt, prompt),)
    assert all(step.tokens == (("a", 0),) for step in results), "one token a tick, the first in prefill"
    plans = [step.plan for step in results[1:]]
    assert [plan and plan.width for plan in plans] == [prompt + j for j in range(1, outputs)]
    assert [plan and plan.live_cells for plan in plans] == [prompt + j for j in range(1, outputs)]
    assert results[-1].outputs[0].tokens == (0,) * outputs


@pytest.mark.parametrize(("rows", "longest", "block_size"), [(1, 1, 16), (1, 1, 1), (1, 2, 16), (2, 3, 2)])
def test_the_smallest_engines_work(build: Build, rows: int, longest: int, block_size: int) -> None:
    engine = build(rows, longest, block_size=block_size, bucket_decode=True)
    engine.warm_up()
    for output in engine.generate([[3], [4], [5]], max_tokens=longest):
        assert (output.outcome, len(output.tokens)) == ("finished", longest)
    for output in engine.generate([[3] * longest] * 3, max_tokens=1):
        assert len(output.tokens) == 1
    assert audit_blocks(engine.cache) == 0


# How requests end.


def greedy(build: Build, prompt: Sequence[int], count: int) -> tuple[int, ...]:
    (output,) = build(1, LONGEST).generate([prompt], max_tokens=count)
    return output.tokens


def with_eos(decoder: Decoder, *eos: int) -> Decoder:
    decoder.config = dataclasses.replace(decoder.config, eos_token_ids=eos)
    return decoder


def first_new(tokens: Sequence[int], after: int) -> int:
    """The first place after `after` whose token did not come before: where a stop on it would end the request."""
    return next(at for at in range(after + 1, len(tokens)) if tokens[at] not in tokens[:at])


def test_eos_ends_a_request_and_is_its_last_token(build: Build, decoder: Decoder) -> None:
    tokens = greedy(build, PROMPTS[0], 8)
    at = first_new(tokens, 2)
    engine = build(2, LONGEST, model=with_eos(decoder, 96, tokens[at]))
    (output,) = engine.generate([PROMPTS[0]], max_tokens=8)
    assert (output.tokens, output.outcome, output.reason) == (tokens[: at + 1], "finished", "stop")


def test_ignore_eos_runs_to_the_length(build: Build, decoder: Decoder) -> None:
    tokens = greedy(build, PROMPTS[0], 8)
    engine = build(2, LONGEST, model=with_eos(decoder, tokens[0], tokens[3]))
    (output,) = engine.generate([PROMPTS[0]], max_tokens=8, ignore_eos=True)
    assert (output.tokens, output.reason) == (tokens, "length")


def test_ignore_eos_leaves_the_callers_own_stop_tokens_alone(build: Build, decoder: Decoder) -> None:
    """vllm#4589: ignoring EOS is about the model's own end, not about what the caller asked for."""
    tokens = greedy(build, PROMPTS[0], 8)
    engine = build(2, LONGEST, model=with_eos(decoder, tokens[1]))
    at = first_new(tokens, 2)
    engine.add_request(PROMPTS[0], max_tokens=8, stop_token_ids=[tokens[at]], ignore_eos=True, request_id="a")
    output = outputs_of(drain(engine))["a"]
    assert (output.tokens, output.reason) == (tokens[: at + 1], "stop")


def test_a_stop_token_made_in_prefill_ends_the_request_before_it_decodes(build: Build) -> None:
    tokens = greedy(build, PROMPTS[0], 1)
    engine = build(2, LONGEST)
    engine.add_request(PROMPTS[0], max_tokens=8, stop_token_ids=tokens, request_id="a")
    engine.add_request(PROMPTS[1], max_tokens=2, request_id="b")
    first = engine.step()
    assert [(o.request_id, o.tokens, o.reason) for o in first.outputs] == [("a", tokens, "stop")]
    second = engine.step()
    assert second.moves == ((1, 0),)
    assert second.plan is not None
    assert second.plan.batch_size == 1
    assert [o.request_id for o in second.outputs] == ["b"]
    assert audit_blocks(engine.cache) == 0


def test_a_stop_token_as_the_last_allowed_is_a_stop(build: Build) -> None:
    tokens = greedy(build, PROMPTS[0], 8)
    at = first_new(tokens, 1)
    engine = build(1, LONGEST)
    engine.add_request(PROMPTS[0], max_tokens=at + 1, stop_token_ids=[tokens[at]], request_id="a")
    output = outputs_of(drain(engine))["a"]
    assert (len(output.tokens), output.reason) == (at + 1, "stop")


def test_a_stop_token_in_the_prompt_stops_nothing(build: Build) -> None:
    engine = build(1, LONGEST)
    engine.add_request([5, 6, 5], max_tokens=1, stop_token_ids=[5, 6], request_id="a")
    assert len(outputs_of(drain(engine))["a"].tokens) == 1


def test_preemption_keeps_the_token_budget(build: Build) -> None:
    """Two made and three more are five: a recompute neither starts the count again nor repeats a token."""
    engine = build(4, LONGEST, block_size=4, num_blocks=12)
    for i in range(4):
        engine.add_request(PROMPTS[0], max_tokens=20, request_id=str(i))
    outputs = outputs_of(drain(engine))
    assert any(output.preemptions for output in outputs.values())
    assert {len(output.tokens) for output in outputs.values()} == {20}
    assert len({output.tokens for output in outputs.values()}) == 1


def test_outputs_are_snapshots(build: Build) -> None:
    """A list handed out and appended to later showed callers tokens from their future."""
    engine = build(2, LONGEST)
    engine.add_request(PROMPTS[0], max_tokens=3, request_id="a")
    engine.add_request(PROMPTS[1], max_tokens=9, request_id="b")
    engine.step()
    aborted = engine.abort("b")
    results = drain(engine)
    held = results[-1].outputs[0]
    tokens, prompt = held.tokens, list(PROMPTS[0])
    engine.add_request(prompt, max_tokens=5, request_id="a")
    prompt[0] = 96
    again = outputs_of(drain(engine))["a"]
    assert held.tokens == tokens == again.tokens[:3], "the caller's list may change while the request waits"
    assert len(aborted.tokens) == 1
    assert isinstance(held.tokens, tuple)


def test_generate_returns_outputs_in_the_order_of_its_prompts(build: Build) -> None:
    outputs = build(2, LONGEST).generate([PROMPTS[i] for i in (3, 0, 1)], max_tokens=4)
    assert [output.prompt_len for output in outputs] == [PROMPT_LENS[i] for i in (3, 0, 1)]
    assert build(2, LONGEST).generate([], max_tokens=4) == []


def test_generate_needs_an_idle_engine(build: Build) -> None:
    engine = build(2, LONGEST)
    engine.add_request([1], max_tokens=3)
    with pytest.raises(ValueError, match="idle"):
        engine.generate([[1]], max_tokens=2)


def test_a_prompt_that_generate_rejects_leaves_the_engine_idle(build: Build) -> None:
    # FAULT: the prompts before the bad one stay queued, and every later generate refuses a busy engine.
    engine = build(2, LONGEST)
    with pytest.raises(RequestRejected):
        engine.generate([[1], [2], []], max_tokens=2)
    assert not engine.has_requests


# Sampling.


def sampled(build: Build, seed: int | None, neighbours: Sequence[SamplingParams], **options: Any) -> tuple[int, ...]:
    engine = build(ROWS, LONGEST, **options)
    for i, params in enumerate(neighbours):
        engine.add_request(PROMPTS[i + 1], max_tokens=CROWD[i], sampling=params)
    params = SamplingParams() if seed is None else SamplingParams(temperature=0.9, top_p=0.9, seed=seed)
    engine.add_request(PROMPTS[0], max_tokens=16, request_id="mine", sampling=params)
    return outputs_of(drain(engine))["mine"].tokens


@pytest.mark.parametrize("seed", [0, 7])
def test_a_seeded_request_is_the_same_whatever_surrounds_it(build: Build, seed: int) -> None:
    """vllm#51226: a seed was ignored where a neighbour had none."""
    alone = sampled(build, seed, [])
    for neighbours in ([SamplingParams()] * 3, [SamplingParams(1.0, 1.0, seed)] * 6, [SamplingParams(1.0, seed=3)] * 1):
        for options in ({}, {"policy": BUCKETS}, {"block_size": 4, "num_blocks": 14}):
            assert sampled(build, seed, neighbours, **options) == alone


def test_seeds_differ_and_repeat(build: Build) -> None:
    runs = [sampled(build, seed, []) for seed in (0, 1, 2, 0)]
    assert runs[0] == runs[3]
    assert len(set(runs)) == 3
    assert sampled(build, None, []) not in runs


def test_a_preempted_sampled_request_goes_on_with_its_own_draws(build: Build) -> None:
    params = SamplingParams(temperature=1.0, seed=5)
    (calm,) = build(1, LONGEST).generate([PROMPTS[0]], max_tokens=20, sampling=params)
    engine = build(3, LONGEST, block_size=4, num_blocks=12)
    outputs = engine.generate([PROMPTS[0]] * 3, max_tokens=20, sampling=params)
    assert any(output.preemptions for output in outputs)
    assert {output.tokens for output in outputs} == {calm.tokens}


def test_greedy_neighbours_of_a_sampled_request_stay_greedy(build: Build) -> None:
    engine = build(2, LONGEST)
    engine.add_request(PROMPTS[1], max_tokens=9, request_id="hot", sampling=SamplingParams(temperature=2.0, seed=1))
    engine.add_request(PROMPTS[0], max_tokens=9, request_id="cold")
    assert outputs_of(drain(engine))["cold"].tokens == greedy(build, PROMPTS[0], 9)


def test_top_p_keeps_the_fewest_tokens_that_reach_it() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    for top_p, kept in [(0.5, {0}), (0.51, {0, 1}), (0.8, {0, 1}), (0.95, {0, 1, 2}), (1.0, {0, 1, 2, 3}), (1e-9, {0})]:
        sampler = Sampler(SamplingParams(temperature=1.0, top_p=top_p, seed=1))
        assert {sampler.draw(logits.float()) for _ in range(300)} == kept


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({"temperature": -0.1}, "temperature.*-0.1"),
        ({"temperature": float("nan")}, "temperature.*nan"),
        ({"temperature": float("inf")}, "temperature.*inf"),
        ({"top_p": 0.0}, "top_p.*0.0"),
        ({"top_p": 1.1}, r"top_p.*1\.1"),
        ({"seed": -1}, "seed.*-1"),
    ],
)
def test_sampling_that_means_nothing_is_refused(params: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        SamplingParams(**params)


def test_a_seed_that_no_generator_takes_is_refused_where_it_is_asked_for() -> None:
    # FAULT: 2**64 is accepted; torch refuses it at the first draw, which fails every request of that batch.
    with pytest.raises(ValueError, match="seed"):
        SamplingParams(temperature=1.0, seed=2**64)


def test_a_tiny_temperature_is_nearly_greedy_and_harms_nobody(build: Build) -> None:
    # FAULT: logits / 1e-310 overflow to inf, softmax gives NaN, multinomial raises, and the whole batch fails.
    engine = build(2, LONGEST)
    engine.add_request(PROMPTS[0], max_tokens=3, request_id="tiny", sampling=SamplingParams(temperature=1e-310))
    engine.add_request(PROMPTS[1], max_tokens=3, request_id="neighbour")
    outputs = outputs_of(drain(engine))
    assert outputs["tiny"].tokens == greedy(build, PROMPTS[0], 3)
    assert outputs["neighbour"].outcome == "finished"


# What goes wrong stays where it is.


def failing(times: int, inner: Callable[..., Any]) -> Callable[..., Any]:
    """`inner`, raising on its first `times` calls."""
    left = [times]

    def call(*args: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise RuntimeError("the device is gone")
        return inner(*args)

    return call


def test_a_failed_decode_ends_its_rows_and_the_engine_goes_on(build: Build) -> None:
    engine = build(2, LONGEST)
    for i in range(4):
        engine.add_request(PROMPTS[i], max_tokens=5, request_id=str(i))
    engine.step()
    engine.worker.decode = failing(1, engine.worker.decode)  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="the device is gone"):
        engine.step()
    assert audit_blocks(engine.cache) == 0
    results = drain(engine)
    outputs = outputs_of(results)
    assert {name: o.outcome for name, o in outputs.items()} == {
        "0": "failed",
        "1": "failed",
        "2": "finished",
        "3": "finished",
    }
    assert outputs["0"].reason == "RuntimeError: the device is gone"
    assert len(outputs["0"].tokens) == 1, "what it had made is kept"
    assert [o.request_id for o in results[0].outputs] == ["0", "1"], "the next step reports the failed"
    assert outputs["3"].tokens == greedy(build, PROMPTS[3], 5)


def test_a_failed_decode_leaves_those_admitted_in_the_same_step_untouched(build: Build) -> None:
    # Pinned: they hold rows and were never prefilled; the next step feeds output[-1] of nothing (IndexError), and one
    # that comes back from preemption would decode over an empty context, silently.
    engine = build(4, LONGEST)
    engine.add_request(PROMPTS[0], max_tokens=5, request_id="running")
    engine.step()
    engine.add_request(PROMPTS[1], max_tokens=5, request_id="new")
    engine.worker.decode = failing(1, engine.worker.decode)  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="the device is gone"):
        engine.step()
    outputs = outputs_of(drain(engine))
    assert outputs["running"].outcome == "failed"
    assert outputs["new"].tokens == greedy(build, PROMPTS[1], 5)


def test_a_failed_prefill_ends_its_batch_and_leaves_the_running_alone(build: Build) -> None:
    engine = build(4, LONGEST)
    engine.add_request(PROMPTS[0], max_tokens=9, request_id="running")
    engine.step()
    engine.add_request(PROMPTS[1], max_tokens=5, request_id="new")
    engine.worker.prefill = failing(1, engine.worker.prefill)  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="the device is gone"):
        engine.step()
    outputs = outputs_of(drain(engine))
    assert outputs["new"].outcome == "failed"
    assert outputs["running"].tokens == greedy(build, PROMPTS[0], 9)
    assert audit_blocks(engine.cache) == 0


def test_a_failed_prefill_batch_takes_no_other_batch_with_it(build: Build) -> None:
    # FAULT: `step` says "the others are untouched", but the batches behind the failed one end as failed too.
    engine = build(4, LONGEST, max_prefill_tokens=1)
    for i in range(3):
        engine.add_request(PROMPTS[i], max_tokens=3, request_id=str(i))
    engine.worker.prefill = failing(1, engine.worker.prefill)  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="the device is gone"):
        engine.step()
    outputs = outputs_of(drain(engine))
    assert [outputs[name].outcome for name in "012"] == ["failed", "finished", "finished"]


def test_tokens_made_before_a_prefill_fails_are_kept(build: Build) -> None:
    engine = build(4, LONGEST)
    engine.add_request(PROMPTS[0], max_tokens=3, request_id="running")
    engine.step()
    engine.add_request(PROMPTS[1], max_tokens=3, request_id="new")
    engine.worker.prefill = failing(1, engine.worker.prefill)  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        engine.step()
    assert outputs_of(drain(engine))["running"].tokens == greedy(build, PROMPTS[0], 3)


@pytest.mark.parametrize("call", ["prefill", "decode"])
def test_the_last_request_to_fail_is_still_reported(build: Build, call: str) -> None:
    # Pinned: has_requests is False at once, so a loop `while engine.has_requests: engine.step()` never hears of it.
    engine = build(1, LONGEST)
    engine.add_request(PROMPTS[0], max_tokens=3, request_id="only")
    setattr(engine.worker, call, failing(1, getattr(engine.worker, call)))
    with pytest.raises(RuntimeError):
        drain(engine)
    assert outputs_of(drain(engine))["only"].outcome == "failed"


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_logits_that_are_not_finite_fail_only_their_request(build: Build, poison: float) -> None:
    engine = build(ROWS, LONGEST, policy=BUCKETS)
    for i in range(3):
        engine.add_request(PROMPTS[i], max_tokens=6, request_id=str(i))
    engine.step()
    forward = engine.worker.forward  # type: ignore[attr-defined]

    def poisoned(plan: DecodePlan, feed: np.ndarray) -> Any:
        logits = forward(plan, feed)
        logits[1, 40] = poison
        return logits

    engine.worker.forward = poisoned  # type: ignore[attr-defined]
    (ended,) = engine.step().outputs
    assert (ended.request_id, ended.outcome) == ("1", "failed")
    engine.worker.forward = forward  # type: ignore[attr-defined]
    outputs = outputs_of(drain(engine))
    assert audit_blocks(engine.cache) == 0
    for i in (0, 2):
        assert outputs[str(i)].tokens == greedy(build, PROMPTS[i], 6)


def test_a_request_whose_own_cache_is_poisoned_fails_and_its_blocks_are_clean_again(build: Build) -> None:
    engine = build(ROWS, LONGEST, policy=BUCKETS, num_blocks=6)
    for i in range(2):
        engine.add_request(PROMPTS[i], max_tokens=12, request_id=str(i))
    engine.step()
    slots = engine.cache.slot_table.host[0, :5]
    engine.cache.pool[:, :, slots] = float("nan")
    step = engine.step()
    assert [(o.request_id, o.outcome, o.reason) for o in step.outputs] == [
        ("0", "failed", "the logits were not finite")
    ]
    assert len(step.outputs[0].tokens) == 1, "no token is made of NaN"
    engine.add_request(PROMPTS[2], max_tokens=12, request_id="2")
    outputs = outputs_of(drain(engine))
    assert outputs["1"].tokens == greedy(build, PROMPTS[1], 12)
    assert outputs["2"].tokens == greedy(build, PROMPTS[2], 12)


def test_two_engines_over_one_decoder(decoder: Decoder, build: Build) -> None:
    """An address that a step reads is constant for the engine's life, whoever else is built."""
    # FAULT: the second `prepare` replaces the RoPE table by a shorter one at another address.
    first = Engine.build(decoder, 2, LONGEST, device="cpu")
    before = decoder.rope.data_ptr()
    Engine.build(decoder, 2, 8, device="cpu")
    assert decoder.rope.data_ptr() == before
    (output,) = first.generate([PROMPTS[0]], max_tokens=20)
    assert output.tokens == greedy(build, PROMPTS[0], 20)


# Prefill.


@pytest.mark.parametrize(
    ("lens", "limit", "batches"),
    [
        ((), 10, []),
        ((5,), 1, [(0, 1, 5, 5)]),
        ((3, 3, 3), 9, [(0, 3, 3, 9)]),
        ((3, 3, 3), 8, [(0, 2, 3, 6), (2, 1, 3, 3)]),
        ((1, 8), 9, [(0, 1, 1, 1), (1, 1, 8, 8)]),
        ((1, 8, 8), 16, [(0, 2, 8, 9), (2, 1, 8, 8)]),
        ((20, 1, 1), 10, [(0, 1, 20, 20), (1, 2, 1, 2)]),
    ],
)
def test_prompts_are_batched_in_order_up_to_the_padded_cells(
    lens: tuple[int, ...], limit: int, batches: list[tuple[int, int, int, int]]
) -> None:
    planned = plan_prefill(lens, limit)
    assert [dataclasses.astuple(batch) for batch in planned] == batches
    assert sum(batch.tokens for batch in planned) == sum(lens)
    assert all(batch.cells <= limit or batch.prompts == 1 for batch in planned)


def test_prefill_waste_is_its_own_figure() -> None:
    assert prefill_padding_waste(()) == 0.0
    assert prefill_padding_waste(plan_prefill((1, 3), 100)) == 1 - 4 / 6
    assert prefill_padding_waste(plan_prefill((1, 3), 1)) == 0.0


def test_batches_split_where_rows_end_in_between(build: Build) -> None:
    """The first batch's request stops in prefill and leaves a hole; the next batches' rows must not shift."""
    singles = [greedy(build, PROMPTS[i], 6) for i in range(4)]
    engine = build(4, LONGEST, max_prefill_tokens=1)
    for i in range(4):
        engine.add_request(PROMPTS[i], max_tokens=1 if i in (0, 2) else 6, request_id=str(i))
    first = engine.step()
    assert len(first.prefills) == 4
    assert [o.request_id for o in first.outputs] == ["0", "2"]
    outputs = outputs_of([first, *drain(engine)])
    assert [outputs[str(i)].tokens for i in range(4)] == [singles[i][: 1 if i in (0, 2) else 6] for i in range(4)]


# Gates, through the engine.


def plant(engine: Engine, monkeypatch: pytest.MonkeyPatch, **changes: Callable[[DecodePlan], Any]) -> None:
    import nanoserve.engine

    real = nanoserve.engine.plan_decode

    def planted(cache: Any, rows: int) -> DecodePlan:
        plan = real(cache, rows)
        return dataclasses.replace(plan, **{name: change(plan) for name, change in changes.items()})

    monkeypatch.setattr(nanoserve.engine, "plan_decode", planted)


def edited(vector: np.ndarray, index: int, value: int) -> np.ndarray:
    copy = vector.copy()
    copy[index] = value
    return copy


PLANTED: list[tuple[dict[str, Callable[[DecodePlan], Any]], type[AssertionError], str]] = [
    ({"graph_width": lambda p: 48}, PlanUnsound, "not what the policy says"),
    ({"context_snapshot": lambda p: edited(p.context_snapshot, 0, 9)}, PlanUnsound, "stale"),
    ({"slots": lambda p: p.slots.clone()}, SlotsUnsound, "no window"),
    ({"is_window": lambda p: False}, SlotsUnsound, "gathered into a copy"),
    ({"write_snapshot": lambda p: edited(p.write_snapshot, 0, 3)}, SlotsUnsound, "was planned to write slot 3"),
    ({"write_snapshot": lambda p: edited(p.write_snapshot, 3, 0)}, PlanUnsound, "only the sink"),
    ({"context_snapshot": lambda p: edited(p.context_snapshot, 3, 1)}, PlanUnsound, "must read nothing"),
    ({"sink_slot": lambda p: 0}, PlanUnsound, "sink_slot is 0"),
]


@pytest.mark.parametrize("audit", [False, True])
@pytest.mark.parametrize(("changes", "error", "says"), PLANTED)
def test_the_first_step_after_warm_up_runs_every_gate(
    build: Build,
    monkeypatch: pytest.MonkeyPatch,
    audit: bool,
    changes: dict[str, Callable[[DecodePlan], Any]],
    error: type[AssertionError],
    says: str,
) -> None:
    engine = build(ROWS, LONGEST, policy=BUCKETS, audit=audit)
    engine.warm_up()
    for i in (0, 2, 3):
        engine.add_request(PROMPTS[i], max_tokens=6)
    engine.step()
    plant(engine, monkeypatch, **changes)
    with pytest.raises(error, match=says):
        engine.step()


def test_a_row_without_a_block_is_caught_in_the_step(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = build(2, LONGEST, block_size=4)
    engine.add_request([1] * 4, max_tokens=6)
    engine.step()
    monkeypatch.setattr(engine.scheduler, "_grow", lambda: None)
    with pytest.raises(PlanUnsound, match="would write its token to the sink"):
        engine.step()


def test_two_rows_on_one_slot_are_caught_in_the_step(build: Build) -> None:
    engine = build(2, LONGEST)
    engine.add_request([1] * 4, max_tokens=6)
    engine.add_request([1] * 4, max_tokens=6)
    engine.step()
    engine.cache.slot_table.host[1] = engine.cache.slot_table.host[0]
    with pytest.raises(PlanUnsound, match="is written by 2 rows"):
        engine.step()


def test_gates_run_on_the_first_step_only_unless_audited(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    for audit in (False, True):
        with monkeypatch.context() as patch:
            engine = build(2, LONGEST, policy=DecodeBuckets(2, LONGEST), audit=audit)
            engine.add_request([1] * 4, max_tokens=9)
            engine.step()
            engine.step()
            plant(engine, patch, is_window=lambda plan: False)
            if audit:
                with pytest.raises(SlotsUnsound):
                    engine.step()
            else:
                engine.step()


def test_a_lost_block_is_caught_by_the_audit_of_the_step(build: Build) -> None:
    engine = build(2, LONGEST)
    engine.add_request([1] * 4, max_tokens=9)
    engine.step()
    engine.cache.allocator.allocate(1)
    with pytest.raises(BlocksUnsound, match="stranded"):
        engine.step()


# Warm-up.


@pytest.mark.parametrize("runner", ["eager", "compiled"])
def test_warm_up_moves_nothing_and_makes_no_shape_twice(build: Build, runner: str) -> None:
    engine = build(2, LONGEST, policy=DecodeBuckets(2, LONGEST, width_multiple=24), runner=runner)
    engine.add_request(PROMPTS[0], max_tokens=9, request_id="a")
    engine.step()
    cache = engine.cache

    def state() -> list[Any]:
        tables = (cache.block_table.blocks, cache.block_table.counts, cache.slot_table.host, cache.lengths)
        return [*(table.tolist() for table in tables), cache.allocator.free_blocks.tolist(), cache.num_rows]

    before, pool = state(), cache.pool.clone()
    addresses = [cache.pool.data_ptr(), cache.slot_table.view.data_ptr(), engine.worker.inputs.buffer.data_ptr()]  # type: ignore[attr-defined]
    engine.warm_up()
    compiles = getattr(getattr(engine.worker.runner, "region", None), "compiles", None)  # type: ignore[attr-defined]
    engine.warm_up()
    assert compiles == getattr(getattr(engine.worker.runner, "region", None), "compiles", None)  # type: ignore[attr-defined]
    assert state() == before
    unchanged = torch.ones(cache.num_slots, dtype=torch.bool)
    unchanged[cache.sink_slot] = False
    assert torch.equal(cache.pool[:, :, unchanged], pool[:, :, unchanged]), "only the sink was written"
    assert outputs_of(drain(engine))["a"].tokens == greedy(build, PROMPTS[0], 9)
    after = [cache.pool.data_ptr(), cache.slot_table.view.data_ptr(), engine.worker.inputs.buffer.data_ptr()]  # type: ignore[attr-defined]
    assert after == addresses


def test_addresses_are_constant_over_a_mixed_life(build: Build) -> None:
    engine = build(4, LONGEST, policy=DecodeBuckets(4, LONGEST), block_size=4, num_blocks=14)
    seen = set()
    for i in range(60):
        if i % 3 == 0:
            engine.add_request(PROMPTS[i % 10], max_tokens=CROWD[i % 10], request_id=str(i))
        if i % 11 == 10 and str(i - i % 3) in engine.scheduler:
            engine.abort(str(i - i % 3))
        step = engine.step()
        seen.add((engine.cache.pool.data_ptr(), engine.cache.slot_table.view.data_ptr()))
        if step.plan:
            seen.add((engine.cache.pool.data_ptr(), step.plan.slots.data_ptr()))
    assert len(seen) == 1
    drain(engine)


def test_an_open_engine_has_nothing_to_warm_up(build: Build) -> None:
    with pytest.raises(ValueError, match="no closed set to warm up"):
        build(2, LONGEST).warm_up()


def test_warm_up_of_a_shape_that_is_none_of_the_policys(build: Build) -> None:
    engine = build(2, LONGEST, policy=DecodeBuckets(2, LONGEST))
    with pytest.raises(ValueError, match="2x7 is no shape of the policy"):
        engine.warm_up([Shape(2, 7)])


# What does not fit together.


def test_bucketing_is_off_unless_asked_for(build: Build) -> None:
    assert build(2, LONGEST).cache.decode_buckets is None
    assert build(2, LONGEST, bucket_decode=False).cache.decode_buckets is None
    assert build(2, LONGEST, bucket_decode=True).cache.decode_buckets == DecodeBuckets(2, LONGEST)
    assert build(8, LONGEST, policy=STAIRS).cache.decode_buckets is STAIRS


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"bucket_decode": False, "policy": BUCKETS}, "bucket_decode=False beside a policy"),
        ({"policy": DecodeBuckets(4, LONGEST)}, "4 rows and 48 columns.*8 and 48"),
        ({"num_blocks": 2}, "num_blocks 2 is too small.*48 needs 3 blocks"),
        ({"runner": "warp"}, "'warp' is unknown.*eager, compiled"),
        ({"block_size": 0}, "block_size.*0"),
    ],
)
def test_parts_that_contradict_each_other_are_refused(build: Build, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        build(ROWS, LONGEST, **options)


def test_a_pool_that_does_not_fit_names_the_bytes_and_a_num_blocks_that_would(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool here is 2 layers x 2 x 2 heads x 8 floats a slot: 256 bytes, 4,096 a block of 16."""
    import nanoserve.model_worker

    monkeypatch.setattr(nanoserve.model_worker, "available_host_bytes", lambda: 50_000)
    with pytest.raises(DoesNotFit, match=r"24 blocks is 98,560 bytes.*50,000 bytes.*num_blocks=10 would fit"):
        build(ROWS, LONGEST)
    assert build(ROWS, LONGEST, num_blocks=10).cache.num_blocks == 10
    monkeypatch.setattr(nanoserve.model_worker, "available_host_bytes", lambda: 10_000)
    with pytest.raises(DoesNotFit, match=r"not even one request of max_model_len fits \(3 blocks\)"):
        build(ROWS, LONGEST)


def test_a_num_blocks_beyond_all_memory_is_a_sentence_too(build: Build) -> None:
    # FAULT: the allocator's own free list is made first: MemoryError, or the OOM killer at some 10**9 blocks.
    with pytest.raises(DoesNotFit, match="num_blocks="):
        build(ROWS, LONGEST, num_blocks=10**12)


def test_tables_that_do_not_fit_are_a_sentence_too() -> None:
    with pytest.raises(DoesNotFit, match="lower max_batch_size or max_model_len"):
        Engine.build(None, 10**6, 10**7)


def test_a_dtype_that_the_given_decoder_does_not_have_is_not_ignored(build: Build) -> None:
    # FAULT: dtype= and device= are dropped in silence where the model is a decoder.
    try:
        engine = build(2, LONGEST, dtype="bfloat16")
    except ValueError:
        return
    assert engine.worker.decoder.dtype == torch.bfloat16  # type: ignore[attr-defined]


def test_a_crowd_in_a_pool_of_one_request_is_served_one_by_one(build: Build, decoder: Decoder) -> None:
    """nano-vllm#274: a pool at its limit must end every request, not loop; and KVCacheExhausted never escapes."""
    engine = build(4, 32, block_size=4, num_blocks=8)
    tokens = {}
    for i in range(6):
        engine.add_request(PROMPTS[0], max_tokens=28, request_id=str(i))
    try:
        tokens = outputs_of(drain(engine))
    except KVCacheExhausted as error:  # pragma: no cover
        pytest.fail(f"a legal request met the pool's limit: {error}")
    assert {output.tokens for output in tokens.values()} == {greedy(build, PROMPTS[0], 28)}
