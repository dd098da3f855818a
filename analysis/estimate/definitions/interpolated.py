"""Where a run takes twice the fewest steps, read off the measured steps without a curve of a given form.

The definition is that of McCandlish et al. (2018), arXiv:1812.06162, as of ``pareto``; what is assumed instead of a
power law is that log steps fall with the log of the batch size, ever more slowly. Noise breaks both rules, so the
measured steps are first moved to the nearest ones that obey them: least squares over sums of hinges (convex regression,
Hildreth 1954), straight in log-log between neighbouring batch sizes. The fewest steps are those at the largest batch
size, so where steps still fall beyond it, this is smaller than the value of the fitted curve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.arrays import Array
from analysis.estimate.definitions import DEFINITIONS, CurveSample, Definition, crossing

_FEWEST = 3
"""Batch sizes below which a straight line is all that can be drawn."""


@DEFINITIONS.register("interpolated")
@dataclass(frozen=True, kw_only=True)
class Interpolated(Definition):
    """Where the interpolated steps are twice those at the largest measured batch size, in examples.

    Infinity where the last doubling still saves more than ``tolerance``, as the fewest steps lie beyond; 0 where the
    smallest batch size takes less than twice the fewest; NaN below three batch sizes.

    Depends on: the target; the largest measured batch size; and ``tolerance``. No fit.

    Attributes:
        tolerance: share of the steps that a doubling of the largest batch size may still save.
    """

    tolerance: float = 0.2

    def __call__(self, samples: Sequence[CurveSample], at: int = 0) -> Array:
        logs, steps = np.log(samples[at].batch_sizes), samples[at].log_steps
        if len(logs) < _FEWEST:
            return np.full(len(steps), math.nan)
        heights, slopes = convex(logs, steps)
        # heights fall to 0, so the last batch size that takes twice the fewest or more has one behind it
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
    """The nearest falling, convex log steps over those at the largest batch size, shape ``[R, M]``, and how steeply
    they fall before it, per unit of the log batch size, shape ``[R]``; ``logs`` ``[M]`` increase."""
    from scipy.optimize import nnls  # takes a tenth of a second, which every command would wait for

    hinges = np.maximum(logs[1:][None, :] - logs[:, None], 0.0)
    # a level that may only be positive is no bound far enough below all steps
    level = log_steps.min(axis=1, keepdims=True) - np.ptp(log_steps, axis=1, keepdims=True) - 1.0
    columns = np.hstack([np.ones((len(logs), 1)), hinges])
    falls = np.array([nnls(columns, row)[0] for row in log_steps - level]).reshape(-1, len(logs))[:, 1:]
    return falls @ hinges.T, falls[:, -1]
