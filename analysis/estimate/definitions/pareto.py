"""The batch size in the middle of the steps-examples trade-off.

McCandlish et al. (2018), arXiv:1812.06162, equation 2.12: :math:`B_{crit} = E_{min}/S_{min}`. At this batch size a run
takes twice the fewest steps; on the hyperbola also twice the fewest examples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.arrays import Array
from analysis.estimate.definitions import DEFINITIONS, CurveSample, Definition


@DEFINITIONS.register("pareto")
@dataclass(frozen=True, kw_only=True)
class Pareto(Definition):
    """Batch size at which a run takes twice the fewest steps, in examples.

    Depends on: the target and the fitted curve, including its exponent; every measured batch size contributes.
    """

    def __call__(self, samples: Sequence[CurveSample], at: int = 0) -> Array:
        return samples[at].curve.critical
