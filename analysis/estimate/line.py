r"""What is assumed of a curve of losses against the batch size, before its points are seen: no more than its unit.

.. math:: f(x) = c + b x + d(x), \qquad x = \ln B,

a straight line of any level and slope with a departure d. A loss may be flat and then rise steeply, and where it begins
to rise between two batch sizes is not known. The slope :math:`d'` is therefore rough, an Ornstein-Uhlenbeck process of
the length :data:`LENGTH`, and its size at x is a share of the rises that were measured near by. How large a share is
learned: each of :data:`SHARES` counts by its likelihood, and so does a bend at each of many places.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.arrays import Array
from analysis.estimate.prior import STEP, Slopes

SHARES = (0.03, 0.1, 0.3, 0.6, 1.0)
"""Standard deviations of the slope over the root mean square of the slopes near by, all alike in advance."""

LENGTH, NEAR = 2.0, 1.0
"""Length of the slope's covariance, and what is near by, in ln B."""

BENDS, BEND, APART = 0.4, 2.0, 0.1
"""Probability that the slope changes at one place, the standard deviation of that change over the slopes near by, and
the spacing of the places in ln B."""

BESIDE_A_BEND = 0.2
"""The share of the departure beside a bend: no loss is made of two straight lines."""

_ANY = 50.0


@dataclass(frozen=True, kw_only=True)
class Line:
    """The prior of a loss in units in which its noise is about .05, or anything from a twentieth to twenty times that.

    Attributes:
        noise: median of the prior of one run's standard deviation.
        noise_spread: standard deviation of its logarithm.
        alike: distance in ln B over which the errors of losses between learning rates are alike.
    """

    noise: float = 0.05
    noise_spread: float = 3.0
    alike: float = 3.0

    def slopes(self, edges: Array, log_sizes: Array, means: Array, covariance: Array) -> Slopes:
        """Return the prior, with the sizes of departures by ``means`` ``[M]``."""
        middles = edges + STEP / 2
        rises, between = np.diff(means) / np.diff(log_sizes), (log_sizes[1:] + log_sizes[:-1]) / 2
        width = max(NEAR, float(np.diff(log_sizes).max()))
        near = np.exp(-0.5 * ((middles[:, None] - between) / width) ** 2) + 1e-9
        sizes = np.sqrt(near @ rises**2 / near.sum(axis=1)) + 1e-6
        kernel = np.outer(sizes, sizes) * np.exp(-np.abs(middles[:, None] - middles) / LENGTH)
        places = np.arange(log_sizes[0] + APART / 2, log_sizes[-1], APART)
        bends = (middles > places[:, None]) * (BEND * np.interp(places, middles, sizes))[:, None]
        weights = np.repeat([(1 - BENDS) / len(SHARES), BENDS / len(places)], [len(SHARES), len(places)])
        return Slopes(
            edges=edges,
            base=np.zeros((len(weights), len(edges))),
            derivatives=np.full((len(weights), len(edges), 1), _ANY),
            kernel=kernel,
            root=np.asarray(np.linalg.cholesky(kernel + 1e-9 * np.diag(np.diag(kernel)))),
            sizes=np.append(SHARES, np.full(len(places), BESIDE_A_BEND)),
            jumps=np.concatenate([np.zeros((len(SHARES), len(edges))), bends]),
            log_weights=np.log(weights),
            places=np.append(np.full(len(SHARES), np.nan), places),
            at=np.full(1, np.nan),
            spread=np.zeros(1),
        )
