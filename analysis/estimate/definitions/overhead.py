r"""The largest batch size that costs at most a given share more steps than linear scaling would.

Zhang et al. (2024), arXiv:2410.21676, definition 1: the largest B with :math:`S(B) \le (1 + p) S(B_{ref}) B_{ref}/B`,
p = 0.2 in the paper, with a reference batch size of 256 sequences in the authors' notebook. On the hyperbola
:math:`S = a + b/B` fitted in log steps this is

.. math:: B_p = (1 + p) B_{ref} + p b/a

and, for linear scaling from :math:`B \to 0`, :math:`B_p = p b/a`. With another exponent steps do not scale linearly at
any small batch size. Without a reference the definition is therefore that of the hyperbola; with one it is solved on
the drawn curves.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.estimate.definitions import DEFINITIONS, EXTRAPOLATED, CurveSample, Definition
from analysis.estimate.draws import Draws
from analysis.estimate.prior import STEP
from analysis.quantities import Array


@DEFINITIONS.register("overhead")
@dataclass(frozen=True, kw_only=True)
class Overhead(Definition):
    """Largest batch size that takes at most a share ``overhead`` more steps than linear scaling, in examples.

    Depends on: the target; the fitted curve, or the hyperbola if there is no reference; ``overhead``, a free choice;
    and ``reference_batch``, which is part of the value: moving it by d moves the answer by (1 + overhead) d or more.

    Source: arXiv:2410.21676, definition 1.

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
