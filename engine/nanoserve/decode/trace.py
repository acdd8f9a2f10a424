"""One step as a list of ATen operations, found without running it, and the mistakes that no recorded graph survives.

The body runs on FakeTensors: shapes and strides are computed, nothing is executed and no memory is touched, as under a
real capture. What depends on data cannot run so and is an error here; what a person wrote is caught by its own name one
level above. Every tensor an operation reads must be made inside the body or lie in a persistent buffer.
"""

from __future__ import annotations

import sys
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
from torch.utils._pytree import tree_flatten, tree_map_only

from nanoserve.buckets import GateError


class CaptureUnsound(GateError):
    """A step that cannot be recorded, or a recorded one that can no longer be replayed. Names operator or buffer."""


@dataclass(frozen=True, eq=False)
class TracedOp:
    """One operation: what ran, on what (fake tensors), and the tensors it returned."""

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
        """Whether it returns another look at one of its arguments' memory and does nothing else."""
        if self.func in _UNMARKED_VIEWS:
            return True
        returns = self.func._schema.returns
        return not self.writes and any(r.alias_info is not None for r in returns)

    def written(self) -> tuple[Tensor | None, ...]:
        """For each output the argument that it is, written in place; None where it is made afresh."""
        schema = self.func._schema
        if not self.writes:
            return (None,) * len(self.outputs)
        named = {a.name: value for a, value in zip(schema.arguments, self.args, strict=False)} | self.kwargs
        by_alias = {
            frozenset(argument.alias_info.before_set): named.get(argument.name)
            for argument in schema.arguments
            if argument.alias_info is not None
        }
        returned = [
            None if r.alias_info is None else by_alias.get(frozenset(r.alias_info.before_set)) for r in schema.returns
        ]
        return tuple(value if isinstance(value, Tensor) else None for value in returned)

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors it reads or writes."""
        return [leaf for leaf in tree_flatten((self.args, self.kwargs))[0] if isinstance(leaf, Tensor)]

    @property
    def constants(self) -> tuple[str, ...]:
        """Everything else it was called with, as written: frozen into the recording. 2 and 2.0 differ."""
        leaves = tree_flatten((self.args, self.kwargs))[0]
        return tuple(repr(leaf) for leaf in leaves if not isinstance(leaf, Tensor))


@dataclass(frozen=True, eq=False)
class Trace:
    """The operations of one step in order, and the tensor it returns, all fake.

    `persistent` maps the fakes of persistent tensors, by id, to the real ones; `fakes` keeps the ids theirs.
    """

    ops: tuple[TracedOp, ...]
    output: Tensor
    persistent: dict[int, Tensor]
    fakes: tuple[Tensor, ...]

    def sources(self) -> list[tuple[Any, ...]]:
        """For each operation, what each of its tensors is: made by which operation, or which persistent memory."""
        made: dict[int, Any] = {
            key: (tensor.data_ptr(), tuple(tensor.shape), tensor.stride()) for key, tensor in self.persistent.items()
        }
        found = []
        for at, op in enumerate(self.ops):
            found.append(tuple(made.get(id(tensor)) for tensor in op.tensors))
            made.update((id(out), (at, index)) for index, out in enumerate(op.outputs) if id(out) not in made)
        return found


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
        raise CaptureUnsound(f"{error.func} returns a shape that depends on data, a graph has one shape") from error
    real = {id(fake): tensor for tensor, fake in recorder.fakes.values()}
    output = recorder.fakes[id(output)][1] if id(output) in recorder.fakes else output
    return Trace(tuple(recorder.ops), output, real, tuple(fake for _, fake in recorder.fakes.values()))


def check_same(before: Trace, now: Trace) -> int:
    """That a step would still be recorded as it was: the same operations on the same memory with the same constants.

    Returns how many operations. Raises CaptureUnsound where a Python value that was frozen into the recording, or which
    tensors it chose, has changed since.
    """
    memory = zip(before.sources(), now.sources(), strict=False)
    for index, (old, new, (was, would)) in enumerate(zip(before.ops, now.ops, memory, strict=False)):
        if old.func is not new.func:
            raise CaptureUnsound(f"operation {index} was {old.func} at capture and would now be {new.func}")
        if old.constants != new.constants:
            changed = next(
                (pair for pair in zip(old.constants, new.constants, strict=False) if pair[0] != pair[1]), None
            )
            was_value, now_value = changed or (old.constants, new.constants)
            raise CaptureUnsound(
                f"a Python value changed since capture: {old.func} (operation {index}) was recorded with {was_value}, "
                f"it would now get {now_value}; the replay goes on with {was_value}: pass it in a persistent tensor"
            )
        if was != would:
            raise CaptureUnsound(
                f"{old.func} (operation {index}) was recorded on other tensors than it would now read: a choice that "
                "Python made was frozen; choose with index_select or where"
            )
    if len(before.ops) != len(now.ops):
        raise CaptureUnsound(f"the step had {len(before.ops)} operations at capture and would now have {len(now.ops)}")
    return len(before.ops)


_UNMARKED_VIEWS = (torch.ops.aten._unsafe_view.default,)
_INDEXED = ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put")


class _Recorder(TorchDispatchMode):
    """Keeps every operation below autograd, and refuses tensors that will not be there at replay.

    Persistent tensors are swapped for fakes of their own, so that no operation runs on real memory while tracing.
    """

    def __init__(self, mode: FakeTensorMode, persistent: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.mode = mode
        self.persistent = persistent
        self.ops: list[TracedOp] = []
        self.fakes: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":
            return func(*args, **kwargs)
        _refuse(func, args)
        args, kwargs = tree_map_only(Tensor, lambda tensor: self._fake(func, tensor), (args, kwargs))
        result = func(*args, **kwargs)
        outputs = tuple(leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, Tensor))
        self.ops.append(TracedOp(func, args, kwargs, outputs))
        return result

    def _fake(self, func: Any, tensor: Tensor) -> Tensor:
        """The fake that stands for a tensor. Raises CaptureUnsound for one that is neither persistent nor made here."""
        described = f"a {tensor.dtype} tensor of shape {tuple(tensor.shape)}".replace("torch.", "")
        if isinstance(tensor, FakeTensor):
            if tensor.fake_mode is not self.mode:
                raise CaptureUnsound(
                    f"{func} reads {described} that was born inside another capture: its memory is reused there; "
                    "make cached tensors before the first capture"
                )
            return tensor
        if _storage(tensor) not in self.persistent:
            raise CaptureUnsound(
                f"{func} reads {described} that is neither a persistent buffer nor made in the step: a replay would "
                "read its old address; write it into a registered buffer"
            )
        if id(tensor) not in self.fakes:
            self.fakes[id(tensor)] = (tensor, self.mode.from_tensor(tensor))
        return self.fakes[id(tensor)][1]


def _refuse(func: Any, args: tuple[Any, ...]) -> None:
    """CaptureUnsound for operators that no recording holds, whatever tensors they are given."""
    if func is torch.ops.aten.lift_fresh.default:
        raise CaptureUnsound("aten.lift_fresh makes a tensor of a host constant: make it once, before capture")
    if torch.Tag.inplace_view in func.tags:
        raise CaptureUnsound(f"{func} changes a tensor's shape in place, which a recording cannot hold: use its view")
    if func.overloadpacket.__name__ in _INDEXED and any(
        isinstance(leaf, Tensor) and leaf.dtype in (torch.bool, torch.uint8) for leaf in tree_flatten(args[1])[0]
    ):
        raise CaptureUnsound(f"{func} is given a boolean mask, whose hits depend on data: use masked_fill or where")


class _NamedMistakes(TorchFunctionMode):
    """Catches what a person wrote by the name they wrote, before it becomes operators that say less."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if func in _HOST_READS:
            # FakeTensor.tolist is written in Python, over .item().
            callers = {sys._getframe(1).f_code.co_name, sys._getframe(2).f_code.co_name}
            read = ".tolist()" if func is Tensor.item and "tolist" in callers else _HOST_READS[func]
            raise CaptureUnsound(f"{read} reads a tensor's value on the host: a replay runs no Python")
        if func in _HOST_CONSTANTS:
            raise CaptureUnsound(f"torch.{name} makes a tensor of a host constant: make it once, before capture")
        if func is Tensor.to and any(str(value) == "cpu" for value in (*args[1:], *(kwargs or {}).values())):
            raise CaptureUnsound('.to("cpu") reads a tensor\'s value on the host: a replay runs no Python')
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            _check_index(args[1])
        if func is Tensor.__setitem__ and not isinstance(args[2], Tensor):
            raise CaptureUnsound(f"x[...] = {args[2]!r} makes a tensor of a host constant: use fill_ or masked_fill")
        return func(*args, **(kwargs or {}))


_HOST_READS = {
    Tensor.item: ".item()",
    Tensor.tolist: ".tolist()",
    FakeTensor.tolist: ".tolist()",
    Tensor.numpy: ".numpy()",
    Tensor.__array__: "np.asarray(tensor)",
    Tensor.__dlpack__: "DLPack",
    Tensor.__repr__: "printing a tensor",
    Tensor.__format__: "formatting a tensor",
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
