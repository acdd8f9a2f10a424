"""How the next token is drawn: greedy, or temperature and top-p with a generator of the request's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class SamplingParams:
    """`temperature` 0 is greedy; `top_p` keeps the most likely tokens that together reach it; `seed` fixes the draws.

    ValueError for a temperature below 0, a top_p outside (0, 1], or a seed below 0.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be 0 or more, got {self.temperature}")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if not 0 <= self.seed < 2**64:
            raise ValueError(f"seed must be 0 or more and below 2**64, got {self.seed}")


class Sampler:
    """Draws for one request. The generator is the request's own, so neighbours, rows and buckets change nothing."""

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self._generator: torch.Generator | None = None

    @property
    def is_greedy(self) -> bool:
        """Whether the draw is an argmax."""
        return self.params.temperature == 0.0

    def draw(self, logits: torch.Tensor) -> int:
        """One token id from float32 `logits` `[vocab_size]` on the CPU."""
        import torch

        if self._generator is None:
            self._generator = torch.Generator().manual_seed(self.params.seed)
        # The largest becomes 0 first: a tiny temperature then sends the others to -inf and nothing to inf - inf.
        below_best = logits.double() - logits.double().max()
        probabilities = torch.softmax(below_best / self.params.temperature, dim=-1)
        ordered, token_ids = probabilities.sort(descending=True, stable=True)
        before = ordered.cumsum(-1) - ordered
        ordered[before >= self.params.top_p] = 0.0
        return int(token_ids[torch.multinomial(ordered, 1, generator=self._generator)])
