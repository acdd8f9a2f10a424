"""Warnings that several engines share: one line each, none where there is nothing to say."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, groupby
from operator import itemgetter

from nanoserve_cli.emit.target import EmitTarget


def span(first: int, last: int) -> str:
    """`batches of 33 to 64`."""
    return f"batches of {first}" if first == last else f"batches of {first} to {last}"


def listed(values: Sequence[object], most: int = 8) -> str:
    """The first `most` values, and how many more there are."""
    more = f" and {len(values) - most} more" if len(values) > most else ""
    return ", ".join(map(str, values[:most])) + more


def widths_unused(target: EmitTarget, engine: str) -> list[str]:
    """Said where a policy of several widths goes to an engine whose list is of rows."""
    if len(target.widths) == 1:
        return []
    return [
        f"{engine} reads each row at its own length and its list has rows only: {target.policy.count} shapes become "
        f"{len(target.rows)} sizes; a list fitted to rows alone may serve it better"
    ]


def rows_above(target: EmitTarget, covered: int, then: str) -> list[str]:
    """Said where the list ends at `covered` rows, below the largest batch; `then` is what happens to the others."""
    if covered >= target.max_batch_size:
        return []
    return [f"{span(covered + 1, target.max_batch_size)} are above the list: {then}"]


def dropped_unaligned(sizes: Sequence[int], largest: int, multiple: int, when: str) -> list[str]:
    """Said where tensor parallelism may drop sizes that are no multiple of it; `largest` is the peak batch's size."""
    dropped = [size for size in sizes if size % multiple]
    if not dropped:
        return []
    peak = (
        f"; {largest}, the peak batch, is one: choose a largest batch that is a multiple" if largest % multiple else ""
    )
    return [f"{when} drops sizes that are no multiple of {multiple}: {listed(dropped)}{peak}"]


def cells_off_list(target: EmitTarget, then: str) -> list[str]:
    """Said where some step within the limits has no shape that covers it; `then` is what happens to it."""
    widest = dict.fromkeys((*target.rows, target.max_batch_size), 0)
    widest |= {shape.rows: shape.width for shape in target.policy.shapes}  # ascending, so the last is the widest
    # A step may go to any larger row bucket, so what it reaches is the widest from its own bucket on.
    reach = tuple(accumulate(reversed(widest.values()), max))[::-1]
    parts, first = [], 1
    for width, buckets in groupby(zip(widest, reach, strict=True), key=itemgetter(1)):
        *_, (last, _) = buckets
        if width < target.max_model_len:
            parts.append(span(first, last) + (f" above width {width}" if width else ""))
        first = last + 1
    return [f"{'; '.join(parts)} are off the list: {then}"] if parts else []
