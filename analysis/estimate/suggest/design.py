r"""Find the further trials that narrow the critical batch size most.

The curve is linearised at the fit. ``n`` seeds of variance :math:`\sigma^2` at every batch size give the information
:math:`M = \sum_m n_m g_m g_m^T / \sigma^2` on :math:`\ln B_{crit}` and the log exponent, with :math:`g` the derivatives
of :math:`\ln S` and :math:`\ln S_{min}` profiled out; the prior of the exponent adds the inverse of its variance. The
first entry of the inverse of M is the variance of :math:`\ln B_{crit}`. A design that makes it small is c-optimal
(Pukelsheim, "Optimal Design of Experiments", 2006, chapter 2); here trials are added one batch size at a time, where
the logarithm of this variance falls most per example.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from analysis.estimate.fitting import Fit
from analysis.estimate.fitting.form_fits import widening
from analysis.estimate.fitting.least_squares import information

GOAL = 0.8
"""Expected width of the interval, relative to now, at which no more trials are added."""

MOST = 4
"""Largest number of batch sizes that are added at a time."""


def two_sided(fit: Fit) -> bool:
    """Return whether the fit shows both sides of the curve, so that it depends on both parameters."""
    return bool(0 < fit.power.critical < math.inf)


def examples(fit: Fit, batch_size: float) -> float:
    """Return the examples to the target at one batch size by the fit."""
    return batch_size * math.exp(fit.power.log_steps(np.array([batch_size]))[0])


def variance(fit: Fit, batch_sizes: Sequence[float] = (), seeds: Sequence[float] = ()) -> float:
    """Return the variance of ``ln B_crit``, in units of the variance of one seed, with additional ``seeds`` at
    ``batch_sizes``; the curve must be seen on both sides, see :func:`two_sided`."""
    at = np.concatenate([fit.batch_sizes, np.asarray(batch_sizes, dtype=float)])
    count = np.concatenate([fit.weights, np.asarray(seeds, dtype=float)])
    known = information(at, fit.power, count)
    known[1, 1] += fit.deviation**2 / float(fit.exponent.variance)
    return float(np.linalg.inv(known)[0, 0])


def width_factor(fit: Fit, batch_sizes: Sequence[float], seeds: Sequence[int], confidence: float) -> float | None:
    """Return the expected width of the interval of ``ln B_crit`` with these seeds, relative to now.

    It is the standard deviation times Student's t at the degrees of freedom. ``None`` if there is no interval yet, or
    one side of the curve is not seen.
    """
    if not two_sided(fit) or len(fit.batch_sizes) < 3:
        return None
    freedom = fit.freedom
    # a new batch size adds one residual and its seeds minus one; a further seed at an existing one adds itself
    narrower = widening(freedom + sum(seeds), confidence) / widening(freedom, confidence)
    return narrower * math.sqrt(variance(fit, batch_sizes, seeds) / variance(fit))


def best_per_example(fit: Fit, candidates: Sequence[int], seeds: int) -> tuple[int, ...]:
    """Choose batch sizes out of ``candidates``, with ``seeds`` each, in increasing order.

    They are added one at a time, where the variance of ``ln B_crit`` falls most per example, until :data:`GOAL` or
    :data:`MOST` is reached.
    """
    chosen: list[int] = []
    left = list(dict.fromkeys(candidates))
    while left and len(chosen) < MOST:
        now = variance(fit, chosen, [seeds] * len(chosen))
        if math.sqrt(now / variance(fit)) <= GOAL:
            break
        gain = {
            size: math.log(now / variance(fit, [*chosen, size], [seeds] * (len(chosen) + 1))) / examples(fit, size)
            for size in left
        }
        best = max(left, key=lambda size: gain[size])
        chosen.append(best)
        left.remove(best)
    return tuple(sorted(chosen))
