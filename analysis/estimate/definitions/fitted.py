"""Definitions that ask the fitted curve, and what lies beyond the measured batch sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.estimate.definitions import DEFINITIONS, EXTRAPOLATED, CurveSample, Definition
from analysis.estimate.draws import Draws
from analysis.estimate.prior import STEP
from analysis.quantities import Array

_CURVE = 3
"""Smallest number of batch sizes of a curve that has resamples."""

_FLAT = 1e-6
"""Slopes of ``ln B_crit`` against ``ln L`` up to this size count as zero: fitted values are accurate to about 1e-8."""

_TARGETS = 2


@DEFINITIONS.register("overhead")
@dataclass(frozen=True, kw_only=True)
class Overhead(Definition):
    r"""Largest batch size with at most ``overhead`` more steps than linear scaling, in examples.

    Zhang et al. (2024), arXiv:2410.21676, definition 1: the largest B with :math:`S(B) \le (1 + p) S(B_{ref})
    B_{ref}/B`, p = 0.2 in the paper, with a reference batch size of 256 sequences in the authors' notebook. On the
    hyperbola :math:`S = a + b/B` fitted in log steps this is

    .. math:: B_p = (1 + p) B_{ref} + p b/a

    and, for linear scaling from :math:`B \to 0`, :math:`B_p = p b/a`. With another exponent steps do not scale linearly
    at any small batch size. Without a reference the definition is therefore that of the hyperbola; with one it is
    solved on the drawn curves.

    Depends on: the target; the fitted curve, or the hyperbola if there is no reference; ``overhead``, a free choice;
    and ``reference_batch``, which is part of the value: moving it by d moves the answer by (1 + overhead) d or more.

    Attributes:
        overhead: fraction of extra steps; 0.2 is 20 %.
        reference_batch: batch size in examples from which linear scaling starts; ``None`` for B -> 0.
        hyperbola: whether to use the hyperbola as the curve, as the paper does, even with a reference.
    """

    overhead: float = 0.2
    reference_batch: float | None = None
    hyperbola: bool = False

    def __call__(self, samples: Sequence[CurveSample], at: int = 0) -> Array:
        sample, start = samples[at], self.reference_batch
        if start is None or self.hyperbola:
            return np.asarray((1.0 + self.overhead) * (start or 0.0) + self.overhead * sample.hyperbola.critical)
        return _largest(sample.draws, start, math.log1p(self.overhead))

    def remark(self, samples: Sequence[CurveSample], at: int, value: float) -> str:
        low, high = samples[at].batch_sizes[[0, -1]]
        remarks = []
        if self.reference_batch is not None and not low <= self.reference_batch <= high:
            remarks.append(f"the reference batch size {self.reference_batch:g} was not measured ({low:g} to {high:g})")
        if self.reference_batch is None:
            remarks.append(f"{EXTRAPOLATED}; assumes exponent 1 unless reference_batch is given")
        if 0 < value < low or high < value < np.inf:
            remarks.append(f"{'below' if value < low else 'above'} the measured batch sizes ({low:g} to {high:g})")
        return "; ".join(remarks)


def _largest(draws: Draws, start: float, excess: float) -> Array:
    """Return where ``ln(B S(B))`` last exceeds its value at ``start`` by ``excess``, shape ``[R]``; infinity if that is
    beyond the batch sizes at which curves are drawn."""
    wanted = excess + math.log(start) + draws.drawn(np.array([start]))
    over = draws.log_sizes + draws.curves - wanted
    last = over.shape[1] - 1 - (over <= 0)[:, ::-1].argmax(axis=1)
    after, rows = np.minimum(last + 1, over.shape[1] - 1), np.arange(len(over))
    rise = over[rows, after] - over[rows, last]
    at = draws.log_sizes[last] - STEP * over[rows, last] / np.where(rise > 0, rise, np.inf)
    return np.where(after > last, np.exp(at), np.inf)


@DEFINITIONS.register("pareto")
@dataclass(frozen=True, kw_only=True)
class Pareto(Definition):
    """Batch size at which a run takes twice the fewest steps, in examples.

    McCandlish et al. (2018), arXiv:1812.06162, equation 2.12: E_min/S_min. On the hyperbola a run there also takes
    twice the fewest examples, and their product is least.

    Depends on: the target and the fitted law, whose fewest steps no sweep sees: for comparison with papers.
    """

    def __call__(self, samples: Sequence[CurveSample], at: int = 0) -> Array:
        return samples[at].draws.law.critical

    def remark(self, samples: Sequence[CurveSample], at: int, value: float) -> str:
        return EXTRAPOLATED


@DEFINITIONS.register("kaplan")
@dataclass(frozen=True, kw_only=True)
class Kaplan(Definition):
    r"""Value at the target in question of a law over targets: least squares of ``ln B_crit`` on ``ln L``; in examples.

    Kaplan et al. (2020), "Scaling Laws for Neural Language Models", arXiv:2001.08361, equation 1.4:

    .. math:: B_{crit}(L) = B_* / L^{1/\alpha_B}

    with :math:`B_*` about 2e8 tokens and :math:`\alpha_B` about 0.21 in the paper, fitted to the ``pareto`` critical
    batch sizes of one optimizer at several targets L of the same runs; ``cbs scale --against loss`` prints its
    parameters.

    A target is used if it is above 0 and was reached at three or more batch sizes. NaN with fewer than two targets.

    Depends on: which targets were analysed; the fitted curve at each. The loss is used as it is: the irreducible part
    is not subtracted, so ``alpha`` holds for this range of losses and this unit.
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
