"""What an engine asks of whoever touches the tensors, and the worker that touches none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from nanoserve.buckets import CaptureList, Shape
from nanoserve.plan import DecodePlan
from nanoserve.sampling import Sampler

Ints = NDArray[np.int64]


class Drawn(NamedTuple):
    """A token for each row, and whether the row's logits were finite."""

    tokens: list[int]
    finite: list[bool]


class Worker(Protocol):
    """What runs the steps that the engine plans."""

    def decode(self, plan: DecodePlan, feed: Ints, samplers: Sequence[Sampler]) -> Drawn:
        """Runs a planned step that feeds in `feed` int64 `[batch_size]`; draws a token a row."""
        ...

    def prefill(self, first_row: int, prompts: Sequence[Sequence[int]], samplers: Sequence[Sampler]) -> Drawn:
        """Runs the prompts of the rows from `first_row` on; draws each one's next token."""
        ...

    def warm_up(self, shapes: Sequence[Shape], *, allow_partial: bool) -> Sequence[Shape]:
        """Runs every shape once with nobody in it, and allows nothing new afterwards. Returns the shapes it has.

        They are fewer where a capture failed and `allow_partial` is given.
        """
        ...

    def restrict(self, captures: CaptureList) -> None:
        """Says that only these shapes could be prepared: every other step runs eager."""
        ...


class PlanOnly:
    """A worker without weights: every token is 0."""

    def decode(self, plan: DecodePlan, feed: Ints, samplers: Sequence[Sampler]) -> Drawn:
        """A 0 for each row."""
        return Drawn([0] * len(samplers), [True] * len(samplers))

    def prefill(self, first_row: int, prompts: Sequence[Sequence[int]], samplers: Sequence[Sampler]) -> Drawn:
        """A 0 for each prompt."""
        return Drawn([0] * len(samplers), [True] * len(samplers))

    def warm_up(self, shapes: Sequence[Shape], *, allow_partial: bool) -> Sequence[Shape]:
        """Nothing to warm."""
        return shapes

    def restrict(self, captures: CaptureList) -> None:
        """Nothing is prepared."""
