"""The gates on a policy's arithmetic: what it must hold, and what it may cost. Each returns its figure or raises."""

from __future__ import annotations

from collections.abc import Iterable

from nanoserve.buckets import BucketsUnsound, CaptureList, DecodePolicy, Shape, waste

RECOMPILE_LIMIT = 8
"""Shapes after which dynamo gives a frame up (`torch._dynamo.config.recompile_limit`)."""
CAPTURE_LIMIT = 64
"""Graphs a capture list may hold before it is a compile bill."""
DEFAULT_WASTE_LIMIT = 0.9
"""Share of padding above which a policy is taken for a mistake."""


def check_shape_in_set(shape: Shape, buckets: DecodePolicy | CaptureList) -> Shape:
    """That `shape` is one the policy may present. Returns it."""
    if shape not in buckets.shapes:
        raise BucketsUnsound(f"shape {shape} is not in the closed set: run what shape_for says ({buckets.render()})")
    return shape


def check_run_closed(presented: Iterable[Shape], buckets: DecodePolicy, *, limit: int = RECOMPILE_LIMIT) -> int:
    """That a run presented shapes of the set only, no more distinct ones than a compiler keeps. Returns how many."""
    distinct = set(presented)
    _need_steps(len(distinct), "check_run_closed")
    for shape in sorted(distinct):
        check_shape_in_set(shape, buckets)
    if len(distinct) > limit:
        raise BucketsUnsound(
            f"the run presented {len(distinct)} distinct shapes, the compiler keeps {limit}: "
            "widen the buckets or raise the recompile limit to the size of the set",
            figure=len(distinct),
            limit=limit,
        )
    return len(distinct)


def check_capture_budget(
    buckets: DecodePolicy | CaptureList,
    *,
    limit: int = CAPTURE_LIMIT,
    mib: float | None = None,
    mib_limit: float | None = None,
    seconds: float | None = None,
    seconds_limit: float | None = None,
) -> int:
    """That the whole set is a capture list one can pay for, in graphs, MiB or seconds. Returns its size.

    `mib` and `seconds` are the set's predicted or measured bill. Raises BucketsUnsound over a limit, ValueError for a
    limit without its figure.
    """
    for name, figure, most in (("MiB", mib, mib_limit), ("seconds", seconds, seconds_limit)):
        if most is not None and figure is None:
            raise ValueError(f"a limit of {most:g} {name} needs the figure to compare with it")
        if most is not None and figure is not None and not figure <= most:
            raise BucketsUnsound(
                f"capturing {buckets.count} shapes takes {figure:,.1f} {name}, the budget is {most:,.1f}: drop the "
                f"widest buckets or lower max_batch_size ({buckets.render()})",
                figure=figure,
                limit=most,
            )
    if buckets.count > limit:
        raise BucketsUnsound(
            f"{buckets.count} shapes are over the budget of {limit} graphs, each a compile or a capture with its own "
            f"memory: coarsen the width ladder or drop row buckets ({buckets.render()})",
            figure=buckets.count,
            limit=limit,
        )
    return buckets.count


def check_waste_bounded(
    open_shapes: Iterable[Shape], buckets: DecodePolicy, *, limit: float = DEFAULT_WASTE_LIMIT
) -> float:
    """That padding stays below `limit` of the cells computed. Returns the waste."""
    steps = tuple(open_shapes)
    _need_steps(len(steps), "check_waste_bounded")
    share = waste(steps, buckets)
    if share > limit:
        raise BucketsUnsound(
            f"{share:.1%} of the computed cells are padding, the limit is {limit:.1%}: "
            f"refine the ladders ({buckets.render()})",
            figure=share,
            limit=limit,
        )
    return share


def _need_steps(count: int, gate: str) -> None:
    if not count:
        raise BucketsUnsound(f"{gate} was given a run of no steps: nothing was checked", figure=0)
