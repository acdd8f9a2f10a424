"""The decode step as it is written, operator by operator."""

from __future__ import annotations

from torch import Tensor

from nanoserve.buckets import CaptureList
from nanoserve.model.decoder import DecodeInputs, Decoder


class EagerDecode:
    """Runs every step as plain PyTorch. Nothing is kept between steps, so no shape is ever new."""

    def __init__(self, decoder: Decoder, pool: Tensor) -> None:
        self._decoder = decoder
        self._pool = pool

    def run(self, inputs: DecodeInputs) -> Tensor:
        """Logits `[graph_rows, vocab_size]`."""
        return self._decoder.decode(inputs, self._pool)

    def prepare(self, inputs: DecodeInputs) -> None:
        """Runs the step: what allocates on first use has then done so."""
        self.run(inputs)

    def close(self) -> None:
        """Nothing to close."""

    def restrict(self, captures: CaptureList) -> None:
        """Every step is eager already."""
