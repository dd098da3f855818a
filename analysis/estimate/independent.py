"""Compare the resamples of independent fits: shuffle them, and use Student's t at the combined degrees of freedom."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analysis.arrays import Array
from analysis.estimate.fitting import Fit
from analysis.estimate.fitting.form_fits import widening


def shuffled(values: Array, *, seed: int, turn: int = 1) -> Array:
    """Return the resamples of one optimizer, shape ``[R, ...]``, in another order, so that they are independent of
    others.

    All quantities of the optimizer get the same order. ``turn`` is its index among those compared; 0 keeps the order.
    """
    return values if turn == 0 else values[np.random.default_rng([seed, turn]).permutation(len(values))]


def narrowing(
    fits: Sequence[Fit | None], confidence: float, *, weights: Sequence[float] = (1.0, -1.0), level: float | None = None
) -> list[float]:
    """Return factors on the deviations of the resamples of independent fits for a ``weights`` sum of their logarithms.

    With the default weights this is the difference of two fits. Each fit is widened by Student's t at its own degrees
    of freedom n and at ``confidence``. A sum of terms with variances v has (sum v)^2 / sum (v^2/n) degrees of freedom
    (Welch, "The generalization of Student's problem", 1947), and is widened at ``level`` (default ``confidence``).
    """
    known = [fit for fit in fits if fit is not None and fit.freedom > 0]
    if len(known) < len(fits):
        return [1.0] * len(fits)
    pairs = zip(known, weights, strict=True)
    variances = [(weight * fit.deviation) ** 2 / max(1.0, float(fit.weights.sum())) for fit, weight in pairs]
    scaled = sum(variance**2 / fit.freedom for fit, variance in zip(known, variances, strict=True))
    if not scaled > 0:
        return [1.0] * len(fits)
    together = widening(sum(variances) ** 2 / scaled, level or confidence)
    return [together / widening(fit.freedom, confidence) for fit in known]
