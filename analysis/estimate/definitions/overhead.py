r"""The largest batch size that costs at most a given share more steps than linear scaling would.

Zhang et al. (2024), arXiv:2410.21676, definition 1: the largest B with :math:`S(B) \le (1 + p) S(B_{ref}) B_{ref}/B`,
p = 0.2 in the paper, with a reference batch size of 256 sequences in the authors' notebook. On the hyperbola
:math:`S = a + b/B` fitted in log steps this is

.. math:: B_p = (1 + p) B_{ref} + p b/a

and, for linear scaling from :math:`B \to 0`, :math:`B_p = p b/a`: a fixed share of the ``pareto`` one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.arrays import Array
from analysis.estimate.definitions import DEFINITIONS, Definition, Sample, checked


@DEFINITIONS.register("overhead")
@dataclass(frozen=True, kw_only=True)
class Overhead(Definition):
    """Largest batch size with at most ``overhead`` more steps than linear scaling, in examples.

    Depends on: the target; the fitted hyperbola; ``overhead``, a free choice; and ``reference_batch``, which is part of
    the value: moving it by d moves the answer by (1 + overhead) d.

    Attributes:
        overhead: share of extra steps; 0.2 is 20 %.
        reference_batch: batch size in examples that linear scaling starts from; ``None`` for B -> 0.
    """

    overhead: float = 0.2
    reference_batch: float | None = None

    def __post_init__(self) -> None:
        checked("overhead", "overhead", self.overhead)
        if self.reference_batch is not None:
            checked("overhead", "reference_batch", self.reference_batch)

    def __call__(self, samples: Sequence[Sample], at: int = 0) -> Array:
        start = 0.0 if self.reference_batch is None else (1.0 + self.overhead) * self.reference_batch
        with np.errstate(divide="ignore"):
            return np.asarray(start + self.overhead * (samples[at].min_examples / samples[at].min_steps))

    def remark(self, samples: Sequence[Sample], at: int = 0) -> str:
        low, high = samples[at].batch_sizes[[0, -1]]
        found = []
        if self.reference_batch is not None and not low <= self.reference_batch <= high:
            found.append(f"the reference batch size {self.reference_batch:g} was not measured ({low:g} to {high:g})")
        value = self(samples, at)[0]
        if 0 < value < low or high < value < np.inf:
            found.append(f"{'below' if value < low else 'above'} the measured batch sizes ({low:g} to {high:g})")
        return "; ".join(found)
