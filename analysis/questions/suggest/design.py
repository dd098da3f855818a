r"""Which further trials narrow the critical batch size most.

With the curve linearised at the fit, :math:`\partial \ln S / \partial (\ln S_{min}, \ln B_{crit}) = (1, r)` with
:math:`r = B_{crit}/(B + B_{crit})`. With ``n`` seeds of variance :math:`\sigma^2` at every batch size the covariance of
both parameters is :math:`\sigma^2 M^{-1}`, :math:`M = \sum_m n_m g_m g_m^T`, and its last entry is the variance of
:math:`\ln B_{crit}`. A design that makes it small is c-optimal (Pukelsheim, "Optimal Design of Experiments", 2006,
chapter 2); here trials are added one batch size at a time, where its logarithm falls most per example.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from analysis.arrays import Array
from analysis.estimate.fitting import Fit, predicted, widening

GOAL = 0.8
"""Expected width of the interval, relative to now, at which no more trials are added."""

MOST = 4
"""Most batch sizes that are added at a time."""


def two_sided(fit: Fit) -> bool:
    """Whether the fit shows both sides of the curve, so that it has slopes in both parameters."""
    return bool(fit.estimate.min_steps > 0 and fit.estimate.min_examples > 0)


def log_steps(fit: Fit, batch_size: float) -> float:
    """``ln S`` of the fit at one batch size."""
    return float(predicted(np.array([batch_size]), fit.estimate)[0])


def information(fit: Fit, batch_sizes: Sequence[float] = (), seeds: Sequence[float] = ()) -> Array:
    """The matrix ``M`` above, in ``(ln S_min, ln B_crit)``, with ``seeds`` more at ``batch_sizes``.

    Args:
        fit: a curve seen on both sides, see :func:`two_sided`.
        batch_sizes: examples per step, shape ``[K]``.
        seeds: further seeds there, shape ``[K]``.
    """
    critical = float(fit.estimate.min_examples / fit.estimate.min_steps)
    at = np.concatenate([fit.batch_sizes, np.asarray(batch_sizes, dtype=float)])
    count = np.concatenate([fit.weights, np.asarray(seeds, dtype=float)])
    slope = np.stack([np.ones_like(at), critical / (critical + at)])
    return np.asarray((slope * count) @ slope.T)


def variance(fit: Fit, batch_sizes: Sequence[float] = (), seeds: Sequence[float] = ()) -> float:
    """Variance of ``ln B_crit``, in units of the variance of one seed; arguments as of :func:`information`."""
    return float(np.linalg.inv(information(fit, batch_sizes, seeds))[1, 1])


def width_factor(fit: Fit, batch_sizes: Sequence[float], seeds: Sequence[int], confidence: float) -> float | None:
    """Expected width of the interval of ``ln B_crit`` with these seeds, relative to now: the standard deviation, times
    Student's t at the degrees of freedom. ``None`` where there is no interval yet, or one side of the curve is not
    seen."""
    if not two_sided(fit) or len(fit.batch_sizes) < 3:
        return None
    freedom = len(fit.batch_sizes) - 2 + fit.seed_freedom
    # a new batch size brings a residual and its seeds but one, a further seed at an old one itself
    narrower = widening(freedom + sum(seeds), confidence) / widening(freedom, confidence)
    return narrower * math.sqrt(variance(fit, batch_sizes, seeds) / variance(fit))


def best_per_example(fit: Fit, candidates: Sequence[int], seeds: int) -> tuple[int, ...]:
    """Batch sizes out of ``candidates``, with ``seeds`` each, added where the variance of ``ln B_crit`` falls most per
    example, until :data:`GOAL` or :data:`MOST`; increasing."""
    chosen: list[int] = []
    left = list(dict.fromkeys(candidates))
    while left and len(chosen) < MOST:
        now = variance(fit, chosen, [seeds] * len(chosen))
        if math.sqrt(now / variance(fit)) <= GOAL:
            break
        gain = {
            size: math.log(now / variance(fit, [*chosen, size], [seeds] * (len(chosen) + 1)))
            / (size * math.exp(log_steps(fit, size)))
            for size in left
        }
        best = max(left, key=lambda size: gain[size])
        chosen.append(best)
        left.remove(best)
    return tuple(sorted(chosen))
