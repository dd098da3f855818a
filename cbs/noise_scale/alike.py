"""Detect examples of a batch that resemble those at a fixed distance in the batch, as copies and augmentations do."""

from __future__ import annotations

import torch
from torch import Tensor

from cbs.noise_scale.geometries.base import as_real

LEAST = 0.1
"""Least correlation between examples at one distance from which they are reported as alike."""

SURE = 3.5
"""Number of standard errors by which that correlation has to exceed those at other distances."""

SURER = 5.5
"""Number of standard errors by which the halves of a batch have to differ, in the cube root (Wilson and Hilferty)."""

SAMPLE = 256
"""Number of examples that are compared with all others; all pairs of a large batch would not fit into memory."""

NUMBERS = 2**20
"""Most numbers of all examples together that are compared; from larger tensors so many columns are drawn at random."""


def sampled(rows: Tensor, most: int) -> Tensor:
    """Return at most ``most`` columns of rows, the same in every row, in float64 on the CPU."""
    values = as_real(rows).flatten(1)
    if values.shape[1] > most:
        values = values[:, torch.randint(values.shape[1], (most,), generator=torch.Generator().manual_seed(0))]
    return values.cpu().double()


def alike(rows: Tensor) -> tuple[int, float]:
    """Return the distance in places at which examples are alike, and their correlation.

    The distance is the offset between two rows of the batch: 1 where views of an example lie next to each other, a
    fraction of the batch where copies of the batch follow one another. It is -1 if the examples resemble those of the
    batch in reverse order, with which a batch is often mixed up. It is 1, too, if the halves of the batch differ, as
    where it is sorted. The result is ``(0, 0.0)`` if examples are alike at no distance.

    For numbers of mean 0 and variance 1, the squared distance of two rows with correlation r is 1 - r times that of
    uncorrelated rows. Every offset is compared with the average over all offsets.

    Args:
        rows: inputs or outputs of the batch, shape ``[examples, numbers]``.
    """
    if len(rows) < 8:
        return 0, 0.0
    rows = sampled(rows.detach(), NUMBERS // len(rows))
    spread = rows.std(0)
    rows = rows[:, (spread > 1e-6 * rows.abs().mean(0)) & spread.isfinite()]
    examples = len(rows)
    if not rows.shape[1]:
        return 0, 0.0
    rows = (rows - rows.mean(0)) / rows.std(0)
    # A random sample: evenly spaced examples may all be the first of their copies.
    some = torch.randperm(examples, generator=torch.Generator().manual_seed(0))[:SAMPLE].to(rows.device)
    apart = torch.cdist(rows[some], rows).square()
    apart = apart.gather(1, (some[:, None] + torch.arange(1, examples).to(some)) % examples)
    halves = (rows[: examples // 2].sum(0) - rows[examples // 2 :].sum(0)).square().sum() / rows.square().sum()
    spread = (apart.std() / apart.mean()).square() / 9
    if halves ** (1 / 3) > 1 - spread + SURER * spread.sqrt() and halves - 1 >= LEAST * examples:
        return 1, float(halves - 1) / examples
    lags = torch.arange(1, examples // 2 + 1, device=rows.device)
    mirrored = (rows - rows.flip(0)).square().sum(1)[: examples // 2]
    correlations = 1 - torch.cat([apart[:, : examples // 2].mean(0), mirrored.mean()[None]]) / apart.mean()
    pairs = torch.full_like(correlations, len(some))  # number of pairs of different examples behind every correlation
    pairs[:-1][2 * lags == examples] /= 2
    pairs[-1] = examples // 2
    lags = torch.cat([lags, lags.new_tensor([-1])])
    beyond = correlations - SURE * apart.std() / apart.mean() / pairs.sqrt()
    place = int(beyond.argmax())
    strongest = float(correlations[place])
    return (int(lags[place]), strongest) if strongest >= LEAST and float(beyond[place]) > 0 else (0, 0.0)
