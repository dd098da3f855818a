r"""The largest batch size among those that reach the target with the fewest tokens.

Essential AI (2025), "Practical Efficiency of Muon for Pretraining", arXiv:2505.02222, equation 6:
:math:`B_{tok} = \max \arg\min_B T(B)` with the tokens to target :math:`T(B) = B S(B)`. Ideally tokens are flat up to a
knee and grow beyond, and this is the knee; the paper itself calls it brittle under noise and blind past the knee.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.estimate.definitions import DEFINITIONS, ROUNDING, CurveSample, Definition
from analysis.quantities import Array


@DEFINITIONS.register("token_optimal")
@dataclass(frozen=True, kw_only=True)
class TokenOptimal(Definition):
    """The largest measured batch size whose examples to the target are the fewest, in examples.

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
