"""What an emitter is given, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from operator import index
from typing import SupportsIndex

from nanoserve.buckets import CaptureList
from nanoserve_cli.policy_file import Policy
from nanoserve_cli.workload.errors import did_you_mean

CUDAGRAPH_MODES = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")


@dataclass(frozen=True)
class EmitTarget:
    """A policy, and the server it is for.

    `max_batch_size` (rows) and `max_model_len` (tokens) are the server's: a policy must be for exactly these, a capture
    list may be for less and is then incomplete. The rest are the server's own settings, each read by the engines that
    have it: vLLM's `cudagraph_mode`; `spec_tokens`, draft tokens a row; `tensor_parallel`, GPUs; the most tokens of
    one step, `max_num_batched_tokens`, where None is not known; `block_size`, tokens of one KV block.

    Raises ValueError where the limits and the policy disagree, or an option is out of range.
    """

    policy: Policy
    max_batch_size: int
    max_model_len: int
    cudagraph_mode: str = "FULL_AND_PIECEWISE"
    spec_tokens: int = 0
    tensor_parallel: int = 1
    max_num_batched_tokens: int | None = None
    block_size: int = 128

    def __post_init__(self) -> None:
        for name in ("max_batch_size", "max_model_len", "tensor_parallel", "block_size"):
            _check_count(name, getattr(self, name), 1)
        _check_count("spec_tokens", self.spec_tokens, 0)
        if self.max_num_batched_tokens is not None:
            _check_count("max_num_batched_tokens", self.max_num_batched_tokens, 1)
        if self.cudagraph_mode not in CUDAGRAPH_MODES:
            hint = did_you_mean(self.cudagraph_mode, CUDAGRAPH_MODES)
            raise ValueError(f"unknown cudagraph_mode {self.cudagraph_mode!r}: {hint}")
        for name in ("max_batch_size", "max_model_len"):
            self._check_limit(name, getattr(self.policy, name), getattr(self, name))

    def _check_limit(self, name: str, policy: int, server: int) -> None:
        if policy > server or (policy < server and not isinstance(self.policy, CaptureList)):
            raise ValueError(
                f"the policy is for {name} {policy}, the server for {server}: fit or complete it for {server}"
            )

    @property
    def rows(self) -> tuple[int, ...]:
        """The row buckets, ascending."""
        return tuple(sorted({shape.rows for shape in self.policy.shapes}))

    @property
    def widths(self) -> tuple[int, ...]:
        """Every width that any row bucket has, ascending."""
        return tuple(sorted({shape.width for shape in self.policy.shapes}))

    @property
    def tokens_per_row(self) -> int:
        """Tokens a row has in a decode step: its own, and the drafts to verify."""
        return 1 + self.spec_tokens


@dataclass(frozen=True)
class Emission:
    """What to give an engine.

    `blocks` are pairs of a title and a text to paste, alternatives or parts as the title says. `checked_against` is
    the version whose rules were read. `warnings` are single lines. `effective_sizes` are the sizes that the engine
    captures after its own filtering, ascending, in its unit (rows; tokens in vLLM and TGI); None where it takes widths.
    """

    engine: str
    checked_against: str
    blocks: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    effective_sizes: tuple[int, ...] | None


def _check_count(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, SupportsIndex) or index(value) < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
