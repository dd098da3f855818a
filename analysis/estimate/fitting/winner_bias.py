"""Selection bias of the fewest steps: among several learning rates, the winner is one whose seeds happened to be
fast."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analysis.arrays import Array
from analysis.estimate.fitting.data import Trials
from cbs.trial.lr_choice import best_lr_many, standings

_DRAWS = 100


def winner_bias(tables: Sequence[Trials], variance: float, rng: np.random.Generator) -> Array:
    """Return by how many log steps the winner's mean is expected to lie below that of the best learning rate, ``[M]``.

    The choice is simulated on tables with the noise of one trial, in which every learning rate is slower than the
    winner by the measured amount corrected for noise: of a distance ``d`` with variance ``v``, ``sqrt(max(0, d^2 - 2
    v))`` remains. (The winner is the smallest of several, so distances to it are too large by more than their
    variance.) Seeds that were not run count as neither fast nor slow. Effects that all learning rates of a seed share
    do not influence the choice.

    Args:
        tables: one table per batch size that reached the target.
        variance: variance of the log steps of one seed, used if no two learning rates share two seeds.
        rng: random number generator.
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
    """Return the variance of one trial's log steps without the effects shared within a seed, pooled over batch
    sizes."""
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
