"""Add trials until the critical batch size is known well enough, at batch sizes that are given or found."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.phrases import with_interval
from cbs.errors import ConfigError
from sweeps.launching.policies import POLICIES
from sweeps.launching.policies.base import SweepReport
from sweeps.launching.policies.rounds import Judgement, Rounds, WantedTrials, half_width, part_of
from sweeps.outlook.cost import Cost
from sweeps.search.limits import Limits
from sweeps.spec.axes import pooled
from sweeps.spec.spec import Sweep

if TYPE_CHECKING:
    from analysis.estimate.diagnosis import Verdict
    from analysis.estimate.result import Answer

USUAL = 0.2
"""Half-width that a sweep without batch sizes goes to."""

FIRST = 32
"""Batch size near which a sweep begins if the recipe expects none."""

APART = 4
"""Ratio of the first batch sizes."""



@POLICIES.register("precision")
class Precision(Rounds):
    """Adds the trials that narrow the intervals most per example, until each is as narrow as requested.

    A narrow interval is not trusted if the verdict calls for other trials: those run first.

    Args:
        goal: half-width of the interval of ``ln B_crit``, see :func:`sweeps.launching.policies.rounds.half_width`.
        finds: whether it chooses the batch sizes itself: two to begin with, and larger or smaller ones until the least
            product lies between them.
    """

    flag = "--precision"

    def __init__(self, goal: float = USUAL, finds: bool = False) -> None:
        super().__init__(goal)
        self.finds = finds

    def check(self, sweep: Sweep, *, limits: Limits, source: Path | None) -> None:
        assert self.goal is not None
        if not 0.0 < self.goal <= 1.0:
            raise ConfigError(
                f"--precision must be above 0 and at most 1, got {self.goal:g}; 0.15 is about 15 % to either side"
            )
        if sweep.budgets:
            raise ConfigError(f"{self.flag} is about the critical batch size, which needs a target: leave out --budget")
        if "batch_schedules" in sweep.axes():
            raise ConfigError(
                f"{self.flag} is about the critical batch size, which needs constant ones: leave out --schedule"
            )

    def first(self, sweep: Sweep) -> list[dict[str, Any]]:
        if not self.finds:
            return super().first(sweep)
        near = FIRST if sweep.expected is None else sweep.expected[1] / sweep.expected[0]
        smallest = 2 ** max(0, round(math.log2(near / APART)))
        return [part_of(sweep, sweep.choices, (smallest, APART * smallest), sweep.seeds[:1], sweep.lrs)]

    def preview(self, sweep: Sweep, folder: Path, cost: Cost | None, workers: int) -> SweepReport:
        report = super().preview(sweep, folder, cost, workers)
        return SweepReport(report.content | {"precision": self.goal}, report.lines)

    def judge(self, sweep: Sweep, folder: Path, stop: str | None) -> Judgement:
        from analysis.estimate.suggest import suggest

        assert self.goal is not None
        answers, as_run = self.look(sweep, folder), _as_run()
        judged = Judgement([_estimate(sweep, text, answer) for text, answer in answers.items()])
        for text, label in sweep.labels.items():
            answer = answers.get(text)
            if answer is None:
                judged.reasons[label] = "it has no trials that can be read"
                continue
            narrow, verdict = half_width(answer.interval) <= self.goal, answer.verdict
            if narrow and verdict in as_run:
                if verdict != "ok":
                    judged.reasons[label] = f"the interval is narrow enough, but: {verdict}"
                continue
            state = f"the interval is narrow enough, but: {verdict}" if narrow else f"verdict: {verdict}"
            wish = None if stop else suggest(answer, goal=self.goal)
            if wish is None:
                judged.reasons[label] = f"{stop or 'no further trial is known to help'} ({state})"
                continue
            why = "; ".join(wish.reasons)
            judged.wishes[text] = [
                WantedTrials(batch_sizes=sizes, seeds=seeds, lrs=wish.lrs, why=why) for sizes, seeds in wish.parts
            ]
        return judged

    def look(self, sweep: Sweep, folder: Path) -> dict[str, Answer]:
        """Return what ``cbs analyze`` answers for the optimizers of the sweep, without noise scales, which take
        longest.

        Raises:
            ResultsError: if there are no usable results.
        """
        from analysis.config import DEFAULT
        from analysis.estimate.estimates import answers
        from analysis.read.results import load

        by_choice = {str(answer.group.choice): answer for answer in answers(load(folder), DEFAULT, noise=False)}
        groups = {text: str(pooled(sweep, choice)) for text, choice in sweep.choices.items()}
        return {text: by_choice[group] for text, group in groups.items() if group in by_choice}

    def told(self, estimate: dict[str, Any]) -> str:
        known = with_interval(estimate["critical_batch_size"], tuple(estimate["interval"]))
        width = f", half-width {estimate['half_width']:.2f}" if estimate["half_width"] else ""
        return f"{estimate['optimizer']}: B_crit {known}{width}"


def _as_run() -> set[Verdict]:
    """Return the verdicts that no further trial of the same protocol is known to change."""
    from analysis.estimate.diagnosis import Verdict

    doubts = (Verdict.COARSE_STEPS, Verdict.NOISY_STEPS, Verdict.IN_WARMUP)
    return {Verdict.OK, *doubts, Verdict.FAR_SEED, Verdict.TOO_WIDE}


def _estimate(sweep: Sweep, text: str, answer: Answer) -> dict[str, Any]:
    width = half_width(answer.interval)
    return {
        "optimizer": sweep.labels[text],
        "critical_batch_size": answer.critical_batch_size,
        "interval": list(answer.interval),
        "half_width": width if math.isfinite(width) else None,
        "verdict": str(answer.verdict),
    }
