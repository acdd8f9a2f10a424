"""That a step makes no new storage outside its traced region, and that what is persistent stays where it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from nanoserve.buckets import GateError


class StorageUnsound(GateError):
    """A step that allocated where it should write in place, or a persistent buffer that has moved."""


class StorageWatch(TorchDispatchMode):
    """While entered, every operation must return memory of the `persistent` tensors it was made with.

    An untimed audit: a dispatch mode slows and disturbs what it watches, so a compiled step runs outside it.
    """

    def __init__(self, persistent: Mapping[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._addresses = {name: tensor.data_ptr() for name, tensor in persistent.items()}
        self._storages = {tensor.untyped_storage().data_ptr() for tensor in persistent.values()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.lift_fresh.default:
            raise StorageUnsound(f"{func} made a tensor of a host constant: write into a persistent buffer")
        result = func(*args, **(kwargs or {}))
        for leaf in tree_flatten(result)[0]:
            if isinstance(leaf, Tensor) and leaf.untyped_storage().data_ptr() not in self._storages | _storages(args):
                raise StorageUnsound(f"{func} made new storage, {tuple(leaf.shape)}: write into a persistent buffer")
        return result

    def check_addresses(self, persistent: Mapping[str, Tensor]) -> int:
        """That every persistent tensor is where it was. Returns how many were compared."""
        for name, tensor in persistent.items():
            if tensor.data_ptr() != self._addresses[name]:
                raise StorageUnsound(
                    f"{name} moved from {self._addresses[name]:#x} to {tensor.data_ptr():#x}: never rebind it"
                )
        return len(self._addresses)


def _storages(args: Any) -> set[int]:
    leaves = tree_flatten(args)[0]
    return {leaf.untyped_storage().data_ptr() for leaf in leaves if isinstance(leaf, Tensor)}
