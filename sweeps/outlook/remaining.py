"""How many trials, examples and seconds a sweep still takes: the search played through on what is expected of its
trials.

Steps follow what has finished, else the recipe's expectation, else the budget; where trials have spent theirs and none
has reached the target, those to come spend it, too. The best learning rate what has been
found at the nearest batch size, else the optimizer's default; steps rise by ``exp(0.25 gap^2)`` beside it. A default
that is far off costs trials that nobody can foresee; they are those of the first batch size.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from cbs.trial.config import TrialConfig
from cbs.trial.record import TrialResult, TrialStatus
from sweeps.outlook.cost import Cost, StepCost, prior_steps
from sweeps.search.bracket import ALIKE
from sweeps.search.forecast import End, Played, play
from sweeps.search.lattice import middle
from sweeps.search.lr_law import SLOPE
from sweeps.search.search import Search, outcome
from sweeps.spec.cell import Cell, Study, told
from sweeps.spec.spec import ENDLESS, Sweep

CURVATURE, NOISE = 0.25, 0.05
OVERHEAD, START = 0.1, 6.0
"""Seconds between two trials of a worker, and until the first one starts, before either is seen."""

IN_VAIN = 3
"""Trials that a batch size is searched with first."""

PATIENCE = 20.0
"""An outlook is renewed when so many times the time that it takes have passed."""


def outlook(
    sweep: Sweep,
    finished: Iterable[TrialResult],
    pace: Pace,
    workers: int,
) -> tuple[Search, Played]:
    """What is left of a sweep, trials that run at the moment included.

    Args:
        sweep: the sweep, its target resolved.
        finished: final results.
        pace: of steps; where nothing is known of it, seconds mean nothing.
        workers: trials at a time.

    Returns:
        The search at its end, and what it took to get there.
    """
    search = Search(sweep, finished)
    played = play(
        search, _Ends(search), workers=max(workers, 1), seconds_per_step=pace.per_step(sweep), overhead=pace.overhead
    )
    return search, played


class _Ends:
    """How every trial is expected to end."""

    def __init__(self, search: Search) -> None:
        self._sweep = search.sweep
        self._known: dict[str, dict[int, tuple[float, float]]] = {text: {} for text in search.sweep.choices}
        for study in search.sweep.studies():
            if (best := search.best(study)) is not None:
                self._known[study.optimizer][study.batch_size] = best
        self._spent = _spent(search)

    def __call__(self, config: TrialConfig) -> End:
        size, optimizer = config.batch_size, told(config.optimizer, config.batch_schedule)
        known = self._known[optimizer]
        if (vain := self._out_of_reach(optimizer, size)) is not None:
            return self._spends(config, vain)
        steps = prior_steps(self._sweep, size)
        if known:
            near = min(known, key=lambda other: abs(math.log(other / size)))
            lr, there = known[near]
            steps *= there / prior_steps(self._sweep, near)
        else:
            near, lr = self._sweep.batch_sizes[(len(self._sweep.batch_sizes) - 1) // 2], 0.0
        lr = (lr or middle(self._sweep.lr_grid(optimizer))) * (size / near) ** SLOPE
        gap = math.log(config.lr / lr)
        draw = random.Random(f"{size} {config.lr} {config.seed}").gauss(0.0, NOISE)
        if self._sweep.expected is None and not known:
            draw = -abs(draw)  # at most the budget
        wanted = steps * math.exp(CURVATURE * gap**2 + draw)
        if wanted > config.max_steps:
            return End(config.max_steps, reached=False, distance=max(0.0, 1.0 - config.max_steps / wanted))
        return End(wanted)

    def _out_of_reach(self, optimizer: str, size: int) -> TrialResult | None:
        """The trial that came nearest to the target, at the nearest batch size where budgets were spent in vain;
        ``None`` where there is hope."""
        spent = self._spent.get(optimizer, {})
        if self._known[optimizer] and size not in spent:
            return None
        near = min(spent, key=lambda other: abs(math.log(other / size)), default=None)
        return None if near is None else spent[near]

    def _spends(self, config: TrialConfig, near: TrialResult) -> End:
        """The end of a trial that is as far from the target as the nearest one so far, and farther the more its
        learning rate differs."""
        by_itself = near.final_step < near.config.max_steps  # a program that knows its own end
        steps = min(config.max_steps, near.final_step) if by_itself else config.max_steps
        gap = math.log(config.lr / near.config.lr) - SLOPE * math.log(config.batch_size / near.config.batch_size)
        distance = outcome(near).distance
        return End(steps, reached=False, distance=(distance if math.isfinite(distance) else 1.0) + 0.01 * (1 + gap**2))


def _spent(search: Search) -> dict[str, dict[int, TrialResult]]:
    """By optimizer and batch size, where trials have spent their budget and none has reached the target, the one that
    came nearest to it. Of an optimizer that has reached it elsewhere :data:`IN_VAIN` of them tell."""
    studies = search.sweep.studies()
    hopeful = {study.optimizer for study in studies if search.best(study) is not None}
    found: dict[str, dict[int, TrialResult]] = {}
    for study in studies:
        cells = [Cell(study.optimizer, study.batch_size, seed) for seed in search.sweep.seeds]
        ends = itertools.chain.from_iterable(search.results[cell].values() for cell in cells)
        spent = [end for end in ends if end.status is TrialStatus.BUDGET_EXHAUSTED]
        if search.best(study) is None and len(spent) >= (IN_VAIN if study.optimizer in hopeful else 1):
            # as the search has it, see :meth:`sweeps.search.bracket.Table.leader`
            nearest = min(spent, key=lambda end: (round(outcome(end).distance, ALIKE), -end.config.lr))
            found.setdefault(study.optimizer, {})[study.batch_size] = nearest
    return found


@dataclass
class Pace:
    """Seconds of steps and between trials, from a measurement beforehand and from the trials of this run.

    Attributes:
        cost: measured beforehand, see :func:`sweeps.outlook.cost.measure_cost`; ``None`` where it is unknown.
        overhead: seconds between two trials of a worker.
    """

    cost: Cost | None
    overhead: float = OVERHEAD
    _seen: dict[Study, list[float]] = field(default_factory=dict)

    @property
    def known(self) -> bool:
        return self.cost is not None or bool(self._seen)

    def add(self, result: TrialResult) -> None:
        """Learn from a trial that has finished in this run."""
        if result.final_step and result.timing.get("seconds"):
            sums = self._seen.setdefault(Cell.of(result.config).study, [0.0, 0.0])
            sums[0], sums[1] = sums[0] + result.timing["seconds"], sums[1] + result.final_step

    def per_step(self, sweep: Sweep) -> Callable[[TrialConfig], float]:
        """Seconds of a step with its share of the evaluations, by trial."""
        cached: dict[Study, float] = {}

        def seconds(config: TrialConfig) -> float:
            study = Cell.of(config).study
            if study not in cached:
                cached[study] = self._of(sweep, study)
            return cached[study]

        return seconds

    def _of(self, sweep: Sweep, study: Study) -> float:
        near = min(
            self._seen,
            key=lambda other: (other.optimizer != study.optimizer, abs(math.log(other.batch_size / study.batch_size))),
            default=None,
        )
        prior = self._prior(sweep, study)
        if near is None:
            return prior
        seconds, steps = self._seen[near]
        return seconds / steps * prior / max(self._prior(sweep, near), 1e-12)

    def _prior(self, sweep: Sweep, study: Study) -> float:
        steps = prior_steps(sweep, study.batch_size)
        cost = self.cost.steps.get(study.optimizer) if self.cost else None
        cost = cost or StepCost(fixed=1.0, per_example=0.0, evaluation=0.0)
        return cost.seconds(study.batch_size, steps, sweep.evaluation) / steps


class Estimator:
    """Trials and time left of a running sweep, renewed now and then.

    Args:
        search: the sweep's state.
        cost: of steps; ``None`` where it is unknown.
        workers: trials at a time; 0 for as many as are running.
    """

    def __init__(self, search: Search, cost: Cost | None, workers: int) -> None:
        self.search, self.workers = search, workers
        self.pace = Pace(cost)
        self._since: float | None = None
        self._seconds, self._finished = 0.0, 0
        self._left: tuple[float, int] | None = None
        self._renewed = (-1.0, 0.0)
        self._basis = (False, False)

    def add(self, result: TrialResult) -> None:
        """Learn from a trial that has finished in this run."""
        self.pace.add(result)
        if self._since is None:  # until the first trial ended, workers started
            self._since = time.monotonic()
            return
        self._seconds += result.timing.get("seconds", 0.0)
        self._finished += 1

    @property
    def out_of_reach(self) -> bool:
        """Whether what is left goes by trials that have spent their budget without reaching the target somewhere."""
        return not self.search.done and bool(_spent(self.search))

    def left(self) -> tuple[float | None, int]:
        """Expected seconds until the sweep is done, ``None`` while nothing is known, and trials until then."""
        when, took = self._renewed
        now = time.monotonic()
        known = self.pace.known and (self.search.sweep.max_steps < ENDLESS or self._ended())
        basis, self._basis = self._basis, (known, self.out_of_reach)
        if self._left is None or self.search.done or basis != self._basis or now - when > max(1.0, PATIENCE * took):
            self._renew(now)
            self._renewed = (now, time.monotonic() - now)
        assert self._left is not None
        seconds, trials = self._left
        return (max(0.0, seconds - (now - self._renewed[0])) if known else None), trials

    def _ended(self) -> bool:
        """Whether a trial of every optimizer has ended by which others can be told, where no budget says it."""
        telling = (TrialStatus.REACHED, TrialStatus.BUDGET_EXHAUSTED)
        ended = {Cell.of(end.config).optimizer for end in self.search.trials() if end.status in telling}
        return self.search.done or ended == set(self.search.sweep.choices)

    def _renew(self, now: float) -> None:
        if self.search.done:
            self._left = (0.0, 0)
            return
        workers, running = self.workers or max(1, len(self.search.running)), len(self.search.running)
        if self._since is not None and self._finished >= 2 * workers:
            trained = self._seconds * (1 + running / 2 / self._finished)
            self.pace.overhead = max(0.0, ((now - self._since) * workers - trained) / self._finished)
        _, played = outlook(self.search.sweep, self.search.trials(), self.pace, workers)
        # trials that run are half done on average
        busy = played.seconds / max(1, len(played.results)) * running / 2
        self._left = (max(0.0, played.seconds - busy), len(played.results))
