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


def copies(values: Sequence[Tensor]) -> tuple[int, float]:
    """How many places on examples are nearly the same, and what share of them is; ``(0, 0.0)`` if nowhere.

    Augmentations of an example that lie side by side are one place apart, those that follow one another batch by batch
    a part of the batch. Every distance is compared with the others, so that few discrete values are no copies.

    Args:
        values: what there is to know of the examples, each of shape ``[examples, numbers]``.
    """
    rows = torch.cat([value.double() for value in values], dim=1)
    spread = rows.std(0)
    rows = rows[:, (spread > 1e-6 * rows.abs().mean(0)) & spread.isfinite()]
    examples = len(rows)
    if examples < 8 or not rows.shape[1]:
        return 0, 0.0
    rows = (rows - rows.mean(0)) / rows.std(0)
    apart = torch.cdist(rows, rows)
    usual = apart[~torch.eye(examples, dtype=torch.bool)].median()
    places = torch.arange(examples)
    lags = range(1, examples // 2 + 1)
    shares = torch.stack([(apart[places, places.roll(-lag)] < NEAR * usual).double().mean() for lag in lags])
    chance, place = float(shares.mean()), int(shares.argmax())
    share, error = float(shares[place]), (chance * (1 - chance) / examples) ** 0.5
    return (lags[place], share) if share >= MOST and share > chance + SURE * error else (0, 0.0)
