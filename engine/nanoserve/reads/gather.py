"""The reference read: copy each row's K/V out of the pool into a `[rows, width]` rectangle, then attend.

The width is a tensor dimension here, which is why a step's shape moves on two axes and why both are bucketed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class GatherWindow(NamedTuple):
    """What every layer of one step reads through; made once a step.

    `slots` is int64 `[rows, width]`; `outside` is bool `[rows, width, 1, 1]`, true past a row's own length;
    `bias` is `[rows, 1, 1, width]`, 0 inside and the most negative finite number outside. Not -inf: a padded
    row masks every column, and a softmax over all -inf is NaN where one over all finfo.min is uniform.
    """

    slots: Tensor
    outside: Tensor
    bias: Tensor


def gather_window(slots: Tensor, context_lens: Tensor, dtype: torch.dtype) -> GatherWindow:
    """The window of `slots` `[rows, width]` for rows of `context_lens` `[rows]` tokens each."""
    outside = torch.arange(slots.shape[1], device=slots.device) >= context_lens[:, None]
    bias = torch.zeros(outside.shape, dtype=dtype, device=slots.device)
    bias = bias.masked_fill(outside, torch.finfo(dtype).min)
    return GatherWindow(slots, outside[:, :, None, None], bias[:, None, None, :])


def gather_attention(query: Tensor, k_pool: Tensor, v_pool: Tensor, window: GatherWindow) -> Tensor:
    """One query token a row against that row's context. `query` and the result are `[rows, heads, head_dim]`.

    What lies outside a row's length is zeroed after the gather: masking alone gives it weight 0, and
    0 * NaN is NaN. The query heads that share a KV head become the query axis, so nothing is repeated.
    """
    rows, heads, head_dim = query.shape
    kv_heads = k_pool.shape[1]
    keys = k_pool[window.slots].masked_fill(window.outside, 0).transpose(1, 2)
    values = v_pool[window.slots].masked_fill(window.outside, 0).transpose(1, 2)
    grouped = query.view(rows, kv_heads, heads // kv_heads, head_dim)
    return F.scaled_dot_product_attention(grouped, keys, values, attn_mask=window.bias).reshape(query.shape)
