r"""The batch size in the middle of the steps-examples trade-off, by the asymptotes of a fitted power law; and a
power law of the loss through several such.

McCandlish et al. (2018), arXiv:1812.06162, equation 2.12: :math:`B_{crit} = E_{min}/S_{min}`. At this batch size a run
takes twice the fewest steps; on the hyperbola also twice the fewest examples, and their product is least there.

Kaplan et al. (2020), "Scaling Laws for Neural Language Models", arXiv:2001.08361, equation 1.4:

.. math:: B_{crit}(L) = B_* / L^{1/\alpha_B}

with :math:`B_*` about 2e8 tokens and :math:`\alpha_B` about 0.21 in the paper. The law is fitted to the ``pareto``
critical batch sizes of one optimizer at several targets L of the same runs; ``cbs scale --against loss`` prints its
parameters.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.estimate.definitions import DEFINITIONS, EXTRAPOLATED, CurveSample, Definition
from analysis.quantities import Array


@DEFINITIONS.register("pareto")
@dataclass(frozen=True, kw_only=True)
class Pareto(Definition):
    """Batch size at which a run takes twice the fewest steps, in examples.

    Depends on: the target and the fitted law, whose fewest steps no sweep sees: for comparison with papers.

    Source: arXiv:1812.06162, equation 2.12.
    """

    def __call__(self, samples: Sequence[CurveSample], at: int = 0) -> Array:
        return samples[at].draws.law.critical

    def remark(self, samples: Sequence[CurveSample], at: int, value: float) -> str:
        return EXTRAPOLATED


_CURVE = 3  # Smallest number of batch sizes of a curve that has resamples

# Slopes of `ln B_crit` against `ln L` up to this size count as zero: fitted values are accurate to about 1e-8
_FLAT = 1e-6

_TARGETS = 2  # A line needs two


@DEFINITIONS.register("kaplan")
@dataclass(frozen=True, kw_only=True)
class Kaplan(Definition):
    """Batch size by a power law of B_crit in the loss at the target, in examples, fitted to several targets: least
    squares of ``ln B_crit`` on ``ln L``.

    A target is used if it is above 0 and was reached at three or more batch sizes. NaN with fewer than two targets.

    Depends on: which targets were analysed; the fitted curve at each. The loss is used as it is: the irreducible part
    is not subtracted, so ``alpha`` holds for this range of losses and this unit.

    Source: arXiv:2001.08361, equation 1.4.
    """

    def __call__(self, samples: Sequence[CurveSample], at: int = 0) -> Array:
        used, here = self._used(samples), samples[at]
        if all(sample is not here for sample in used) or len(used) < _TARGETS:
            return np.full(here.draws.count, np.nan)
        losses, critical, weights = self._points(used)
        assert here.target is not None
        share = weights * (math.log(here.target) - losses.mean())
        return np.asarray(np.exp((1.0 / len(losses) + share) @ critical))

    def remark(self, samples: Sequence[CurveSample], at: int, value: float) -> str:
        used, target = self._used(samples), samples[at].target
        if target is None:
            return "needs the value of the target: several targets of one optimizer"
        if target <= 0:
            return f"not defined: the law needs a loss above 0, the target is {target:g}"
        if len(samples[at].batch_sizes) < _CURVE:
            return "not defined: this target was reached at fewer than 3 batch sizes"
        if len(used) < _TARGETS:
            return "not defined: no other target was reached at 3 batch sizes or more; analyze several"
        remarks = [f"{EXTRAPOLATED}, over {len(used)} targets; the irreducible loss is not subtracted"]
        _, critical, weights = self._points(used)
        if np.median(weights @ critical) >= -_FLAT:
            remarks.append("the critical batch size does not grow as the loss falls")
        return "; ".join(remarks)

    def _used(self, samples: Sequence[CurveSample]) -> list[CurveSample]:
        return [s for s in samples if s.target is not None and s.target > 0 and len(s.batch_sizes) >= _CURVE]

    def _points(self, used: Sequence[CurveSample]) -> tuple[Array, Array, Array]:
        """Return ``ln L`` of shape ``[T]``, ``ln B_crit`` of shape ``[T, R]``, and the weights of the slope,
        ``[T]``."""
        losses = np.array([math.log(sample.target or math.nan) for sample in used])
        critical = [np.log(sample.draws.law.critical) for sample in used]
        centred = losses - losses.mean()
        return losses, np.array(critical), centred / (centred**2).sum()
