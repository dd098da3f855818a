r"""Seeds that did not reach the target, as lower bounds on their steps: a Tobit fit by expectation and maximisation.

A seed that ran :math:`b` steps without reaching the target says :math:`\ln S > \ln b`. Leaving it out makes the curve
too low where only the fast seeds got there, and blind where none did. With normal noise of standard deviation
:math:`\sigma` around the curve :math:`\mu(B)` its likelihood is :math:`1 - \Phi(z)`, :math:`z = (\ln b - \mu)/\sigma`
(Tobin 1958, "Estimation of relationships for limited dependent variables", Econometrica 26, 24-36). Expectation puts
:math:`E[\ln S \mid \ln S > \ln b] = \mu + \sigma h(z)` in place of the seed, with the hazard
:math:`h = \varphi/(1 - \Phi)`; maximisation is the least-squares fit. Repeating the two climbs to the maximum of the
likelihood, but slowly where a bound decides much, so a censored seed enters with the weight :math:`k = h (h - z)` that
the likelihood curves with, and the response :math:`\mu + \sigma h/k`: the same fixed point, reached in a few rounds.

A bound far below the curve has :math:`h = 0`, no weight, and changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import erfcx

from analysis.arrays import Array

LEAST_DEVIATION = 1e-3
"""Least standard deviation of ln S: a tenth of a percent, finer than steps to target are ever known."""


@dataclass(frozen=True)
class Bounds:
    """Seeds that are known by a lower bound only, ``J`` of them.

    Attributes:
        place: index of the batch size of each, shape ``[J]``.
        log_steps: natural log of the steps it ran without reaching the target, shape ``[J]``.
    """

    place: np.ndarray
    log_steps: Array

    def __len__(self) -> int:
        return len(self.place)


def observed(table: Array, bound: Array, winner: int | None) -> tuple[Array, Array]:
    """What one batch size says about its best learning rate: log steps of the seeds that reached the target, and log
    bounds of those that did not.

    Where some trial reached the target, both are those of the winning learning rate. Where none did, the winner is
    unknown, and what is known of it is that it took longer than the learning rate that was given up first: the bounds
    are those of the learning rate whose longest run is shortest. Every other one ran longer than that on some seed, so
    whichever is the best one, its steps exceed them. A diverged trial has no bound: it does not say how long another
    learning rate takes.

    Args:
        table: steps to target, shape ``[learning rates, seeds]``; NaN where not reached.
        bound: steps run without reaching it, likewise; NaN where that means nothing.
        winner: row of the winning learning rate, see :func:`cbs.lr_choice.best_lr`; ``None`` where there is none.

    Returns:
        Both of shape ``[at most seeds]``.
    """
    if winner is None:
        known = np.isfinite(bound)
        longest = np.where(known.any(axis=1), np.where(known, bound, -np.inf).max(axis=1), np.inf)
        winner = int(longest.argmin())
    hit = np.isfinite(table[winner])
    missed = ~hit & np.isfinite(bound[winner]) & (bound[winner] > 0)
    return np.log(table[winner][hit]), np.log(bound[winner][missed])


def collect(rows: Sequence[Array]) -> Bounds:
    """The bounds of all batch sizes, from those of each."""
    place = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    return Bounds(place, np.concatenate([np.asarray(row, dtype=float) for row in rows]))


def hazard(z: Array) -> Array:
    """Density of the normal distribution over its upper tail."""
    return math.sqrt(2.0 / math.pi) / erfcx(z / math.sqrt(2.0))


def responses(mean: Array, bounds: Bounds, deviation: float, latent: Array | None = None) -> tuple[Array, Array]:
    """What every bounded seed enters the next least-squares fit with, and its weight; shape ``[R, J]`` each.

    Args:
        mean, bounds, deviation, latent: as :func:`completed` takes them.
    """
    sigma, at = max(deviation, LEAST_DEVIATION), mean[:, bounds.place]
    z = (bounds.log_steps - at) / sigma
    rate = hazard(z)
    weight = np.clip(rate * (rate - z), 0.0, 1.0)
    response = at + sigma * rate / np.where(weight > 0, weight, np.inf)
    if latent is None:
        return response, weight
    reached = latent <= bounds.log_steps
    return np.where(reached, latent, response), np.where(reached, 1.0, weight)


def completed(
    mean: Array, log_steps: Array, weights: Array, bounds: Bounds, deviation: float, latent: Array | None = None
) -> Array:
    """``log_steps`` with the expectation of every bounded seed averaged in, shape ``[R, M]``.

    Args:
        mean: log steps of the fitted curve, shape ``[R, M]``.
        log_steps: means over the seeds that reached the target, shape ``[R, M]``; any number where none did.
        weights: number of these seeds, shape ``[M]``.
        bounds: the seeds that did not.
        deviation: standard deviation of the log steps of one seed.
        latent: log steps of the bounded seeds, shape ``[R, J]``, in resamples: a seed below its bound reached the
            target there. In the data, where none did, absent.
    """
    if not len(bounds):
        return log_steps
    sigma = max(deviation, LEAST_DEVIATION)
    at = mean[:, bounds.place]
    expected = at + sigma * hazard((bounds.log_steps - at) / sigma)
    if latent is not None:
        expected = np.where(latent <= bounds.log_steps, latent, expected)
    return joined(log_steps, weights, bounds.place, expected, np.ones_like(expected))[0]


def joined(log_steps: Array, weights: Array, place: np.ndarray, values: Array, extra: Array) -> tuple[Array, Array]:
    """Weighted means per batch size of what was measured and of ``values``, and their weights, both ``[R, M]``."""
    total = np.repeat(weights[None], len(log_steps), axis=0)
    sums = log_steps * weights
    for seed, index in enumerate(place):
        total[:, index] += extra[:, seed]
        sums[:, index] += extra[:, seed] * values[:, seed]
    return np.where(total > 0, sums / np.where(total > 0, total, 1.0), 0.0), total
