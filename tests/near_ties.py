"""Invariant 9's one exception: where greedy tokens part, the two best logits must have been within 1e-4."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

NEAR = 1e-4


def top_two_gap(decoder: Any, history: Sequence[int]) -> float:
    """Distance of the two best logits after `history`, by one dense forward over all of it."""
    import torch

    from nanoserve.model.decoder import PrefillInputs

    decoder = copy.deepcopy(decoder)
    decoder.prepare(len(history))
    config = decoder.config
    pool = torch.zeros(config.num_layers, 2, len(history) + 1, config.num_kv_heads, config.head_dim)
    slots = torch.arange(len(history))[None]
    with torch.no_grad():
        logits = decoder.prefill(PrefillInputs(torch.tensor([history]), slots, torch.tensor([len(history)])), pool)
    best, second = logits[0].topk(2).values.tolist()
    return float(best - second)


def assert_same_but_for_near_ties(
    decoder: Any, prompt: Sequence[int], first: Sequence[int], second: Sequence[int]
) -> bool:
    """Whether the shorter of two outputs begins the other; where they part without a near tie, it is a fault."""
    at = next((j for j, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
    if at is None:
        return True
    gap = top_two_gap(decoder, [*prompt, *first[:at]])
    assert gap < NEAR, f"{first} and {second} part at token {at}, where the two best logits are {gap} apart"
    return False
