"""Batch size at which a run takes twice the fewest steps, read off the measured steps without a parametric curve.

The definition is that of McCandlish et al. (2018), arXiv:1812.06162, as for ``pareto``. Instead of a power law it
assumes only that log steps fall with the log of the batch size, and ever more slowly. Because noise violates this, the
measured steps are first moved to the nearest decreasing convex ones: least squares over sums of hinge functions (convex
regression, Hildreth 1954), linear in log-log between neighbouring batch sizes. The fewest steps are those at the
largest batch size, so if steps still fall beyond it, this value is smaller than that of the fitted curve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.arrays import Array
from analysis.estimate.definitions import DEFINITIONS, CurveSample, Definition, crossing

_FEWEST = 3
"""Below this number of batch sizes only a straight line could be drawn."""


@DEFINITIONS.register("interpolated")
@dataclass(frozen=True, kw_only=True)
class Interpolated(Definition):
    """Batch size in examples whose interpolated steps are twice those at the largest measured batch size.

    Infinity if the last doubling still saves more than ``tolerance``, because the fewest steps then lie beyond; 0 if
    the smallest batch size takes less than twice the fewest steps; NaN below three batch sizes.

    Depends on: the target; the largest measured batch size; and ``tolerance``. No fit.

    Attributes:
        tolerance: fraction of the steps that a doubling up to the largest batch size may still save.
    """

    tolerance: float = 0.2

    def __call__(self, samples: Sequence[CurveSample], at: int = 0) -> Array:
        logs, steps = np.log(samples[at].batch_sizes), samples[at].log_steps
        if len(logs) < _FEWEST:
            return np.full(len(steps), math.nan)
        heights, slopes = convex(logs, steps)
        # heights fall to 0, so the last batch size that takes at least twice the fewest steps has a larger one after it
        above = (heights >= math.log(2.0)).sum(axis=1)
        sizes = crossing(samples[at].batch_sizes, heights, np.maximum(above - 1, 0), above, tolerance=1.0)
        falling = -np.expm1(-slopes * math.log(2.0)) > self.tolerance
        return np.where(falling, np.inf, np.where(above == 0, 0.0, sizes))

    def remark(self, samples: Sequence[CurveSample], at: int = 0) -> str:
        value, sizes = self(samples, at)[0], samples[at].batch_sizes
        if value == np.inf:
            return f"steps still fall at the largest measured batch size, {sizes[-1]:g}: add larger ones"
        if value == 0:
            return (
                f"the smallest measured batch size, {sizes[0]:g}, takes less than twice the fewest steps: add smaller"
            )
        return ""


def convex(logs: Array, log_steps: Array) -> tuple[Array, Array]:
    """Return the nearest decreasing convex log steps relative to the largest batch size, shape ``[R, M]``, and their
    slope before the largest batch size per unit of log batch size, shape ``[R]``; ``logs`` ``[M]`` increase."""
    from scipy.optimize import nnls  # importing it takes a tenth of a second, which other commands need not wait for

    hinges = np.maximum(logs[1:][None, :] - logs[:, None], 0.0)
    # the level has to be positive for nnls; measured from far below all steps this is no constraint
    level = log_steps.min(axis=1, keepdims=True) - np.ptp(log_steps, axis=1, keepdims=True) - 1.0
    columns = np.hstack([np.ones((len(logs), 1)), hinges])
    falls = np.array([nnls(columns, row)[0] for row in log_steps - level]).reshape(-1, len(logs))[:, 1:]
    return falls @ hinges.T, falls[:, -1]
