"""``--auto``: add batch sizes until the critical batch size and its interval lie between those that were measured."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sweeps.launching.policies import POLICIES
from sweeps.launching.policies.critical_rounds import CriticalRounds
from sweeps.spec.spec import Sweep

if TYPE_CHECKING:
    from analysis.estimate.diagnosis import Verdict
    from analysis.estimate.result import Answer
    from analysis.estimate.suggest import Suggestion

FEWEST_STEPS = 10.0
"""If the largest batch size takes fewer steps than this to the target, no larger one is added, because warmup and
evaluations are then about as long as the run."""


@POLICIES.register("both_sides")
class BothSides(CriticalRounds):
    """Adds smaller and larger batch sizes, and nothing else."""

    flag = "--auto"

    def __init__(self) -> None:
        super().__init__(None)

    def curable(self) -> set[Verdict]:
        from analysis.estimate.diagnosis import Verdict

        return {Verdict.NOT_REACHED, Verdict.TOO_FEW_BATCH_SIZES, Verdict.BELOW, Verdict.ABOVE}

    def wanted(self, wish: Suggestion, answer: Answer, sweep: Sweep) -> Suggestion | None:
        """Keep only the proposed batch sizes below and above those that exist, with the seeds and learning rates of the
        sweep; return ``None`` if there are none, or if runs at the largest size are too short for a larger one."""
        first, last = answer.points[0].batch_size, answer.points[-1]
        fast = last.steps_to_target is not None and last.steps_to_target < FEWEST_STEPS
        sizes = tuple(size for size in wish.batch_sizes if size < first or (size > last.batch_size and not fast))
        why = f"batch sizes {', '.join(map(str, sizes))}: {answer.verdict}"
        return replace(wish, batch_sizes=sizes, seeds=sweep.seeds, lrs=sweep.lrs, reasons=(why,)) if sizes else None
