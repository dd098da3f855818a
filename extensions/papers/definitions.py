r"""Definitions that single papers read off the measured batch sizes, without a fit: the ends of the bend of a curve,
and where the fewest examples reach the target.

Shallue et al. (2019), "Measuring the Effects of Data Parallelism on Neural Network Training": steps to target against
batch size start on a line of perfect scaling, ``B S(B)`` constant, anchored at the smallest measured batch size, and
beyond some batch size they no longer fall (maximal data parallelism). The paper reads both off the plot and gives no
numerical criterion; here a tolerance defines each.

Sato, Naganuma and Iiduka (2025): the batch size that minimises the stochastic first-order oracle complexity ``B S(B)``,
the number of gradients of single examples. Their theory has an interior minimum because its bound on the steps has a
pole at a smallest batch size. The hyperbola ``S = a + b/B`` has none: there ``B S = a B + b`` grows with the batch
size, and the minimum over measured batch sizes is at the smallest. An interior minimum in measured steps therefore says
that small batches do worse than the hyperbola, or that the steps are noisy.

Essential AI (2025), "Practical Efficiency of Muon for Pretraining", equation 6:
:math:`B_{tok} = \max \arg\min_B T(B)` with the tokens to target :math:`T(B) = B S(B)`. Ideally tokens are flat up to a
knee and grow beyond, and this is the knee; the paper itself calls it brittle under noise and blind past the knee.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.estimate.definitions import DEFINITIONS, CurveSample, Definition
from analysis.quantities import Array

ROUNDING = 1e-9  # Values whose logarithms differ by less than this count as equal; rounding errors are about 1e-14


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
        return np.where(after > last, _crossing(sizes, excess, last, after, self.tolerance), np.inf)

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
        start = _crossing(sizes, excess, first, np.maximum(first - 1, 0), self.tolerance)
        return np.where(first == 0, 0.0, np.where(first == len(sizes) - 1, np.inf, start))

    def remark(self, samples: Sequence[CurveSample], at: int, value: float) -> str:
        sizes = samples[at].batch_sizes
        if value == math.inf:
            return f"the steps still fall at the largest measured batch size, {sizes[-1]:g}: add larger ones"
        if value == 0:
            return f"the steps no longer fall at the smallest measured batch size, {sizes[0]:g}: add smaller ones"
        return ""


@DEFINITIONS.register("sfo")
@dataclass(frozen=True, kw_only=True)
class Sfo(Definition):
    """The measured batch size with the fewest examples to the target, in examples; the smallest one of ties.

    Depends on: the target and which batch sizes were measured; no fit. The examples differ little where scaling is
    nearly perfect, so noise decides between neighbours.

    Source: arXiv:2507.01598.
    """

    on_grid = True

    def __call__(self, samples: Sequence[CurveSample], at: int = 0) -> Array:
        examples = samples[at].log_examples
        fewest = examples <= examples.min(axis=1, keepdims=True) + ROUNDING
        return np.asarray(samples[at].batch_sizes[fewest.argmax(axis=1)])

    def remark(self, samples: Sequence[CurveSample], at: int, value: float) -> str:
        sizes = samples[at].batch_sizes
        if value == sizes[0]:
            return "at the smallest measured batch size, where every curve S = a + b/B has it: no interior optimum"
        if value == sizes[-1]:
            return "at the largest measured batch size: it may lie beyond"
        return ""


@DEFINITIONS.register("token_optimal")
@dataclass(frozen=True, kw_only=True)
class TokenOptimal(Definition):
    """The largest measured batch size whose examples to the target are the fewest, in examples.

    Depends on: the target and which batch sizes were measured; no fit. With ``tolerance`` 0 only exact ties count, so
    on measured steps it equals ``sfo``, and a change of 1 % in one mean may move it by several grid points. A tolerance
    above the noise of the steps makes it more stable, but is part of the answer.

    Source: arXiv:2505.02222, equation 6.

    Attributes:
        tolerance: relative excess over the fewest examples that still counts as the fewest.
    """

    on_grid = True

    tolerance: float = 0.0

    def __call__(self, samples: Sequence[CurveSample], at: int = 0) -> Array:
        examples, limit = samples[at].log_examples, math.log1p(self.tolerance) + ROUNDING
        fewest = examples <= examples.min(axis=1, keepdims=True) + limit
        return np.asarray(samples[at].batch_sizes[fewest.shape[1] - 1 - fewest[:, ::-1].argmax(axis=1)])

    def remark(self, samples: Sequence[CurveSample], at: int, value: float) -> str:
        sizes = samples[at].batch_sizes
        remarks = [] if self.tolerance else ["brittle: noise decides which batch size has the fewest examples"]
        if value in sizes[[0, -1]]:
            remarks.append(f"at the {'smallest' if value == sizes[0] else 'largest'} measured batch size")
        return "; ".join(remarks)


def _crossing(sizes: Array, excess: Array, start: np.ndarray, end: np.ndarray, tolerance: float) -> Array:
    """Return the batch size at which ``excess`` ``[R, M]``, interpolated linearly in log batch size between the indices
    ``start`` and ``end`` ``[R]``, equals ``ln(1 + tolerance)``; the batch size at ``start`` where both are the same."""
    row, logs = np.arange(len(excess)), np.log(sizes)
    rise = np.where(start == end, np.inf, excess[row, end] - excess[row, start])
    share = (math.log1p(tolerance) - excess[row, start]) / rise
    return np.asarray(np.exp(logs[start] + share * (logs[end] - logs[start])))
