"""Whether examples in a batch come in copies of one another, at a regular distance."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

NEAR = 0.3
"""Distance of two examples below which they are nearly the same, relative to the median distance of two."""

MOST = 0.5
"""Share of examples that have to be nearly the same as those so many places on."""

SURE = 5.0
"""Standard errors by which that share has to exceed what is usual at other distances."""


SAMPLE = 256
"""Examples that are compared with all others: in a large batch these tell the share, and all pairs would not fit."""


def copies(values: Sequence[Tensor]) -> tuple[int, float]:
    """How many places on examples are nearly the same, and what share of them is; ``(0, 0.0)`` if nowhere.

    Augmentations of an example that lie side by side are one place apart, those that follow one another batch by batch
    a part of the batch. Every distance is compared with the others, so that few discrete values are no copies.

    Args:
        values: what there is to know of the examples, each of shape ``[examples, numbers]``.
    """
    rows = torch.cat([value.double() for value in values], dim=1)
    if len(rows) < 8:
        return 0, 0.0
    spread = rows.std(0)
    rows = rows[:, (spread > 1e-6 * rows.abs().mean(0)) & spread.isfinite()]
    examples = len(rows)
    if not rows.shape[1]:
        return 0, 0.0
    rows = (rows - rows.mean(0)) / rows.std(0)
    # drawn, as evenly spaced ones may all be the first of their copies
    some = torch.randperm(examples, generator=torch.Generator().manual_seed(0))[:SAMPLE].to(rows.device)
    lags = torch.arange(1, examples // 2 + 1, device=rows.device)
    apart = torch.cdist(rows[some], rows).gather(1, (some[:, None] + torch.arange(1, examples).to(some)) % examples)
    shares = (apart[:, : len(lags)] < NEAR * apart.median()).double().mean(0)
    chance, place = float(shares.mean()), int(shares.argmax())
    share, error = float(shares[place]), (chance * (1 - chance) / len(some)) ** 0.5
    return (int(lags[place]), share) if share >= MOST and share > chance + SURE * error else (0, 0.0)
