"""Which learning rate wins, from the steps to target of every (learning rate, seed).

The winner is chosen over seeds, not by the luckiest run: first the learning rates of which the smallest share of the
trials that were run failed to reach the target, among them the lowest geometric mean of the steps. A trial that was
never run says nothing. Where a learning rate has the steps of some of the seeds only, the means are those of the
additive model of learning rate and seed, so that it gains nothing from these having been the fast ones. The search that
extends a learning-rate grid and the analysis, and each bootstrap resample of it, call these functions, so they cannot
disagree.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_LEAST = 1e-300
"""In place of 0 steps, whose logarithm is no number."""

_ROUNDING = 1e-10
"""Of shares and of mean log steps: what differs by less is a tie."""


def vertex(left: float, right: float, below: float, above: float) -> tuple[float, float]:
    """Place and depth of the vertex of the parabola through 0 and the rises ``left`` at ``-below`` and ``right`` at
    ``above``; 0 and 0 where it has none, or two of the points have the same place."""
    if min(below, above) <= 0:
        return 0.0, 0.0
    first, second = left / below, right / above
    curvature = (first + second) / (below + above)
    if curvature <= 0:
        return 0.0, 0.0
    slope = second - curvature * above
    return -slope / (2 * curvature), slope**2 / (4 * curvature)


def best_lr(steps: np.ndarray, ran: np.ndarray | None = None) -> int | None:
    """Index of the winning learning rate.

    Args:
        steps: shape ``[learning rates, seeds]``, steps to target; NaN or infinity where the target was not reached.
        ran: whether the trial was run, likewise; all were when absent.

    Returns:
        The row, or ``None`` when no trial reached the target. Ties go to the lower index.
    """
    best = best_lr_many(np.asarray(steps, dtype=float)[None], None if ran is None else np.asarray(ran)[None])[0]
    return None if best < 0 else int(best)


def best_lr_many(steps: np.ndarray, ran: np.ndarray | None = None) -> np.ndarray:
    """:func:`best_lr` for many tables at once.

    Args:
        steps: shape ``[resamples, learning rates, seeds]``.
        ran: likewise.

    Returns:
        Row indices of shape ``[resamples]``; -1 where nothing reached the target.
    """
    failed, mean = standings(steps, ran)
    mean = np.where(failed <= failed.min(axis=1, keepdims=True) + _ROUNDING, mean, np.inf)
    tied = mean <= mean.min(axis=1, keepdims=True) + _ROUNDING
    return np.where(np.isfinite(mean).any(axis=1), tied.argmax(axis=1), -1)


def standings(steps: np.ndarray, ran: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Scores that the winner is chosen by.

    Args:
        steps: shape ``[resamples, learning rates, seeds]``.
        ran: likewise.

    Returns:
        Share of the trials of a learning rate that failed to reach the target, and mean log steps of those that did not
        fail (up to a constant where learning rates have unlike seeds), shape ``[resamples, learning rates]`` each;
        infinite where none reached it.
    """
    reached = np.isfinite(steps)
    count = reached.sum(axis=2)
    tried = np.full_like(count, steps.shape[2]) if ran is None else (reached | ran).sum(axis=2)
    failed = np.where(count > 0, 1.0 - count / np.maximum(tried, 1), np.inf)
    logs = np.log(np.where(reached, np.maximum(steps, _LEAST), 1.0))
    mean = np.where(count > 0, logs.sum(axis=2) / np.maximum(count, 1), np.inf)
    uneven = (count > 0).any(axis=1) & ((count > 0) & (count < steps.shape[2])).any(axis=1)
    if uneven.any():
        mean[uneven] = _additive(logs[uneven], reached[uneven])
    return failed, mean


def _additive(logs: np.ndarray, reached: np.ndarray) -> np.ndarray:
    """Effect of every learning rate in ``logs = learning rate + seed`` by least squares over ``reached``, shape
    ``[resamples, learning rates]``; infinite where there is none.

    The seeds are eliminated first, so that the system is as large as there are learning rates. Of all solutions it is
    the shortest in learning rates and seeds: where two parts of a table share no seed and no learning rate, their means
    decide.
    """
    there = reached.astype(float)
    per_lr, per_seed = there.sum(axis=2), there.sum(axis=1)
    centred = there * (logs - ((there * logs).sum(axis=(1, 2)) / there.sum(axis=(1, 2)))[:, None, None])
    share = there / np.maximum(per_seed, 1.0)[:, None, :]
    normal = np.einsum("rl,lk->rlk", per_lr, np.eye(there.shape[1])) - share @ there.swapaxes(1, 2)
    right = centred.sum(axis=2) - (share @ centred.sum(axis=1)[:, :, None])[:, :, 0]
    effect = np.einsum("rij,rj->ri", np.linalg.pinv(normal, rcond=1e-9, hermitian=True), right)
    seeds = (centred - there * effect[:, :, None]).sum(axis=1) / np.maximum(per_seed, 1.0)
    linked = (there @ there.swapaxes(1, 2) > 0).astype(float)
    for _ in range(max(1, (there.shape[1] - 1).bit_length())):
        linked = (linked @ linked > 0).astype(float)
    # a part may be shifted by a constant between its learning rates and its seeds
    of_part = ((linked @ there > 0) * seeds[:, None, :]).sum(axis=2)
    members = linked.sum(axis=2) + (linked @ there > 0).sum(axis=2)
    shift = (of_part - (linked @ (effect * (per_lr > 0))[:, :, None])[:, :, 0]) / np.maximum(members, 1.0)
    return np.where(per_lr > 0, effect + shift, np.inf)


def at_edges(row: int, tried: Sequence[bool] | np.ndarray) -> tuple[bool, bool]:
    """Whether a learning rate is the lowest, and whether it is the highest, of those that were tried.

    Args:
        row: its index.
        tried: of every learning rate of the grid, shape ``[learning rates]``.
    """
    return not any(tried[:row]), not any(tried[row + 1 :])


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
