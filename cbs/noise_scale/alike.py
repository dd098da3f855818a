"""Whether examples in a batch resemble those at a regular distance, as copies of one another do."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

LEAST = 0.1
"""Correlation of examples with those so many places on from which they are said to be alike."""

SURE = 3.5
"""Standard errors by which it has to exceed that at other distances."""

SAMPLE = 256
"""Examples that are compared with all others: in a large batch these tell it, and all pairs would not fit."""


def alike(values: Sequence[Tensor]) -> tuple[int, float]:
    """How many places on examples are alike, and their correlation; ``(0, 0.0)`` if nowhere, and -1 places if those in
    reverse order are, with which a batch is often mixed up.

    Views of an example that lie side by side are one place apart, those that follow one another batch by batch a part
    of the batch. With numbers of mean 0 and variance 1, the squared distance of two rows of correlation r is 1 - r of
    what it is for others; every distance in places is compared with all of them.

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
    apart = torch.cdist(rows[some], rows).square()
    apart = apart.gather(1, (some[:, None] + torch.arange(1, examples).to(some)) % examples)
    lags = torch.arange(1, examples // 2 + 1, device=rows.device)
    mirrored = (rows - rows.flip(0)).square().sum(1)[: examples // 2]
    correlations = 1 - torch.cat([apart[:, : examples // 2].mean(0), mirrored.mean()[None]]) / apart.mean()
    pairs = torch.full_like(correlations, len(some))  # of different examples
    pairs[:-1][2 * lags == examples] /= 2
    pairs[-1] = examples // 2
    lags = torch.cat([lags, lags.new_tensor([-1])])
    beyond = correlations - SURE * apart.std() / apart.mean() / pairs.sqrt()
    place = int(beyond.argmax())
    found = float(correlations[place])
    return (int(lags[place]), found) if found >= LEAST and float(beyond[place]) > 0 else (0, 0.0)
