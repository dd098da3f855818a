"""Which learning rate wins, from the steps to target of every (learning rate, seed).

The winner is chosen over seeds, not by the luckiest run: first the learning rates that reach the target on the most
seeds, among them the lowest geometric mean of the steps. The search that extends a learning-rate grid and the
analysis, and each bootstrap resample of it, call this one function, so they cannot disagree.
"""

from __future__ import annotations

import numpy as np


def best_lr(steps: np.ndarray) -> int | None:
    """Index of the winning learning rate.

    Args:
        steps: shape ``[learning rates, seeds]``, steps to target; NaN or infinity where the target was not reached.

    Returns:
        The row, or ``None`` when no trial reached the target. Ties go to the lower index.
    """
    best = best_lr_many(np.asarray(steps, dtype=float)[None])[0]
    return None if best < 0 else int(best)


def best_lr_many(steps: np.ndarray) -> np.ndarray:
    """:func:`best_lr` for many tables at once.

    Args:
        steps: shape ``[resamples, learning rates, seeds]``.

    Returns:
        Row indices of shape ``[resamples]``; -1 where nothing reached the target.
    """
    reached = np.isfinite(steps)
    count = reached.sum(axis=2)
    with np.errstate(divide="ignore"):
        logs = np.log(np.where(reached, steps, 1.0))
    mean = np.where(count > 0, logs.sum(axis=2) / np.maximum(count, 1), np.inf)
    mean = np.where(count == count.max(axis=1, keepdims=True), mean, np.inf)
    return np.where(count.max(axis=1) > 0, mean.argmin(axis=1), -1)


def censored(steps: np.ndarray, prune_factor: float | None) -> np.ndarray:
    """Steps to target as pruning leaves them, whether or not a slow trial was stopped in time.

    Args:
        steps: shape ``[learning rates, seeds]``; NaN where the target was not reached.
        prune_factor: multiple of the best steps of a seed beyond which a trial counts as not having reached the
            target; ``None`` for no such bound.

    Returns:
        A copy with NaN in place of what lies beyond the bound of its seed.
    """
    if prune_factor is None:
        return steps.copy()
    best = np.min(np.where(np.isfinite(steps), steps, np.inf), axis=0, initial=np.inf)
    return np.where(steps > prune_factor * best, np.nan, steps)
