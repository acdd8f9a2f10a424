"""How a decode step is run. A runner takes a plan's inputs, returns its logits, and adds nothing to the plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from nanoserve.buckets import CaptureList
    from nanoserve.model.decoder import DecodeInputs

RUNNERS = ("eager", "compiled", "graphs")
COMPILE_BACKENDS = ("count", "inductor")
DYNAMIC = {"off": False, "auto": None, "on": True}
"""What `dynamic` of torch.compile is called here. `auto` is its default: static first, then one dynamic graph."""
GRAPH_BACKENDS = ("auto", "cuda", "recorded")
GRAPH_BODIES = ("eager", "compiled")


class CompilerMissing(RuntimeError):
    """Inductor was asked for on a CPU without a C++ compiler that works."""


class CaptureFailed(RuntimeError):
    """A capture that the device refused. Says what was used and, in order, what to change."""


@dataclass(frozen=True)
class RunnerOptions:
    """How steps run. `graph_backend` auto is `cuda` on CUDA and `recorded` elsewhere; `graph_body` is what is captured.

    ValueError for a name that is not one of the module's lists.
    """

    runner: str = "eager"
    compile_backend: str = "count"
    dynamic: str = "off"
    graph_backend: str = "auto"
    graph_body: str = "eager"

    def __post_init__(self) -> None:
        for name, known in (
            ("runner", RUNNERS),
            ("compile_backend", COMPILE_BACKENDS),
            ("dynamic", tuple(DYNAMIC)),
            ("graph_backend", GRAPH_BACKENDS),
            ("graph_body", GRAPH_BODIES),
        ):
            value = getattr(self, name)
            if value not in known:
                raise ValueError(f"{name.replace('_', ' ')} {value!r} is unknown; choose one of {', '.join(known)}")


class DecodeRunner(Protocol):
    """Runs decode steps of one decoder over one pool."""

    def run(self, inputs: DecodeInputs) -> Tensor:
        """Logits `[graph_rows, vocab_size]`; rows past the real ones mean nothing."""
        ...

    def prepare(self, inputs: DecodeInputs) -> None:
        """Does what a step of these inputs' shape needs once: compiles or captures it. The result is nobody's."""
        ...

    def close(self) -> None:
        """Says that every shape has been seen: from here on a step that needs something new is an error."""
        ...

    def restrict(self, captures: CaptureList) -> None:
        """Says that only these shapes could be prepared: every other step runs eager."""
        ...
