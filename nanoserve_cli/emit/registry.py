"""The emitters by engine. A new one is one function and one entry here; help texts list it by themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from types import MappingProxyType

from nanoserve_cli.emit import row_lists, width_lists
from nanoserve_cli.emit.target import Emission, EmitTarget
from nanoserve_cli.emit.vllm import vllm
from nanoserve_cli.workload.errors import did_you_mean


@dataclass(frozen=True)
class Emitter:
    """How one engine is given a policy. `options` are the settings of EmitTarget that its answer depends on."""

    answer: Callable[[EmitTarget], Emission]
    options: tuple[str, ...] = ()


EMITTERS: Mapping[str, Emitter] = MappingProxyType(
    {
        "nanoserve": Emitter(width_lists.nanoserve),
        "vllm": Emitter(vllm, ("cudagraph_mode", "spec_tokens", "tensor_parallel", "max_num_batched_tokens")),
        "sglang": Emitter(row_lists.sglang, ("tensor_parallel",)),
        "trtllm": Emitter(row_lists.trtllm, ("spec_tokens", "max_num_batched_tokens")),
        "lmdeploy": Emitter(row_lists.lmdeploy),
        "tgi": Emitter(row_lists.tgi, ("spec_tokens",)),
        "mini-sglang": Emitter(row_lists.mini_sglang),
        "gaudi": Emitter(width_lists.gaudi, ("block_size",)),
        "neuron": Emitter(width_lists.neuron, ("spec_tokens",)),
    }
)
"""Every engine that `emit` knows, by name."""


def emit(engine: str, target: EmitTarget) -> Emission:
    """What to give `engine` so that it runs the policy of `target`.

    A setting that the engine's list does not depend on is named in a warning. Raises ValueError for an unknown engine,
    with the nearest name, and where that engine cannot run such a server at all.
    """
    if engine not in EMITTERS:
        raise ValueError(f"unknown engine {engine!r}: {did_you_mean(engine, EMITTERS)}")
    emitter = EMITTERS[engine]
    emission = emitter.answer(target)
    unread = [
        field.name
        for field in fields(EmitTarget)
        if field.default is not MISSING
        and field.name not in emitter.options
        and getattr(target, field.name) != field.default
    ]
    if not unread:
        return emission
    note = f"what {engine} is given is the same for any {' and '.join(unread)}"
    return replace(emission, warnings=(*emission.warnings, note))
