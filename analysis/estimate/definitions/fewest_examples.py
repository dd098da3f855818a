r"""The measured batch sizes that reach the target with the fewest examples: the smallest, and the largest of them.

Sato, Naganuma and Iiduka (2025), arXiv:2507.01598: the batch size that minimises the stochastic first-order oracle
complexity ``B S(B)``, the number of gradients of single examples. Their theory has an interior minimum because its
bound on the steps has a pole at a smallest batch size. The hyperbola ``S = a + b/B`` has none: there ``B S = a B + b``
grows with the batch size, and the minimum over measured batch sizes is at the smallest. An interior minimum in
measured steps therefore says that small batches do worse than the hyperbola, or that the steps are noisy.

Essential AI (2025), "Practical Efficiency of Muon for Pretraining", arXiv:2505.02222, equation 6:
:math:`B_{tok} = \max \arg\min_B T(B)` with the tokens to target :math:`T(B) = B S(B)`. Ideally tokens are flat up to a
knee and grow beyond, and this is the knee; the paper itself calls it brittle under noise and blind past the knee.
"""

import math
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
