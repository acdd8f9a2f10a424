"""Where the tokens of two runs of one workload part, and whether that is a tie or a fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nanoserve.buckets import GateError
from nanoserve.workload import Workload
from nanoserve_cli.replay import prompt_of

if TYPE_CHECKING:
    from nanoserve.model.decoder import Decoder

PARTING_GAP = 1e-4


class TokensPart(GateError):
    """Two runs that should make the same tokens do not, and not for a tie."""


@dataclass(frozen=True)
class Partings:
    """Requests whose tokens part, and the widest top-two logit gap at such a place."""

    requests: int
    widest_gap: float


def find_partings(
    workload: Workload,
    decoder: Decoder,
    seed: int,
    ours: Sequence[tuple[int, ...]],
    theirs: Sequence[tuple[int, ...]],
) -> Partings:
    """Compares the greedy tokens that two runs made for each request.

    Products of one to three rows differ from larger ones in the last bits, so tokens may part where the top two logits
    under the common history are a tie. Raises TokensPart where they are PARTING_GAP or more apart in float32.
    """
    import torch

    gaps = []
    for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if a != b:
            common = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
            prompt = prompt_of(index, int(workload.prompt_len[index]), decoder.config.vocab_size, seed)
            gaps.append(top_two_gap(decoder, (*prompt, *a[:common])))
    widest = max(gaps, default=0.0)
    if widest >= PARTING_GAP and decoder.dtype == torch.float32:
        raise TokensPart(
            f"tokens part in {len(gaps)} requests where the top two logits are up to {widest:.2g} apart, more than "
            f"{PARTING_GAP:g}: the padding is not inert",
            figure=widest,
            limit=PARTING_GAP,
        )
    return Partings(len(gaps), widest)


def top_two_gap(decoder: Decoder, tokens: Sequence[int]) -> float:
    """How far apart the two best logits are after `tokens`."""
    import torch

    from nanoserve.model.decoder import PrefillInputs

    config, device = decoder.config, decoder.device
    length = len(tokens)
    pool = torch.zeros(
        (config.num_layers, 2, length, config.num_kv_heads, config.head_dim), dtype=decoder.dtype, device=device
    )
    inputs = PrefillInputs(
        torch.tensor([list(tokens)], device=device),
        torch.arange(length, device=device)[None],
        torch.tensor([length], device=device),
    )
    with torch.no_grad():
        best = decoder.prefill(inputs, pool)[0].float().topk(2).values
    return float(best[0] - best[1])
