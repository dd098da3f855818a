"""Slow twin of the largest attention logit: one pair of positions at a time, from the definition."""

import math

import torch
from torch import Tensor


def largest_logit(
    query: Tensor, key: Tensor, attn_mask: Tensor | None = None, *, is_causal: bool = False, scale: float | None = None
) -> float:
    """Largest ``scale * q_i . k_j`` over every pair that takes part; minus infinity without one.

    Args:
        query: shape ``[examples, heads, queries, width]``.
        key: shape ``[examples, key heads, keys, width]``; consecutive query heads share a key head.
        attn_mask: broadcastable to ``[examples, heads, queries, keys]``; True, or a float above -10,000, takes part.
        is_causal: key j takes part for query i if j <= i.
        scale: 1 / sqrt(width) by default.
    """
    (examples, heads, queries, width), key_heads, keys = query.shape, key.shape[1], key.shape[2]
    factor = 1 / math.sqrt(width) if scale is None else scale
    mask = torch.ones((), dtype=torch.bool) if attn_mask is None else attn_mask
    q, k, pairs = query.tolist(), key.tolist(), mask.broadcast_to(examples, heads, queries, keys).tolist()
    largest = -math.inf
    for example in range(examples):
        for head in range(heads):
            shared = head // (heads // key_heads)
            for i in range(queries):
                for j in range(keys):
                    entry = pairs[example][head][i][j]
                    takes_part = entry if mask.dtype == torch.bool else entry > -1e4
                    if takes_part and not (is_causal and j > i):
                        product = sum(a * b for a, b in zip(q[example][head][i], k[example][shared][j], strict=True))
                        largest = max(largest, factor * product)
    return largest
