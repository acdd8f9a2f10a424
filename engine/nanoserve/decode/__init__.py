"""How a decode step is run. A runner takes a plan's inputs, returns its logits, and adds nothing to the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from nanoserve.model.decoder import DecodeInputs

RUNNERS = ("eager", "compiled")


class DecodeRunner(Protocol):
    """Runs decode steps of one decoder over one pool."""

    def run(self, inputs: DecodeInputs) -> Tensor:
        """Logits `[graph_rows, vocab_size]`; rows past the real ones mean nothing."""
        ...

    def close(self) -> None:
        """Says that every shape has been seen: from here on a step that needs something new is an error."""
        ...
