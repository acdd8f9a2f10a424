"""The storage watch: what it lets pass, and that it names what allocates and what moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from nanoserve import GateError

torch = pytest.importorskip("torch")

from nanoserve import StorageUnsound  # noqa: E402
from nanoserve.storage import StorageWatch  # noqa: E402


@pytest.fixture
def buffers() -> dict[str, Any]:
    return {"the input buffer": torch.zeros(4, 8), "the slot table": torch.zeros(8, 16, dtype=torch.int64)}


@pytest.mark.parametrize(
    "allowed",
    [
        lambda b, t: b[:, :3].unbind(0),
        lambda b, t: b.zero_(),
        lambda b, t: b[1].copy_(b[2]),
        lambda b, t: b.copy_(torch.as_strided(b, (4, 8), (8, 1))),
        lambda b, t: b.view(-1).view(torch.int32),
        lambda b, t: t[:2, :3].add_(1),
        lambda b, t: b.index_fill_(0, t[0, :1], 2.0),
        lambda b, t: torch.add(b, b, out=b),
        lambda b, t: b[:0],
        lambda b, t: b.sum().item if False else b.shape,
    ],
)
def test_views_and_writes_in_place_pass(buffers: dict[str, Any], allowed: Callable[..., Any]) -> None:
    with StorageWatch(buffers):
        allowed(*buffers.values())


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda b: b + 1, r"^aten\.add\.Tensor made new storage, \(4, 8\): write into a persistent buffer"),
        (lambda b: b.clone(), r"^aten\.clone\.default made new storage, \(4, 8\)"),
        (lambda b: torch.zeros(3), r"^aten\.zeros\.default made new storage, \(3,\)"),
        (lambda b: b.t().reshape(-1), r"^aten\.clone\.default made new storage"),
        (lambda b: b.topk(2), r"^aten\.topk\.default made new storage, \(4, 2\)"),
        (lambda b: b[0].to(torch.float64), r"^aten\._to_copy\.default made new storage, \(8,\)"),
        (lambda b: torch.empty(0), r"made new storage, \(0,\)"),
        (lambda b: torch.add(b, b, out=torch.empty(0)), r"made new storage"),
    ],
)
def test_new_storage_is_named_by_its_operator(
    buffers: dict[str, Any], made: Callable[[Any], Any], message: str
) -> None:
    with StorageWatch(buffers), pytest.raises(StorageUnsound, match=message):
        made(buffers["the input buffer"])


# FAULT: `lift_fresh` returns its argument, so a tensor of a host list passes for a view of something persistent.
@pytest.mark.parametrize("make", [lambda b: torch.tensor([1, 2]), lambda b: b.new_tensor([1.0])])
def test_a_tensor_of_a_host_list_is_new_storage(buffers: dict[str, Any], make: Callable[[Any], Any]) -> None:
    with StorageWatch(buffers), pytest.raises(StorageUnsound):
        make(buffers["the input buffer"])


def test_a_tensor_from_outside_may_be_looked_at_but_not_computed_with(buffers: dict[str, Any]) -> None:
    """What a step reads need not be persistent to this gate; what it makes must be."""
    outside = torch.ones(4, 8)
    with StorageWatch(buffers):
        buffers["the input buffer"].copy_(outside[:, :8])
        with pytest.raises(StorageUnsound, match=r"aten\.mul"):
            outside * 2


def test_outside_the_watch_nothing_is_watched(buffers: dict[str, Any]) -> None:
    watch = StorageWatch(buffers)
    torch.zeros(3)
    with watch:
        pass
    torch.zeros(3)
    with watch, pytest.raises(StorageUnsound):
        torch.zeros(3)


def test_what_stayed_is_counted(buffers: dict[str, Any]) -> None:
    watch = StorageWatch(buffers)
    buffers["the input buffer"].add_(1)
    assert watch.check_addresses(buffers) == 2


def test_what_moved_is_named_with_both_addresses(buffers: dict[str, Any]) -> None:
    watch, before = StorageWatch(buffers), buffers["the slot table"].data_ptr()
    moved = {**buffers, "the slot table": buffers["the slot table"].clone()}
    after = moved["the slot table"].data_ptr()
    with pytest.raises(StorageUnsound, match=rf"^the slot table moved from {before:#x} to {after:#x}: never rebind"):
        watch.check_addresses(moved)


def test_a_window_that_starts_elsewhere_has_moved(buffers: dict[str, Any]) -> None:
    """The same storage, another first element: a graph would read the old one."""
    watch = StorageWatch(buffers)
    with pytest.raises(StorageUnsound, match="the input buffer moved"):
        watch.check_addresses({**buffers, "the input buffer": buffers["the input buffer"][1:]})


def test_it_is_a_gate_of_its_own() -> None:
    assert issubclass(StorageUnsound, GateError)
