r"""The prior of a curve's exponent, and what the other curves of a sweep add to it.

Nobody knows that a curve is the hyperbola. Published and own tables put the exponent between 0.93 and 1.19 for most
optimizers and targets (2410.21676: 0.97 to 1.07; eight MLPerf tables: 0.96 to 1.19), and from 0.54 to 0.84 at easy
targets. So :math:`\ln a` is taken as normal around 0 with standard deviation :data:`SPREAD`: three to eight batch sizes
of ordinary noise then draw the exponent towards 1 by as much as they leave open. Where the curve itself speaks against
that, the belief gives way: its variance is at least the squared distance of the exponent of the free fit.

Curves of one sweep at one target share what they have in common (partial pooling): :math:`\ln a_i \sim N(\mu,
\omega^2)`, :math:`\mu \sim N(0,` :data:`SPREAD` :math:`^2)`, :math:`\omega` half Cauchy with scale :data:`UNLIKE`. For
each curve the others leave a mixture of normals over :math:`\omega`, weighed by how well it explains all of them
(Gelman et al., "Bayesian Data Analysis", section 5.4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from analysis.arrays import Array
from analysis.estimate.fitting.least_squares import Exponent

SPREAD = 0.15
"""Standard deviation of the log exponent between curves of unlike sweeps."""

UNLIKE = 0.05
"""Scale of the standard deviation of the log exponent between curves of one sweep at one target."""

_FARTHEST = 10.0
_OMEGAS = UNLIKE * np.tan(math.atan(_FARTHEST) * (np.arange(20) + 0.5) / 20)
"""Even in the half-Cauchy distribution, cut off at :data:`_FARTHEST` times its scale."""


@dataclass(frozen=True)
class Belief:
    """A mixture of normal distributions of the log exponent, ``K`` of them.

    Attributes:
        means, variances, shares: shape ``[K]``; the shares add up to 1.
    """

    means: Array
    variances: Array
    shares: Array

    def giving_way(self, free: Exponent | None) -> Belief:
        """As wide as the distance of the free exponent."""
        if free is None or not math.isfinite(free.variance):
            return self
        return replace(self, variances=np.maximum(self.variances, (free.log_mean - self.means) ** 2))

    @property
    def whole(self) -> Exponent:
        """Mean and variance of the mixture."""
        mean = float(self.shares @ self.means)
        return Exponent(mean, float(self.shares @ (self.variances + (self.means - mean) ** 2)))

    def draws(self, count: int, rng: np.random.Generator) -> Exponent:
        """One observation of the log exponent per resample, so that refits scatter as widely as the belief does."""
        part = rng.choice(len(self.shares), size=count, p=self.shares)
        noise = rng.standard_normal(count)
        return Exponent(self.means[part] + np.sqrt(self.variances[part]) * noise, self.variances[part])


ALONE = Belief(np.zeros(1), np.full(1, SPREAD**2), np.ones(1))
"""Of a curve with no others beside it."""


def pooled(curves: Sequence[Exponent | None]) -> list[Belief]:
    """What the other curves of one sweep at one target say of each, from the exponent that each gives alone, with the
    variance of its error; :data:`ALONE` where no other has one."""
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
    """Of all exponents, with their common mean integrated out."""
    precision = (1.0 / variances).sum() + SPREAD**-2
    mean = (values / variances).sum() / precision
    fit = ((values - mean) ** 2 / variances).sum() + (mean / SPREAD) ** 2
    return float(-0.5 * (np.log(variances).sum() + math.log(precision) + fit))
