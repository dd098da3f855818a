"""The smallest batch size from which a larger one saves no more steps.

Shallue et al. (2019), "Measuring the Effects of Data Parallelism on Neural Network Training", arXiv:1811.03600: beyond
some batch size the steps to target no longer fall (maximal data parallelism). The paper reads it off the plot and gives
no numerical criterion; here a tolerance defines it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.estimate.definitions import DEFINITIONS, ROUNDING, CurveSample, Definition, crossing
from analysis.quantities import Array


@DEFINITIONS.register("saturation")
@dataclass(frozen=True, kw_only=True)
class Saturation(Definition):
    """Smallest batch size whose steps are within ``tolerance`` of the fewest measured ones, in examples.

    Between the last measured batch size above the tolerance and the next one the steps are interpolated linearly in
    log-log. Infinity if only the largest is within it, because steps still fall there; 0 if the smallest is.

    Depends on: the target; the largest measured batch size, because a hyperbola never stops falling; and ``tolerance``.
    No fit.

    Attributes:
        tolerance: relative excess over the fewest steps that still counts as saturated.
    """

    tolerance: float = 0.1

    def __call__(self, samples: Sequence[CurveSample], at: int = 0) -> Array:
        sizes, (excess, first) = samples[at].batch_sizes, self._first(samples[at])
        start = crossing(sizes, excess, first, np.maximum(first - 1, 0), self.tolerance)
        return np.where(first == 0, 0.0, np.where(first == len(sizes) - 1, np.inf, start))

    def _first(self, sample: CurveSample) -> tuple[Array, np.ndarray]:
        """Return the log excess over the fewest steps, and the index ``[R]`` of the smallest saturated batch size."""
        excess = np.asarray(sample.log_steps - sample.log_steps.min(axis=1, keepdims=True))
        return excess, np.asarray((excess <= math.log1p(self.tolerance) + ROUNDING).argmax(axis=1))

    def remark(self, samples: Sequence[CurveSample], at: int, value: float) -> str:
        sizes = samples[at].batch_sizes
        if value == math.inf:
            return f"the steps still fall at the largest measured batch size, {sizes[-1]:g}: add larger ones"
        if value == 0:
            return f"the steps no longer fall at the smallest measured batch size, {sizes[0]:g}: add smaller ones"
        return ""
