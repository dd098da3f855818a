"""Add trials until the critical batch size is known well enough, at batch sizes that are given or found."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from analysis.formatting import with_interval
from cbs.errors import ConfigError
from cbs.trial.record import TrialResult
from cbs.trial.store import Store
from sweeps.launching.policies import POLICIES, SweepReport, Underway
from sweeps.launching.policies.rounds import Judgement, Rounds, WantedTrials, first_sizes, half_width
from sweeps.outlook.cost import Cost
from sweeps.search.search import Limits
from sweeps.spec.axes import Cell
from sweeps.spec.spec import Sweep

if TYPE_CHECKING:
    from analysis.estimate.diagnosis import Verdict
    from analysis.estimate.result import Answer

# Runs that a round may add at most, where workers ask for no more: this many, because one alone is hardly worth the
# analysis, or this part of the trials so far, because a few of many change little and rounds are counted.
FEWEST_RUNS, SHARE = 2, 16

# Price at which it gives up, in runs at the critical batch size; most sweeps take less than half of it
MOST_RUNS = 100.0


@POLICIES.register("precision")
class Precision(Rounds):
    """Adds the trials that narrow the intervals most per example, until each is as narrow as requested.

    A narrow interval is not trusted if the verdict calls for other trials: those run first.

    Args:
        goal: half-width of the interval of ``ln B_crit``, see :func:`sweeps.launching.policies.rounds.half_width`.
        runs: price at which it ends, for every optimizer: the examples of this many runs at its critical batch size;
            ``None`` for :data:`MOST_RUNS` if it finds the batch sizes, and for no end otherwise.
        finds: whether it chooses the batch sizes itself: two to begin with, and larger or smaller ones until the least
            product lies between them.
        more_seeds: whether it may use other seeds than those of the sweep.
    """

    asked_as = "--precision"
    excludes: ClassVar[Mapping[str, str]] = {
        "--budget": "it is about the critical batch size, which needs a target",
        "--schedule": "it is about the critical batch size, which needs constant ones",
    }

    def __init__(
        self,
        goal: float = Sweep.usual_precision,
        runs: float | None = None,
        finds: bool = False,
        more_seeds: bool = True,
    ) -> None:
        super().__init__(goal)
        self.runs = runs if runs is not None else MOST_RUNS if finds else math.inf
        self.finds, self.more_seeds = finds, more_seeds

    def asked(self) -> dict[str, Any]:
        return super().asked() | {"finds": self.finds}

    def check(self, sweep: Sweep, *, limits: Limits, source: Path | None) -> None:
        super().check(sweep, limits=limits, source=source)
        if not self.runs > 0:
            raise ConfigError(f"--max-runs must be above 0, got {self.runs:g}")

    def first(self, sweep: Sweep) -> list[dict[str, Any]]:
        return first_sizes(sweep, sweep.axes.seeds[:1]) if self.finds else super().first(sweep)

    def preview(
        self, sweep: Sweep, folder: Path, cost: Cost | None, workers: int, gpu_hour: float | None = None
    ) -> SweepReport:
        report = super().preview(sweep, folder, cost, workers, gpu_hour)
        return SweepReport(report.content | {"precision": self.goal}, report.lines)

    def judge(self, sweep: Sweep, folder: Path, stop: str | None) -> Judgement:
        from analysis.estimate.suggest import suggest

        assert self.goal is not None
        answers, as_run = self.look(sweep, folder), _as_run(not self.more_seeds and len(sweep.axes.seeds) == 1)
        narrow = {text: half_width(answer.interval) <= self.goal for text, answer in answers.items()}
        # a round keeps all workers busy and decides no more than that: what it shows says what is worth running next;
        # the trials of an optimizer do not depend on whether others are done
        least = math.ceil(self.workers / len(sweep.axes.labels))
        # those of earlier commands in the folder count, too: the answer is theirs as well
        stored = (result for result in Store(folder).results() if result.status.final)
        ran = {trial.trial_id: trial for trial in itertools.chain(stored, *(one.trials() for one in self.searches))}
        prices = {text: paid(answer, ran.values(), text) for text, answer in answers.items()}
        judged = Judgement([_estimate(sweep, text, answer, prices[text]) for text, answer in answers.items()])
        for text, label in sweep.axes.labels.items():
            answer = answers.get(text)
            if answer is None:
                judged.reasons[label] = "it has no trials that can be read"
                continue
            verdict = answer.verdict
            if narrow[text] and verdict in as_run:
                if verdict != "ok":
                    judged.reasons[label] = f"the interval is narrow enough, but: {verdict}"
                continue
            state = f"the interval is narrow enough, but: {verdict}" if narrow[text] else f"verdict: {verdict}"
            why, seeds = stop, None if self.more_seeds else sweep.axes.seeds
            most = max(FEWEST_RUNS, least, prices[text]["trials"] // SHARE)
            spent, opened = prices[text]["examples"] > self.runs * _one_run(answer), _may_close(answer)
            wish = None if why else suggest(answer, self.goal, seeds, most, least, outwards=spent and opened)
            # where the search believed other batch sizes and the analysis does not; a few trials, whatever the price
            edges = wish is not None and wish.lrs is None and bool(wish.edges)
            if why is None and spent and not (edges or (opened and wish)):
                why = f"it has seen the examples of {self.runs:g} runs at B_crit (--max-runs)"
            if wish is None or why is not None:
                judged.reasons[label] = f"{why or 'no further trial is known to help'} ({state})"
                continue
            parts = [(sizes, held, False) for sizes, held in wish.parts if not edges]
            for study in answer.studies:
                if study.batch_size in (wish.edges if edges else wish.brackets):
                    parts.append(((study.batch_size,), tuple(study.seeds.tolist()), True))
            judged.wishes[text] = [
                WantedTrials(batch_sizes=sizes, seeds=held, lrs=wish.lrs, bracket=bracket, why="; ".join(wish.reasons))
                for sizes, held, bracket in parts
            ]
        return judged

    def report(self, underway: Underway) -> SweepReport:
        report = super().report(underway)
        last = self.rounds[-1]["estimates"] if self.rounds else []
        *lines, following = report.lines
        for each in last:
            took = f"{each['trials']} trials, {each['examples']:,} examples"
            runs = f", as many as {each['runs']:.3g} runs at B_crit" if each["runs"] else ""
            lines.append(f"{self.told(each)}; {each['verdict']}; {took}{runs}")
        lines += [f"{label} ended here: {why}" for label, why in self.reasons.items()]
        return SweepReport(report.content | {"answers": last}, [*lines, following])

    def look(self, sweep: Sweep, folder: Path) -> dict[str, Answer]:
        """Return what ``cbs analyze`` answers for the optimizers of the sweep; without noise scales, which take
        longest, unless there is a single batch size and they say where to go on.

        Raises:
            ResultsError: if there are no usable results.
        """
        from analysis.config import DEFAULT
        from analysis.estimate.estimates import answers
        from analysis.read.results import load

        alone = any(len(search.sweep.axes.batch_sizes) == 1 for search in self.searches)
        by_choice = {str(answer.group.choice): answer for answer in answers(load(folder), DEFAULT, noise=alone)}
        groups = {text: str(sweep.axes.pooled(choice)) for text, choice in sweep.choices.items()}
        return {text: by_choice[group] for text, group in groups.items() if group in by_choice}

    def told(self, estimate: dict[str, Any]) -> str:
        known = with_interval(estimate["critical_batch_size"], tuple(estimate["interval"]))
        width = f", half-width {estimate['half_width']:.2f}" if estimate["half_width"] else ""
        return f"{estimate['optimizer']}: B_crit {known}{width}"


def paid(answer: Answer, trials: Iterable[TrialResult], optimizer: str) -> dict[str, Any]:
    """Return what those of the trials took that are an optimizer's: trials, examples, and these in runs at the critical
    batch size."""
    mine = [trial.final_examples for trial in trials if Cell.of(trial.config).optimizer == optimizer]
    examples, known = sum(mine), answer.draws is not None and _critical(answer) is not None
    return {"trials": len(mine), "examples": examples, "runs": examples / _one_run(answer) if known else None}


def _critical(answer: Answer) -> float | None:
    size = answer.critical_batch_size
    return size if size and math.isfinite(size) else None


def _one_run(answer: Answer) -> float:
    """Return the examples of a run at the critical batch size; at the measured one that is nearest to it if it lies
    beyond them, and infinite if there is no curve yet."""
    draws, (low, _) = answer.draws, answer.interval
    if draws is None:
        return math.inf
    size = _critical(answer) or float(draws.batch_sizes[0 if low is None else -1])
    return size * math.exp(float(draws.estimate(np.array([size]))[0]))


def _may_close(answer: Answer) -> bool:
    """Return whether an end of the interval is open that a further batch size may close. Far from the answer few runs
    are worth many at the critical batch size, and how many is not known."""
    from analysis.estimate.suggest.known import FEWEST_STEPS

    first, last, (low, high) = answer.points[0], answer.points[-1], answer.interval
    smaller = first.reached and first.batch_size > 1
    larger = last.steps_to_target is not None and last.steps_to_target >= FEWEST_STEPS
    return (low is None and smaller) or (high is None and larger)


def _as_run(single: bool) -> set[Verdict]:
    """Return the verdicts that no further trial of the same protocol is known to change; ``single`` if there is one
    seed and may be no other."""
    from analysis.estimate.diagnosis import Verdict

    doubts = (Verdict.COARSE_STEPS, Verdict.NOISY_STEPS, Verdict.IN_WARMUP)
    return {Verdict.OK, *doubts, Verdict.FAR_SEED, Verdict.TOO_WIDE, *([Verdict.TOO_FEW_SEEDS] if single else [])}


def _estimate(sweep: Sweep, text: str, answer: Answer, price: dict[str, Any]) -> dict[str, Any]:
    width = half_width(answer.interval)
    return {
        "optimizer": sweep.axes.labels[text],
        "critical_batch_size": answer.critical_batch_size,
        "interval": list(answer.interval),
        "half_width": width if math.isfinite(width) else None,
        "verdict": str(answer.verdict),
        **price,
    }
