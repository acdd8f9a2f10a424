"""One step as a list of ATen operations, found without running it, and the mistakes that no recorded graph survives.

The body runs on FakeTensors: shapes and strides are computed, nothing is executed and no memory is touched, as under a
real capture. What depends on data cannot run so and is an error here; what a person wrote is caught by its own name one
level above. Every tensor an operation reads must be made inside the body or lie in a persistent buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from nanoserve.buckets import GateError


class CaptureUnsound(GateError):
    """A step that cannot be recorded, or a recorded one that can no longer be replayed. Names operator or buffer."""


@dataclass(frozen=True, eq=False)
class TracedOp:
    """One operation: what ran, on what, and the tensors it returned (fake; None where it returned none)."""

    func: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[Tensor, ...]

    @property
    def writes(self) -> bool:
        """Whether it changes one of its arguments in place."""
        return bool(self.func._schema.is_mutable)

    @property
    def is_view(self) -> bool:
        """Whether it returns another look at one of its arguments' memory."""
        return any(r.alias_info is not None and not r.alias_info.is_write for r in self.func._schema.returns)

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors it reads or writes."""
        return [leaf for leaf in tree_flatten((self.args, self.kwargs))[0] if isinstance(leaf, Tensor)]

    @property
    def constants(self) -> tuple[Any, ...]:
        """Everything else it was called with: frozen into the recording."""
        leaves = tree_flatten((self.args, self.kwargs))[0]
        return tuple(leaf for leaf in leaves if not isinstance(leaf, Tensor))


@dataclass(frozen=True, eq=False)
class Trace:
    """The operations of one step in order, and the tensor it returns."""

    ops: tuple[TracedOp, ...]
    output: Tensor


def trace_step(
    body: Callable[[], Tensor], persistent: Mapping[str, Tensor], mode: FakeTensorMode | None = None
) -> Trace:
    """Traces `body`, which may read and write the `persistent` tensors (by name) and what it makes itself.

    With a `mode` of its own, `body` may work on fake tensors of that mode: a step that no memory here could hold.

    Raises CaptureUnsound, naming the operator, where the body reads values on the host, makes a shape of data, makes a
    constant on the host, or uses a tensor that is neither persistent nor its own.
    """
    mode = mode or FakeTensorMode(allow_non_fake_inputs=True)
    recorder = _Recorder(mode, {_storage(tensor) for tensor in persistent.values()})
    try:
        with torch.no_grad(), mode, recorder, _NamedMistakes():
            output = body()
    except DataDependentOutputException as error:
        raise CaptureUnsound(
            f"{error.func} needs the value of a tensor on the host: a replay runs no Python"
        ) from error
    except DynamicOutputShapeException as error:
        raise CaptureUnsound(
            f"{error.func} returns a shape that depends on data: a recorded graph has one shape"
        ) from error
    return Trace(tuple(recorder.ops), output)


def check_same(before: Trace, now: Trace) -> int:
    """That a step would still be recorded as it was: the same operations with the same constants. Returns how many.

    Raises CaptureUnsound where a Python value that was frozen into the recording has changed since.
    """
    for index, (old, new) in enumerate(zip(before.ops, now.ops, strict=False)):
        if old.func is not new.func:
            raise CaptureUnsound(f"operation {index} was {old.func} at capture and would now be {new.func}")
        if old.constants != new.constants:
            changed = [(a, b) for a, b in zip(old.constants, new.constants, strict=False) if a != b]
            was, now_is = changed[0] if changed else (old.constants, new.constants)
            raise CaptureUnsound(
                f"a Python value changed since capture: {old.func} (operation {index}) was recorded with {was!r}, it "
                f"would now get {now_is!r}; the replay goes on with {was!r}: pass it in a persistent tensor"
            )
    if len(before.ops) != len(now.ops):
        raise CaptureUnsound(f"the step had {len(before.ops)} operations at capture and would now have {len(now.ops)}")
    return len(before.ops)


class _Recorder(TorchDispatchMode):
    """Keeps every operation below autograd, and refuses tensors that will not be there at replay."""

    def __init__(self, mode: FakeTensorMode, persistent: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.mode = mode
        self.persistent = persistent
        self.ops: list[TracedOp] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":
            return func(*args, **kwargs)
        if func is torch.ops.aten.lift_fresh.default:
            raise CaptureUnsound("aten.lift_fresh makes a tensor of a host constant: make it once, before capture")
        for leaf in tree_flatten((args, kwargs))[0]:
            if isinstance(leaf, Tensor):
                self._check_input(func, leaf)
        result = func(*args, **kwargs)
        outputs = tuple(leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, Tensor))
        self.ops.append(TracedOp(func, args, kwargs, outputs))
        return result

    def _check_input(self, func: Any, tensor: Tensor) -> None:
        described = f"a {tensor.dtype} tensor of shape {tuple(tensor.shape)}".replace("torch.", "")
        if isinstance(tensor, FakeTensor):
            if tensor.fake_mode is not self.mode:
                raise CaptureUnsound(
                    f"{func} reads {described} that was born inside another capture: its memory is reused there; "
                    "make cached tensors before the first capture"
                )
        elif _storage(tensor) not in self.persistent:
            raise CaptureUnsound(
                f"{func} reads {described} that is neither a persistent buffer nor made in the step: a replay would "
                "read its old address; write it into a registered buffer"
            )


class _NamedMistakes(TorchFunctionMode):
    """Catches what a person wrote by the name they wrote, before it becomes operators that say less."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if func in _HOST_READS:
            raise CaptureUnsound(f"{_HOST_READS[func]} reads a tensor's value on the host: a replay runs no Python")
        if func in _HOST_CONSTANTS:
            raise CaptureUnsound(f"torch.{name} makes a tensor of a host constant: make it once, before capture")
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            _check_index(args[1])
        if func is Tensor.__setitem__ and not isinstance(args[2], Tensor):
            raise CaptureUnsound(f"x[...] = {args[2]!r} makes a tensor of a host constant: use fill_ or masked_fill")
        return func(*args, **(kwargs or {}))


_HOST_READS = {
    Tensor.item: ".item()",
    Tensor.tolist: ".tolist()",
    Tensor.numpy: ".numpy()",
    Tensor.__bool__: "bool(tensor), as in an `if`,",
    Tensor.__int__: "int(tensor)",
    Tensor.__float__: "float(tensor)",
    Tensor.__index__: "using a tensor as a Python index",
    Tensor.cpu: ".cpu()",
}
_HOST_CONSTANTS = (torch.tensor, torch.as_tensor, torch.from_numpy)


def _check_index(index: Any) -> None:
    for part in index if isinstance(index, tuple) else (index,):
        if isinstance(part, slice) and any(isinstance(end, Tensor) for end in (part.start, part.stop, part.step)):
            raise CaptureUnsound(
                "a slice bounded by a tensor, x[:t], reads its value on the host and makes a shape of it"
            )
        if isinstance(part, Tensor) and part.dtype == torch.bool:
            raise CaptureUnsound(
                "a boolean mask as an index, x[mask], returns a shape that depends on data: use masked_fill or where"
            )


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
