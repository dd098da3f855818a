"""Definitions that are read off the measured steps, without a fit."""

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

    Shallue et al. (2019), "Measuring the Effects of Data Parallelism on Neural Network Training", arXiv:1811.03600:
    beyond some batch size the steps to target no longer fall (maximal data parallelism). The paper reads it off the
    plot and gives no numerical criterion; here a tolerance defines it.

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


@DEFINITIONS.register("perfect_scaling_end")
@dataclass(frozen=True, kw_only=True)
class PerfectScalingEnd(Definition):
    """Largest batch size with at most ``tolerance`` more steps than the line of perfect scaling, in examples.

    Shallue et al. (2019), arXiv:1811.03600: steps to target start on a line of perfect scaling, ``B S(B)`` constant,
    anchored at the smallest measured batch size. The paper reads the end of this line off the plot; here a tolerance
    defines it.

    Between the last measured batch size on the line and the next one the excess is interpolated linearly in log-log.
    Infinity if the largest measured batch size is still on the line.

    Depends on: the target; the smallest measured batch size, whose noise moves the whole line; the measured batch
    sizes; and ``tolerance``. No fit.

    Attributes:
        tolerance: relative excess of the steps that still counts as on the line.
    """

    tolerance: float = 0.1

    def __call__(self, samples: Sequence[CurveSample], at: int = 0) -> Array:
        sizes, (excess, last) = samples[at].batch_sizes, self._last(samples[at])
        after = np.minimum(last + 1, len(sizes) - 1)
        return np.where(after > last, crossing(sizes, excess, last, after, self.tolerance), np.inf)

    def _last(self, sample: CurveSample) -> tuple[Array, np.ndarray]:
        """Return the log excess over the line, and the index ``[R]`` of the largest batch size on it (0 at least)."""
        excess = sample.log_examples - sample.log_examples[:, :1]
        on = excess <= math.log1p(self.tolerance) + ROUNDING
        return excess, np.asarray(on.shape[1] - 1 - on[:, ::-1].argmax(axis=1))

    def remark(self, samples: Sequence[CurveSample], at: int, value: float) -> str:
        sizes = samples[at].batch_sizes
        if value == math.inf:
            return f"no measured batch size leaves the line: beyond {sizes[-1]:g}; add larger ones"
        if value < sizes[1]:
            return f"batch size {sizes[1]:g}, the second smallest, has left the line already: add smaller ones"
        return ""


@DEFINITIONS.register("sfo")
@dataclass(frozen=True, kw_only=True)
class Sfo(Definition):
    """The measured batch size with the fewest examples to the target, in examples; the smallest one of ties.

    Sato, Naganuma and Iiduka (2025), arXiv:2507.01598: the batch size that minimises the stochastic first-order oracle
    complexity ``B S(B)``, the number of gradients of single examples. Their theory has an interior minimum because its
    bound on the steps has a pole at a smallest batch size. The hyperbola ``S = a + b/B`` has none: an interior minimum
    in measured steps says that small batches do worse than the hyperbola, or that the steps are noisy.

    Depends on: the target and which batch sizes were measured; no fit. The examples differ little where scaling is
    nearly perfect, so noise decides between neighbours.
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
    r"""The largest measured batch size whose examples to the target are the fewest, in examples.

    Essential AI (2025), "Practical Efficiency of Muon for Pretraining", arXiv:2505.02222, equation 6:
    :math:`B_{tok} = \max \arg\min_B T(B)` with the tokens to target :math:`T(B) = B S(B)`. Ideally tokens are flat up
    to a knee and grow beyond, and this is the knee; the paper itself calls it brittle under noise.

    Depends on: the target and which batch sizes were measured; no fit. With ``tolerance`` 0 only exact ties count, so
    on measured steps it equals ``sfo``, and a change of 1 % in one mean may move it by several grid points. A tolerance
    above the noise of the steps makes it more stable, but is part of the answer.

    Attributes:
        tolerance: relative excess over the fewest examples that still counts as the fewest.
    """

    on_grid = True

    tolerance: float = 0.0

    def __call__(self, samples: Sequence[CurveSample], at: int = 0) -> Array:
        fewest = self._fewest(samples[at])
        return np.asarray(samples[at].batch_sizes[fewest.shape[1] - 1 - fewest[:, ::-1].argmax(axis=1)])

    def _fewest(self, sample: CurveSample) -> np.ndarray:
        examples = sample.log_examples
        limit = math.log1p(self.tolerance) + ROUNDING
        return np.asarray(examples <= examples.min(axis=1, keepdims=True) + limit)

    def remark(self, samples: Sequence[CurveSample], at: int, value: float) -> str:
        sizes = samples[at].batch_sizes
        remarks = [] if self.tolerance else ["brittle: noise decides which batch size has the fewest examples"]
        if value in sizes[[0, -1]]:
            remarks.append(f"at the {'smallest' if value == sizes[0] else 'largest'} measured batch size")
        return "; ".join(remarks)
