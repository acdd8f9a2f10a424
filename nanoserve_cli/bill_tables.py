"""Capture bills as tables and sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from nanoserve_cli.tables import simple_table

if TYPE_CHECKING:
    from rich.table import Table

    from nanoserve_cli.capture import Bill, LazyBill

MIB = 2**20
PER_SHAPE = 64


def tables(bills: Sequence[Bill]) -> Iterator[Table]:
    """A line a bill; the memory that exists once; and for a single bill of few shapes, a line a shape."""
    yield summary_table(bills)
    yield persistent_table(bills[0])
    if len(bills) == 1 and len(bills[0].prices) <= PER_SHAPE:
        yield shapes_table(bills[0])


def summary_table(bills: Sequence[Bill]) -> Table:
    """Each policy's graphs, memory and time, predicted and measured."""
    return simple_table(
        "The capture bill",
        ("graphs", "captured", "predicted\nMiB", "held\nMiB", "predicted\ns", "capture\ns", "warm-up\ns"),
        [
            (
                f"{bill.policy.count:,}",
                f"{len(bill.measured):,}",
                _mib(bill.predicted_bytes),
                _mib(bill.held_bytes),
                f"{bill.seconds[0]:,.1f}..{bill.seconds[1]:,.1f}",
                _seconds(bill, "capture_seconds"),
                _seconds(bill, "warm_up_seconds"),
            )
            for bill in bills
        ],
        caption=(
            "predicted MiB: the largest live set, since all share one pool, largest "
            "captured first; what a kernel or a driver allocates by itself is not in "
            "it. predicted s: extrapolated from two small captures"
        ),
    )


def persistent_table(bill: Bill) -> Table:
    """What exists once, however many graphs there are."""
    once = bill.persistent
    return simple_table(
        "Memory that exists once (bytes)",
        ("", ""),
        [
            ("step inputs, one set for every graph", f"{once.inputs:,}"),
            ("  if each graph had its own", f"{bill.inputs_per_shape:,}"),
            ("slot table (int64)", f"{once.slot_table:,}"),
            ("static logits", f"{once.logits:,}"),
            ("KV pool, every row full", f"{once.kv_pool:,}"),
            ("weights", f"{once.weights:,}"),
        ],
    )


def shapes_table(bill: Bill) -> Table:
    """A line a shape."""
    rows = []
    for price in bill.prices:
        took = bill.measured.get(price.shape)
        rows.append(
            (
                f"{price.shape.rows:,}",
                f"{price.shape.width:,}",
                _mib(price.live_bytes),
                "-" if took is None else f"{took.capture_seconds * 1e3:,.1f}",
                "-" if took is None else f"{took.warm_up_seconds * 1e3:,.1f}",
            )
        )
    return simple_table("Each graph", ("rows", "width", "predicted\nMiB", "capture\nms", "warm-up\nms"), rows)


def remarks(bill: Bill, lazy: LazyBill | None) -> Iterator[str]:
    """What else decided a bill, a line each."""
    apart = f"{_mib(bill.sum_bytes)} MiB if each had a pool of its own"
    yield f"{bill.policy.count:,} graphs up to {bill.bound}; {_mib(bill.predicted_bytes)} MiB in one pool, {apart}"
    if bill.not_captured:
        yield bill.not_captured
    if bill.too_large:
        named = ", ".join(str(shape) for shape in bill.too_large[:6])
        more = f" and {len(bill.too_large) - 6} more" if len(bill.too_large) > 6 else ""
        yield f"predicted not to fit this machine, not captured: {named}{more}"
    if bill.pool_cut is not None:
        yield bill.pool_cut
    if unpriced := sorted({name for price in bill.prices for name in price.unpriced}):
        yield f"unpriced: the workspace inside {', '.join(unpriced)}"
    if lazy is not None:
        seconds = bill.mean_seconds
        cost = "" if seconds is None else f", {lazy.most_waits * seconds:,.2f} s"
        yield (
            f"made lazily instead: {lazy.captures} captures; {lazy.waiting_requests:,} of {lazy.requests:,} requests "
            f"wait for one or more, the unluckiest for {lazy.most_waits}{cost}"
        )


def _mib(count: int | None) -> str:
    return "-" if count is None else f"{count / MIB:,.1f}"


def _seconds(bill: Bill, name: str) -> str:
    if not bill.measured:
        return "-"
    return f"{sum(getattr(took, name) for took in bill.measured.values()):,.2f}"
