"""The batch size that reaches the target with the fewest examples.

Sato, Naganuma and Iiduka (2025), arXiv:2507.01598: the batch size that minimises the stochastic first-order oracle
complexity ``B S(B)``, the number of gradients of single examples. Their theory has an interior minimum because its
bound on the steps has a pole at a smallest batch size. The hyperbola ``S = a + b/B`` has none: there ``B S = a B + b``
grows with the batch size, and the minimum over measured batch sizes is at the smallest. An interior minimum in
measured steps therefore says that small batches do worse than the hyperbola, or that the steps are noisy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.estimate.definitions import DEFINITIONS, ROUNDING, CurveSample, Definition
from analysis.quantities import Array


@DEFINITIONS.register("sfo")
@dataclass(frozen=True, kw_only=True)
class Sfo(Definition):
    """The measured batch size with the fewest examples to the target, in examples; the smallest one of ties.

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
