"""What compares the resamples of independent fits: a shuffle, and Student's t at the degrees of freedom of both."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analysis.arrays import Array
from analysis.estimate.fitting import Fit
from analysis.estimate.fitting.form_fits import widening


def shuffled(values: Array, *, seed: int, turn: int = 1) -> Array:
    """The resamples of one optimizer, shape ``[R, ...]``, in another order, alike for all of its numbers: independent
    of the others'. ``turn`` is its place among those that are compared; 0 keeps the order."""
    return values if turn == 0 else values[np.random.default_rng([seed, turn]).permutation(len(values))]


def narrowing(
    fits: Sequence[Fit | None], confidence: float, *, weights: Sequence[float] = (1.0, -1.0), level: float | None = None
) -> list[float]:
    """Factors on the deviations of the resamples of independent fits where a sum of their logarithms with these
    ``weights`` is asked for: of two, how far they are apart.

    Each fit is widened by t at its own degrees of freedom n, at ``confidence``; a sum of terms with variances v has
    (sum v)^2 / sum (v^2/n) of them (Welch, "The generalization of Student's problem", 1947), and is widened at
    ``level``.
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
