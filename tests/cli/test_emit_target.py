"""What cannot be emitted is refused in one line that says what to change."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shape_strategies import MAX_ROWS, MAX_WIDTH, capture_lists, policies

from nanoserve.buckets import CaptureList, DecodeBuckets, Shape
from nanoserve_cli.emit import EMITTERS, EmitTarget, emit
from nanoserve_cli.emit.notes import cells_off_list, listed
from nanoserve_cli.policy_file import Policy

POLICY = DecodeBuckets(8, 1024, rows=[1, 8], widths=[512, 1024])


@pytest.mark.parametrize(
    ("engine", "hint"),
    [("vlm", "did you mean vllm?"), ("trt-llm", "did you mean trtllm?"), ("zzz", f"known: {', '.join(EMITTERS)}")],
)
def test_an_unknown_engine_is_answered_with_the_nearest(engine: str, hint: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(f'unknown engine {engine!r}: {hint}')}$"):
        emit(engine, EmitTarget(POLICY, 8, 1024))


def test_the_engines_are_these() -> None:
    assert list(EMITTERS) == [
        *("nanoserve", "vllm", "sglang", "trtllm", "lmdeploy", "tgi", "mini-sglang", "gaudi", "neuron")
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"spec_tokens": -1}, "spec_tokens must be an integer of at least 0, got -1"),
        ({"spec_tokens": 1.0}, "spec_tokens must be an integer of at least 0, got 1.0"),
        ({"tensor_parallel": 0}, "tensor_parallel must be an integer of at least 1, got 0"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens must be an integer of at least 1, got 0"),
        ({"block_size": 0}, "block_size must be an integer of at least 1, got 0"),
        ({"block_size": True}, "block_size must be an integer of at least 1, got True"),
        (
            {"cudagraph_mode": "FULL_DECODE"},
            "unknown cudagraph_mode 'FULL_DECODE': did you mean FULL_DECODE_ONLY?",
        ),
        (
            {"max_batch_size": 4},
            "the policy is for max_batch_size 8, the server for 4: fit or complete it for 4",
        ),
        (
            {"max_model_len": 2048},
            "the policy is for max_model_len 1024, the server for 2048: fit or complete it for 2048",
        ),
    ],
)
def test_impossible_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        EmitTarget(**({"policy": POLICY, "max_batch_size": 8, "max_model_len": 1024} | options))


def test_a_capture_list_may_be_for_less_than_the_server_and_not_for_more() -> None:
    captured = CaptureList([Shape(4, 64)])
    assert EmitTarget(captured, 8, 128).rows == (4,)
    with pytest.raises(ValueError, match="the policy is for max_batch_size 4, the server for 3"):
        EmitTarget(captured, 3, 64)


def test_a_long_list_is_abridged() -> None:
    assert listed(range(3)) == "0, 1, 2"
    assert listed(range(10)) == "0, 1, 2, 3, 4, 5, 6, 7 and 2 more"


@given(captured=capture_lists(), rows=st.integers(0, 3), width=st.integers(0, 3))
def test_the_steps_off_a_list_are_named_exactly(captured: CaptureList, rows: int, width: int) -> None:
    target = EmitTarget(captured, captured.max_batch_size + rows, captured.max_model_len + width)
    off = {
        (n, w)
        for n in range(1, target.max_batch_size + 1)
        for w in range(1, target.max_model_len + 1)
        if captured.find(n, w) is None
    }
    named: set[tuple[int, int]] = set()
    for warning in cells_off_list(target, "eager"):
        part = r"batches of (\d+)(?: to (\d+))?(?: above width (\d+))?"
        assert re.fullmatch(rf"{part}(?:; {part})* are off the list: eager", warning)
        for first, last, above in re.findall(part, warning):
            cells = {
                (n, w)
                for n in range(int(first), int(last or first) + 1)
                for w in range(int(above or 0) + 1, target.max_model_len + 1)
            }
            assert cells
            assert not cells & named
            named |= cells
    assert named == off


@given(policy=policies())
def test_nothing_is_off_a_policy(policy: Policy) -> None:
    assert policy.max_batch_size <= MAX_ROWS
    assert policy.max_model_len <= MAX_WIDTH
    assert cells_off_list(EmitTarget(policy, policy.max_batch_size, policy.max_model_len), "eager") == []
