"""The batch size in the middle of the steps-examples trade-off, by the asymptotes of a fitted power law.

McCandlish et al. (2018), arXiv:1812.06162, equation 2.12: :math:`B_{crit} = E_{min}/S_{min}`. At this batch size a run
takes twice the fewest steps; on the hyperbola also twice the fewest examples, and their product is least there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.estimate.definitions import DEFINITIONS, EXTRAPOLATED, CurveSample, Definition
from analysis.quantities import Array


@DEFINITIONS.register("pareto")
@dataclass(frozen=True, kw_only=True)
class Pareto(Definition):
    """Batch size at which a run takes twice the fewest steps, in examples.

    Depends on: the target and the fitted law, whose fewest steps no sweep sees: for comparison with papers.
    """

    def __call__(self, samples: Sequence[CurveSample], at: int = 0) -> Array:
        return samples[at].draws.law.critical

    def remark(self, samples: Sequence[CurveSample], at: int, value: float) -> str:
        return EXTRAPOLATED
