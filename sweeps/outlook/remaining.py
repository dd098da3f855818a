"""Estimate how many trials, examples and seconds a sweep still takes, by simulating the search.

The expected steps of a trial follow the finished trials, or else the recipe's expectation, or else the budget. If
trials have spent their budget and none has reached the target, further trials are expected to spend it too. The best
learning rate is the one found at the nearest batch size, or else the optimizer's default; beside it, steps rise by
``exp(0.25 gap^2)``, with gap the difference in ln lr. If the default is far off, the search takes more trials than can
be foreseen, mainly at the first batch size.
"""

import functools
import math
import random
from collections.abc import Callable, Iterable

from cbs.trial.config import TrialConfig
from cbs.trial.lr_choice import SLOPE
from cbs.trial.record import TrialResult, TrialStatus
from sweeps.outlook.cost import Cost, StepCost, prior_steps
from sweeps.search.forecast import End, Played, play
from sweeps.search.objective import FinalMetric
from sweeps.search.search import Search
from sweeps.search.study import outcome
from sweeps.search.trial_table import ALIKE, middle
from sweeps.spec.axes import Cell, StudyKey, study_label
from sweeps.spec.spec import Sweep

# Of ln steps: the factor of the squared distance in ln lr, and the deviation over seeds, 3 to 8 % for AdamW
CURVATURE, NOISE = 0.25, 0.05
OVERHEAD, START = 0.1, 6.0  # Seconds between two trials of a worker, and until the first one starts

# Number of trials with which the search of a batch size begins
IN_VAIN = 3


def outlook(
    sweep: Sweep,
    finished: Iterable[TrialResult],
    cost: Cost | None,
    workers: int,
) -> tuple[Search, Played]:
    """Estimate the trials, examples and seconds that a sweep still needs.

    Args:
        sweep: the sweep, with its target resolved.
        finished: final results.
        cost: measured cost of steps; if it is unknown, the seconds are meaningless.
        workers: number of trials at a time.

    Returns:
        The search at its end, and the totals of the simulation.
    """
    search = Search(sweep, finished)
    pace = _pace(sweep, cost)
    return search, play(search, _Ends(search), workers=max(workers, 1), seconds_per_step=pace, overhead=OVERHEAD)


class _Ends:
    """Returns how a trial is expected to end."""

    def __init__(self, search: Search) -> None:
        self._sweep, self._objective = search.sweep, search.objective
        self._known: dict[str, dict[int, tuple[float, float]]] = {text: {} for text in search.sweep.choices}
        for key, study in search.studies.items():
            if study.best is not None:
                self._known[key.optimizer][key.batch_size] = study.best
        self._spent = _spent(search)

    def __call__(self, config: TrialConfig) -> End:
        size, optimizer = config.batch_size, study_label(config.optimizer, config.batch_schedule)
        known = self._known[optimizer]
        if (vain := self._out_of_reach(optimizer, size)) is not None:
            return self._spends(config, vain)
        steps, there = prior_steps(self._sweep, size), 1.0
        if known:
            near = min(known, key=lambda other: abs(math.log(other / size)))
            lr, there = known[near]
        else:
            near, lr = self._sweep.axes.batch_sizes[(len(self._sweep.axes.batch_sizes) - 1) // 2], 0.0
        lr = (lr or middle(self._sweep.lr_grid(optimizer))) * (size / near) ** SLOPE
        gap = math.log(config.lr / lr)
        draw = random.Random(f"{size} {config.lr} {config.seed}").gauss(0.0, NOISE)
        if isinstance(self._objective, FinalMetric):
            cost = there * math.exp(CURVATURE * gap**2 + draw)
            return End(config.max_steps, reached=False, distance=config.target.distance(self._objective.amount(cost)))
        if known:
            steps *= there / prior_steps(self._sweep, near)
        elif self._sweep.expected is None:
            draw = -abs(draw)  # the budget is the largest number of steps, so that noise only shortens a trial
        wanted = steps * math.exp(CURVATURE * gap**2 + draw)
        if wanted > config.max_steps:
            return End(config.max_steps, reached=False, distance=max(0.0, 1.0 - config.max_steps / wanted))
        return End(wanted)

    def _out_of_reach(self, optimizer: str, size: int) -> TrialResult | None:
        """Return the trial that came nearest to the target at the nearest batch size where budgets were spent without
        reaching it; ``None`` if the target is expected to be reached."""
        spent = self._spent.get(optimizer, {})
        if self._known[optimizer] and size not in spent:
            return None
        near = min(spent, key=lambda other: abs(math.log(other / size)), default=None)
        return None if near is None else spent[near]

    def _spends(self, config: TrialConfig, near: TrialResult) -> End:
        """Return an end as far from the target as that of the nearest trial so far, and farther the more the learning
        rate differs from that trial's."""
        # given up, or a program that decides itself when to end
        early = near.final_step < near.config.max_steps
        steps = min(config.max_steps, near.final_step) if early else config.max_steps
        gap = math.log(config.lr / near.config.lr) - SLOPE * math.log(config.batch_size / near.config.batch_size)
        distance = outcome(near, self._objective).distance
        # a hundredth of the way: enough to rank the learning rates, too little to pass for progress
        return End(steps, reached=False, distance=(distance if math.isfinite(distance) else 1.0) + 0.01 * (1 + gap**2))


def _spent(search: Search) -> dict[str, dict[int, TrialResult]]:
    """Return the trial that came nearest to the target for every optimizer and batch size at which budgets were spent
    and no trial reached the target. For an optimizer that has reached it elsewhere, this takes at least :data:`IN_VAIN`
    such trials."""
    hopeful = {key.optimizer for key, study in search.studies.items() if study.best is not None}
    results: dict[str, dict[int, TrialResult]] = {}
    for key, study in search.studies.items():
        spent = [end for end in study.results.values() if end.status is TrialStatus.BUDGET_EXHAUSTED]
        if study.best is None and len(spent) >= (IN_VAIN if key.optimizer in hopeful else 1):
            # the same choice as in :meth:`sweeps.search.trial_table.TrialTable.leader`
            nearest = min(
                spent, key=lambda end: (round(outcome(end, search.objective).distance, ALIKE), -end.config.lr)
            )
            results.setdefault(key.optimizer, {})[key.batch_size] = nearest
    return results


def _pace(sweep: Sweep, cost: Cost | None) -> Callable[[TrialConfig], float]:
    """Return a function giving the seconds of a trial's step, including its share of the evaluations; 1 s if
    unknown."""

    @functools.cache
    def of_study(study: StudyKey) -> float:
        known = cost.steps.get(study.optimizer) if cost else None
        step = known or StepCost(fixed=1.0, per_example=0.0, evaluation=0.0)
        steps = prior_steps(sweep, study.batch_size)
        return step.seconds(study.batch_size, steps, sweep.trial.evaluation) / steps

    return lambda config: of_study(Cell.of(config).study)
