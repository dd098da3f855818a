"""How much of the fewest steps is luck: of several learning rates the winner is the one whose seeds were fast."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analysis.arrays import Array
from analysis.estimate.fitting.data import Trials
from cbs.trial.lr_choice import best_lr_many, standings

_DRAWS = 100


def winner_bias(tables: Sequence[Trials], variance: float, rng: np.random.Generator) -> Array:
    """By how many log steps the winner's mean is expected to lie below that of the best learning rate, shape ``[M]``.

    The choice is played through on tables with the noise of one trial, in which every learning rate is as much slower
    than the winner as it was measured to be beyond that noise: of a distance ``d`` with the variance ``v`` there stays
    ``sqrt(max(0, d^2 - 2 v))``. The winner is the least of several, so distances to it are too large by more than
    their variance. Seeds that were not run count as neither fast nor slow. What all learning rates of a seed share
    takes no part in the choice.

    Args:
        tables: one per batch size that reached the target.
        variance: of the log steps of one seed, for where no two learning rates share two seeds.
        rng: random numbers.
    """
    noise = _noise(tables, variance)
    biases = np.zeros(len(tables))
    for place, table in enumerate(tables):
        winner, hit = table.winner, np.isfinite(table.steps)
        count = hit.sum(axis=1)
        if winner is None or (count > 0).sum() < 2 or noise <= 0:
            continue
        _, (means,) = standings(table.steps[None], table.ran[None])
        distance = np.where(count > 0, means - means[winner], 0.0)
        spread = noise * (1 / np.maximum(count, 1) + 1 / count[winner])
        slower = np.sqrt(np.maximum(distance**2 - 2 * spread, 0.0))
        drawn = slower[:, None] + np.sqrt(noise) * rng.standard_normal((_DRAWS, *hit.shape))
        chosen = best_lr_many(np.where(hit, np.exp(drawn), np.nan), np.broadcast_to(table.ran, drawn.shape))
        most = np.maximum(count[chosen], count[winner])
        short = np.where(hit, drawn - slower[:, None], 0.0)[np.arange(_DRAWS), chosen].sum(axis=1) / most
        biases[place] = max(0.0, -float((slower[chosen] + short).mean()))
    return biases


def _noise(tables: Sequence[Trials], variance: float) -> float:
    """Variance of one trial's log steps but for what the learning rates of a seed share, pooled over batch sizes."""
    squares, freedom = 0.0, 0
    for table in tables:
        winner = table.winner
        if winner is None:
            continue
        apart = np.log(np.delete(table.steps, winner, axis=0) / table.steps[winner])
        for row in apart:
            both = row[np.isfinite(row)]
            if len(both) > 1:
                squares += float(((both - both.mean()) ** 2).sum()) / 2
                freedom += len(both) - 1
    return squares / freedom if freedom else variance
