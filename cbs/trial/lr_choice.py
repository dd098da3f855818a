"""Choice of the best learning rate from the steps to target of every (learning rate, seed).

The choice is made over seeds, not by the luckiest run: among the learning rates with the smallest share of trials that
failed to reach the target, the one with the lowest geometric mean of the steps. Trials that were never run are left
out. Where a learning rate has steps for only some of the seeds, the means are those of an additive model of learning
rate and seed, so that a learning rate gains nothing from having been run with the faster seeds. The search that extends
a learning-rate grid, the analysis, and every bootstrap resample call these functions, so they cannot disagree.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

_LEAST = 1e-300  # Used in place of 0 steps, whose logarithm is undefined


_ROUNDING = 1e-10  # Shares and mean log steps that differ by less than this are a tie


# Ratio of slopes, or of curvatures in ln lr, up to which a polynomial through neighbours is trusted in between
ALIKE = 8.0


SLOPE, SLOPE_DEVIATION = 0.5, 0.4  # Mean and standard deviation of the prior of the slope


# Standard deviation by which ln lr departs from a straight line per e-fold of the batch size
DRIFT = 0.15


def vertex(left: float, right: float, below: float, above: float) -> tuple[float, float]:
    """Return position and depth of the vertex of a parabola through three points.

    The points are 0 at 0, ``left`` at ``-below`` and ``right`` at ``above``. Both results are 0 where the parabola has
    no minimum, or two points have the same position.
    """
    if min(below, above) <= 0:
        return 0.0, 0.0
    first, second = left / below, right / above
    curvature = (first + second) / (below + above)
    if curvature <= 0:
        return 0.0, 0.0
    slope = second - curvature * above
    return -slope / (2 * curvature), slope**2 / (4 * curvature)


def cliff(positions: np.ndarray, values: np.ndarray, best: int) -> bool:
    """Return whether the next learning rate above the best one may lie beyond the limit of stability.

    It may if the objective bends more than :data:`ALIKE` times as much at the best as at the one below it. If that one
    is the lowest, it may if the objective rises more than so many times as steeply to the next one above as to the one
    below. The objective beyond the limit says nothing about learning rates before it.

    Args:
        positions: ln of the learning rates in increasing order, or positions in proportion to it.
        values: objective at each of them, infinite where a trial failed.
        best: index of the best one; it has two neighbours.
    """
    part = slice(max(best - 2, 0), best + 2)
    with np.errstate(invalid="ignore"):
        gaps, steps = np.diff(positions[part]), np.diff(values[part])
    *_, fall, rise = slopes = steps / gaps
    if len(slopes) == 3 and np.isfinite(slopes).all():
        before = (fall - slopes[0]) / (gaps[0] + gaps[1])
        return bool((rise - fall) / (gaps[1] + gaps[2]) > ALIKE * before)
    return bool(rise > -ALIKE * fall)


def best_lr(steps: np.ndarray, ran: np.ndarray | None = None) -> int | None:
    """Return the index of the best learning rate.

    Args:
        steps: steps to target, shape ``[learning rates, seeds]``; NaN or infinity where the target was not reached.
        ran: whether each trial was run, same shape; all by default.

    Returns:
        The row, or ``None`` when no trial reached the target. Ties go to the lower index.
    """
    table, run = np.asarray(steps, dtype=float)[None], None if ran is None else np.asarray(ran)[None]
    best = best_of_standings(*standings(table, run))[0]
    return None if best < 0 else int(best)


def best_of_standings(failed: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Apply :func:`best_lr` to the :func:`standings` of many tables; return the rows, shape ``[resamples]``, -1 where
    no trial reached the target."""
    mean = np.where(failed <= failed.min(axis=1, keepdims=True) + _ROUNDING, mean, np.inf)
    tied = mean <= mean.min(axis=1, keepdims=True) + _ROUNDING
    return np.where(np.isfinite(mean).any(axis=1), tied.argmax(axis=1), -1)


def standings(steps: np.ndarray, ran: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores by which the best learning rate is chosen.

    Args:
        steps: shape ``[resamples, learning rates, seeds]``.
        ran: same shape.

    Returns:
        For every learning rate the share of its trials that failed to reach the target, and the mean log steps of the
        others (up to a constant where learning rates have different seeds), each of shape ``[resamples, learning
        rates]``; infinite where no trial reached it.
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
    """Return the effect of every learning rate in ``logs = learning rate + seed``, by least squares over ``reached``.

    Shape ``[resamples, learning rates]``; infinite where a learning rate has no data. The seeds are eliminated first,
    so that the system is as large as the number of learning rates. Of all solutions it is the one of minimum norm in
    learning rates and seeds: where two parts of a table share no seed and no learning rate, their means decide.
    """
    there = reached.astype(float)
    per_lr, per_seed = there.sum(axis=2), there.sum(axis=1)
    centred = there * (logs - ((there * logs).sum(axis=(1, 2)) / there.sum(axis=(1, 2)))[:, None, None])
    share = there / np.maximum(per_seed, 1.0)[:, None, :]
    normal = np.einsum("rl,lk->rlk", per_lr, np.eye(there.shape[1])) - share @ there.swapaxes(1, 2)
    right = centred.sum(axis=2) - (share @ centred.sum(axis=1)[:, :, None])[:, :, 0]
    # Singular: a constant moves between learning rates and seeds. pinv leaves out what is 0 up to rounding.
    effect = np.einsum("rij,rj->ri", np.linalg.pinv(normal, rcond=1e-9, hermitian=True), right)
    seeds = (centred - there * effect[:, :, None]).sum(axis=1) / np.maximum(per_seed, 1.0)
    linked = (there @ there.swapaxes(1, 2) > 0).astype(float)
    for _ in range(max(1, (there.shape[1] - 1).bit_length())):
        linked = (linked @ linked > 0).astype(float)
    # In every connected part, a constant can be moved from the learning rates to the seeds.
    of_part = ((linked @ there > 0) * seeds[:, None, :]).sum(axis=2)
    members = linked.sum(axis=2) + (linked @ there > 0).sum(axis=2)
    shift = (of_part - (linked @ (effect * (per_lr > 0))[:, :, None])[:, :, 0]) / np.maximum(members, 1.0)
    return np.where(per_lr > 0, effect + shift, np.inf)


def at_edges(row: int, tried: Sequence[bool] | np.ndarray) -> tuple[bool, bool]:
    """Return whether a learning rate is the lowest, and whether it is the highest, of those that were tried.

    Args:
        row: index of the learning rate.
        tried: whether each learning rate of the grid was tried, shape ``[learning rates]``.
    """
    return not any(tried[:row]), not any(tried[row + 1 :])


def censored(steps: np.ndarray, prune_factor: float | None) -> np.ndarray:
    """Return the steps to target as pruning would leave them, whether or not a slow trial was stopped in time.

    Args:
        steps: shape ``[learning rates, seeds]``; NaN where the target was not reached.
        prune_factor: multiple of the best steps of a seed beyond which a trial counts as not having reached the target;
            ``None`` for no such bound.

    Returns:
        A copy with NaN for trials beyond the bound of their seed.
    """
    if prune_factor is None:
        return steps.copy()
    best = np.min(np.where(np.isfinite(steps), steps, np.inf), axis=0, initial=np.inf)
    return np.where(steps > prune_factor * best, np.nan, steps)


@dataclass(frozen=True)
class Expected:
    """Predicted best learning rate at a batch size: its logarithm and the standard deviation of that."""

    log_lr: float
    deviation: float

    def side(self, log_lr: float) -> int:
        """Return on which side of a learning rate it lies: 1 above it or there, -1 below it."""
        return 1 if self.log_lr >= log_lr else -1


def expected(
    at: float,
    log_sizes: ArrayLike,
    log_lrs: ArrayLike,
    variances: ArrayLike,
    *,
    slope: float = SLOPE,
) -> Expected:
    """Predict the best learning rate at one batch size from those searched before it, by generalised least squares.

    The prediction is a straight line of ln lr over ln B, fitted from the point of view of the batch size asked for: a
    point counts less the farther away it is, because the true relation bends (it saturates at the noise scale:
    McCandlish et al. 2018, arXiv 1812.06162, equation 2.6). The slope has a prior around the rule of thumb 1/2 (square
    root) that is wide enough to include 0 (no dependence) and 1 (linear).

    >>> found = expected(np.log(128), np.log([32, 64]), np.log([1e-3, 2**0.5 * 1e-3]), variances=[0.01, 0.01])
    >>> round(float(np.exp(found.log_lr)), 6)
    0.002

    Args:
        at: ln of the batch size asked for.
        log_sizes, log_lrs, variances: ln batch size, ln of its best learning rate and the variance of the latter, shape
            ``[M]`` each, ``M`` at least 1.
        slope: mean of the prior of the slope; its standard deviation is :data:`SLOPE_DEVIATION`.
    """
    distance = np.asarray(log_sizes, dtype=float) - at
    weight = 1.0 / (np.asarray(variances, dtype=float) + (DRIFT * distance) ** 2)
    normal = np.array([[weight.sum(), weight @ distance], [weight @ distance, weight @ distance**2]])
    right = np.array([weight @ np.asarray(log_lrs), (weight * distance) @ np.asarray(log_lrs)])
    normal[1, 1] += 1.0 / SLOPE_DEVIATION**2
    right[1] += slope / SLOPE_DEVIATION**2
    covariance = np.linalg.inv(normal)
    return Expected(float((covariance @ right)[0]), float(np.sqrt(covariance[0, 0])))
