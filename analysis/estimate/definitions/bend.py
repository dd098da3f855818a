"""Both ends of the bend of a curve, read off the measured steps: where perfect scaling ends, and where nothing more is
saved.

Shallue et al. (2019), "Measuring the Effects of Data Parallelism on Neural Network Training", arXiv:1811.03600: steps
to target against batch size start on a line of perfect scaling, ``B S(B)`` constant, anchored at the smallest measured
batch size, and beyond some batch size they no longer fall (maximal data parallelism). The paper reads both off the plot
and gives no numerical criterion; here a tolerance defines each.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.estimate.definitions import DEFINITIONS, ROUNDING, CurveSample, Definition, crossing
from analysis.quantities import Array


@DEFINITIONS.register("perfect_scaling_end")
@dataclass(frozen=True, kw_only=True)
class PerfectScalingEnd(Definition):
    """Largest batch size that takes at most a share ``tolerance`` more steps than the line of perfect scaling, in
    examples.

    Between the last measured batch size on the line and the next one the excess is interpolated linearly in log-log.
    Infinity if the largest measured batch size is still on the line.

    Depends on: the target; the smallest measured batch size, whose noise moves the whole line; the measured batch
    sizes; and ``tolerance``. No fit.

    Source: arXiv:1811.03600, which gives no number for the tolerance.

    Attributes:
        tolerance: relative excess of the steps that still counts as on the line.
    """

    tolerance: float = 0.1

    def __call__(self, samples: Sequence[CurveSample], at: int = 0) -> Array:
        sizes, examples = samples[at].batch_sizes, samples[at].log_examples
        excess = examples - examples[:, :1]
        on = excess <= math.log1p(self.tolerance) + ROUNDING
        last = on.shape[1] - 1 - on[:, ::-1].argmax(axis=1)
        after = np.minimum(last + 1, len(sizes) - 1)
        return np.where(after > last, crossing(sizes, excess, last, after, self.tolerance), np.inf)

    def remark(self, samples: Sequence[CurveSample], at: int, value: float) -> str:
        sizes = samples[at].batch_sizes
        if value == math.inf:
            return f"no measured batch size leaves the line: beyond {sizes[-1]:g}; add larger ones"
        if value < sizes[1]:
            return f"batch size {sizes[1]:g}, the second smallest, has left the line already: add smaller ones"
        return ""


@DEFINITIONS.register("saturation")
@dataclass(frozen=True, kw_only=True)
class Saturation(Definition):
    """Smallest batch size that takes at most a share ``tolerance`` more than the fewest measured steps, in examples.

    Between the last measured batch size above the tolerance and the next one the steps are interpolated linearly in
    log-log. Infinity if only the largest is within it, because steps still fall there; 0 if the smallest is.

    Depends on: the target; the largest measured batch size, because a hyperbola never stops falling; and ``tolerance``.
    No fit.

    Source: arXiv:1811.03600, which gives no number for the tolerance.

    Attributes:
        tolerance: relative excess over the fewest steps that still counts as saturated.
    """

    tolerance: float = 0.1

    def __call__(self, samples: Sequence[CurveSample], at: int = 0) -> Array:
        sizes, steps = samples[at].batch_sizes, samples[at].log_steps
        excess = steps - steps.min(axis=1, keepdims=True)
        first = (excess <= math.log1p(self.tolerance) + ROUNDING).argmax(axis=1)
        start = crossing(sizes, excess, first, np.maximum(first - 1, 0), self.tolerance)
        return np.where(first == 0, 0.0, np.where(first == len(sizes) - 1, np.inf, start))

    def remark(self, samples: Sequence[CurveSample], at: int, value: float) -> str:
        sizes = samples[at].batch_sizes
        if value == math.inf:
            return f"the steps still fall at the largest measured batch size, {sizes[-1]:g}: add larger ones"
        if value == 0:
            return f"the steps no longer fall at the smallest measured batch size, {sizes[0]:g}: add smaller ones"
        return ""
