"""The hardest baseline of a fitted list: what anyone gets by dropping the graphs that were never replayed."""

from __future__ import annotations

from nanoserve.buckets import CaptureList, DecodePolicy, Shape, StaircaseBuckets
from nanoserve.fitting.histogram import StepsHistogram


def pruned(policy: DecodePolicy, histogram: StepsHistogram) -> StaircaseBuckets:
    """`policy` cut down to the shapes this traffic presents, plus the maxima, so that it still covers every step.

    The same traffic runs at the same shapes as before. ValueError where it goes beyond the policy's limits.
    """
    used = histogram.presented(policy)
    shapes = map(Shape, used.rows.tolist(), used.width.tolist())
    return CaptureList(shapes).complete(policy.max_batch_size, policy.max_model_len)
