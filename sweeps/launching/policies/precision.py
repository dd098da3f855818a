"""``--precision``: add trials until the interval of the critical batch size is as narrow as requested."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cbs.errors import ConfigError
from sweeps.launching.policies import POLICIES
from sweeps.launching.policies.base import SweepReport
from sweeps.launching.policies.critical_rounds import CriticalRounds
from sweeps.outlook.cost import Cost
from sweeps.search.limits import Limits
from sweeps.spec.spec import Sweep

if TYPE_CHECKING:
    from analysis.estimate.diagnosis import Verdict


@POLICIES.register("precision")
class Precision(CriticalRounds):
    """Adds the trials that narrow the intervals most per example, until each is as narrow as requested.

    A narrow interval is not trusted if the verdict calls for other trials: those run first.

    Args:
        goal: half-width of the interval of ``ln B_crit``, see :func:`sweeps.launching.policies.rounds.half_width`.
    """

    flag = "--precision"

    def __init__(self, goal: float) -> None:
        super().__init__(goal)

    def check(self, sweep: Sweep, *, limits: Limits, source: Path | None) -> None:
        assert self.goal is not None
        if not 0.0 < self.goal <= 1.0:
            raise ConfigError(
                f"--precision must be above 0 and at most 1, got {self.goal:g}; 0.15 is about 15 % to either side"
            )
        super().check(sweep, limits=limits, source=source)

    def preview(self, sweep: Sweep, folder: Path, cost: Cost | None, workers: int) -> SweepReport:
        report = super().preview(sweep, folder, cost, workers)
        return SweepReport(report.content | {"precision": self.goal}, report.lines)

    def curable(self) -> set[Verdict]:
        from analysis.estimate.diagnosis import Verdict

        as_run = (Verdict.COARSE_STEPS, Verdict.NOISY_STEPS, Verdict.IN_WARMUP)
        return set(Verdict) - {Verdict.OK, *as_run, Verdict.OFF_THE_CURVE, Verdict.FAR_SEED, Verdict.TOO_WIDE}
