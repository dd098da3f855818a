"""Add rounds of trials proposed by ``cbs analyze --suggest`` until the critical batch size is known."""

from __future__ import annotations

import math
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.phrases import with_interval
from cbs.errors import ConfigError
from sweeps.launching.policies.rounds import Judgement, Rounds, WantedTrials, half_width
from sweeps.search.limits import Limits
from sweeps.spec.axes import pooled
from sweeps.spec.spec import Sweep

if TYPE_CHECKING:
    from analysis.estimate.diagnosis import Verdict
    from analysis.estimate.result import Answer
    from analysis.estimate.suggest import Suggestion


class CriticalRounds(Rounds):
    """Base class of the policies that add trials until ``B_crit`` is known well enough."""

    def check(self, sweep: Sweep, *, limits: Limits, source: Path | None) -> None:
        if sweep.budgets:
            raise ConfigError(f"{self.flag} is about the critical batch size, which needs a target: leave out --budget")
        if "batch_schedules" in sweep.axes():
            raise ConfigError(
                f"{self.flag} is about the critical batch size, which needs constant ones: leave out --schedule"
            )

    @abstractmethod
    def curable(self) -> set[Verdict]:
        """Return the verdicts that call for trials however narrow the interval is; called once per analysis."""

    def wanted(self, wish: Suggestion, answer: Answer, sweep: Sweep) -> Suggestion | None:
        """Return the part of a proposal to add, or ``None`` for nothing; called for every optimizer that needs
        trials."""
        return wish

    def judge(self, sweep: Sweep, folder: Path, stop: str | None) -> Judgement:
        from analysis.estimate.diagnosis import Verdict
        from analysis.estimate.suggest import suggest

        curable, answers = self.curable(), look(sweep, folder)
        judged = Judgement([_estimate(sweep, text, answer) for text, answer in answers.items()])
        for text, label in sweep.labels.items():
            answer = answers.get(text)
            if answer is None:
                judged.reasons[label] = "it has no trials that can be read"
                continue
            narrow, verdict = self.goal is None or half_width(answer.interval) <= self.goal, answer.verdict
            if narrow and verdict not in curable:
                if verdict is not Verdict.OK and self.goal is not None:
                    judged.reasons[label] = f"the interval is narrow enough, but: {verdict}"
                continue
            state = f"the interval is narrow enough, but: {verdict}" if narrow and self.goal else f"verdict: {verdict}"
            wish = None if stop else suggest(answer)
            if wish is not None:
                wish = self.wanted(wish, answer, sweep)
            if wish is None:
                judged.reasons[label] = f"{stop or 'no further trial is known to help'} ({state})"
                continue
            judged.wishes[text] = WantedTrials(
                batch_sizes=wish.batch_sizes, seeds=wish.seeds, lrs=wish.lrs, why="; ".join(wish.reasons)
            )
        return judged

    def told(self, estimate: dict[str, Any]) -> str:
        known = with_interval(estimate["critical_batch_size"], tuple(estimate["interval"]))
        width = f", half-width {estimate['half_width']:.2f}" if estimate["half_width"] else ""
        return f"{estimate['optimizer']}: B_crit {known}{width}"


def look(sweep: Sweep, folder: Path) -> dict[str, Answer]:
    """Return what ``cbs analyze`` answers for the optimizers of the sweep, without noise scales, which take longest.

    Raises:
        ResultsError: if there are no usable results.
    """
    from analysis.config import DEFAULT
    from analysis.estimate.estimates import answers
    from analysis.read.results import load

    answers_by_choice = {str(answer.group.choice): answer for answer in answers(load(folder), DEFAULT, noise=False)}
    groups = {text: str(pooled(sweep, choice)) for text, choice in sweep.choices.items()}
    return {text: answers_by_choice[group] for text, group in groups.items() if group in answers_by_choice}


def _estimate(sweep: Sweep, text: str, answer: Answer) -> dict[str, Any]:
    width = half_width(answer.interval)
    return {
        "optimizer": sweep.labels[text],
        "critical_batch_size": answer.critical_batch_size,
        "interval": list(answer.interval),
        "half_width": width if math.isfinite(width) else None,
        "verdict": str(answer.verdict),
    }
