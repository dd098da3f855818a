r"""Examples against steps at one learning rate for all batch sizes, in three pieces (arXiv 2601.05034).

.. math::
    E(S) = \frac{B_{-1}}{S - S_{min}} + B_0, \quad C (S - S_{opt})^2 + E_{min}, \quad A_1 S + A_0

from few steps to many, that is from large batches to small ones. Where the pieces meet, value and slope agree, which
leaves six parameters: the places of the two joints, :math:`S_{min}`, :math:`S_{opt}`, :math:`E_{min}` and C. The batch
size of least data is :math:`E_{min} / S_{opt}`, the smallest that reaches the loss at all :math:`A_1`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from analysis.arrays import Array

LEAST = 7
"""Number of points that a fit of six parameters needs."""

_STARTS = (0.15, 0.4, 1.0)
"""Distances of the joints from the optimum, in ln steps, from which the fit starts."""


@dataclass(frozen=True)
class ThreePieces:
    """The fitted curve.

    Attributes:
        min_steps, best_steps: S_min and S_opt.
        joints: steps at which the pieces meet.
        min_examples: E_min.
        curvature: C.
    """

    min_steps: float
    best_steps: float
    joints: tuple[float, float]
    min_examples: float
    curvature: float

    @property
    def best_batch_size(self) -> float:
        return self.min_examples / self.best_steps

    @property
    def min_batch_size(self) -> float:
        """A_1, the slope of the last piece."""
        return 2 * self.curvature * (self.joints[1] - self.best_steps)

    def examples(self, steps: Array) -> Array:
        """Return E at every number of steps; all must be above S_min."""
        first, last = self.joints

        def middle(at: Array | float) -> Array | float:
            return self.curvature * (at - self.best_steps) ** 2 + self.min_examples

        slope = 2 * self.curvature * (self.best_steps - first)
        reach = first - self.min_steps
        many = middle(last) + self.min_batch_size * (steps - last)
        few = middle(first) + slope * reach * (reach / np.maximum(steps - self.min_steps, 1e-9 * reach) - 1)
        return np.where(steps < first, few, np.where(steps > last, many, middle(steps)))


def three_pieces(steps: Array, examples: Array) -> ThreePieces | None:
    """Fit the curve to points by least squares in ln E; ``None`` below :data:`LEAST` points."""
    if len(steps) < LEAST:
        return None
    best = steps[np.argmin(examples)]

    def curve(logs: Array) -> ThreePieces:
        below, first, last, place, least, bend = logs
        opt = math.exp(place)
        joint = opt * math.exp(-math.exp(first))
        low = min(joint * math.exp(-math.exp(below)), 0.999 * float(steps.min()))
        return ThreePieces(low, opt, (joint, opt * math.exp(math.exp(last))), math.exp(least), math.exp(bend))

    def misses(logs: Array) -> Array:
        return np.asarray(np.log(curve(logs).examples(steps) / examples))

    fits = []
    for width in _STARTS:
        bend = math.log(examples.min() / best**2)
        start = [0.0, math.log(width), math.log(width), math.log(best), math.log(examples.min()), bend]
        fits.append(least_squares(misses, start, bounds=(np.array(start) - 6, np.array(start) + 6)))
    return curve(min(fits, key=lambda fit: fit.cost).x)
