r"""The prior of a curve's exponent, and what the other curves of a sweep contribute to it.

It is not known beforehand that a curve is the hyperbola. Published and own tables put the exponent between 0.93 and
1.19 for most optimizers and targets (2410.21676: 0.97 to 1.07; eight MLPerf tables: 0.96 to 1.19), and between 0.54 and
0.84 at easy targets. The prior of :math:`\ln a` is therefore normal around 0 with standard deviation :data:`SPREAD`:
with three to eight batch sizes of ordinary noise it pulls the exponent towards 1 as far as the data leave it open. If
the curve itself contradicts the prior, the prior is widened: its variance is at least the squared distance of the
exponent of the unconstrained fit.

Curves of one sweep at one target inform each other (partial pooling): :math:`\ln a_i \sim N(\mu, \omega^2)`, :math:`\mu
\sim N(0,` :data:`SPREAD` :math:`^2)`, :math:`\omega` half Cauchy with scale :data:`UNLIKE`. For each curve the others
give a mixture of normals over :math:`\omega`, weighted by how well each :math:`\omega` explains all curves (Gelman et
al., "Bayesian Data Analysis", section 5.4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from analysis.arrays import Array
from analysis.estimate.fitting.least_squares import Exponent

SPREAD = 0.15
"""Standard deviation of the log exponent between curves of different sweeps."""

UNLIKE = 0.05
"""Scale of the standard deviation of the log exponent between curves of one sweep at one target."""

_FARTHEST = 10.0
_OMEGAS = UNLIKE * np.tan(math.atan(_FARTHEST) * (np.arange(20) + 0.5) / 20)
"""Values at equal quantiles of the half-Cauchy distribution, cut off at :data:`_FARTHEST` times its scale."""


@dataclass(frozen=True)
class Belief:
    """Prior of the log exponent: a mixture of ``K`` normal distributions.

    Attributes:
        means, variances, shares: parameters of the components, shape ``[K]`` each; the shares sum to 1.
    """

    means: Array
    variances: Array
    shares: Array

    def giving_way(self, free: Exponent | None) -> Belief:
        """Return the prior widened to the distance of the exponent from the unconstrained fit."""
        if free is None or not math.isfinite(free.variance):
            return self
        return replace(self, variances=np.maximum(self.variances, (free.log_mean - self.means) ** 2))

    @property
    def whole(self) -> Exponent:
        """Mean and variance of the mixture."""
        mean = float(self.shares @ self.means)
        return Exponent(mean, float(self.shares @ (self.variances + (self.means - mean) ** 2)))

    def draws(self, count: int, rng: np.random.Generator) -> Exponent:
        """Draw one log exponent per resample, so that refits scatter as widely as the prior."""
        part = rng.choice(len(self.shares), size=count, p=self.shares)
        noise = rng.standard_normal(count)
        return Exponent(self.means[part] + np.sqrt(self.variances[part]) * noise, self.variances[part])


ALONE = Belief(np.zeros(1), np.full(1, SPREAD**2), np.ones(1))
"""Prior of a curve that has no others beside it."""


def pooled(curves: Sequence[Exponent | None]) -> list[Belief]:
    """Return the prior of each curve from the other curves of one sweep at one target.

    The input is the exponent that each curve gives alone, with its variance; the result is :data:`ALONE` if no other
    curve has one.
    """
    known = [index for index, free in enumerate(curves) if free is not None and math.isfinite(free.variance)]
    values = np.array([curves[index].log_mean for index in known])  # type: ignore[union-attr]
    errors = np.array([curves[index].variance for index in known])  # type: ignore[union-attr]
    others = [[place for place, owner in enumerate(known) if owner != index] for index in range(len(curves))]
    return [_belief(values, errors, np.array(each)) if each else ALONE for each in others]


def _belief(values: Array, errors: Array, others: np.ndarray) -> Belief:
    likelihood = np.array([_log_likelihood(values, errors + omega**2) for omega in _OMEGAS])
    shares = np.exp(likelihood - likelihood.max())
    weights = 1.0 / (errors[others] + _OMEGAS[:, None] ** 2)
    precision = weights.sum(axis=1) + SPREAD**-2
    means = weights @ values[others] / precision
    return Belief(means, 1.0 / precision + _OMEGAS**2, shares / shares.sum())


def _log_likelihood(values: Array, variances: Array) -> float:
    """Return the log likelihood of all exponents, with their common mean integrated out."""
    precision = (1.0 / variances).sum() + SPREAD**-2
    mean = (values / variances).sum() / precision
    fit = ((values - mean) ** 2 / variances).sum() + (mean / SPREAD) ** 2
    return float(-0.5 * (np.log(variances).sum() + math.log(precision) + fit))
