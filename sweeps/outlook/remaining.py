"""How many trials, examples and seconds a sweep still takes: the search played through on what is expected of its
trials.

Steps follow what has finished, else the recipe's expectation, else the budget; the best learning rate what has been
found at the nearest batch size, else the optimizer's default; steps rise by ``exp(0.25 gap^2)`` beside it. A default
that is far off costs trials that nobody can foresee; they are those of the first batch size.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from cbs.config import TrialConfig
from cbs.record import TrialResult
from sweeps.cell import Cell, Study, told
from sweeps.outlook.cost import Cost, StepCost, prior_steps
from sweeps.search.forecast import End, Played, play
from sweeps.search.lattice import middle
from sweeps.search.lr_law import SLOPE
from sweeps.search.search import Search
from sweeps.spec import Sweep

CURVATURE, NOISE = 0.25, 0.05
OVERHEAD, START = 0.1, 6.0
"""Seconds between two trials of a worker, and until the first one starts, before either is seen."""

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

    def __call__(self, config: TrialConfig) -> End:
        size, optimizer = config.batch_size, told(config.optimizer, config.batch_schedule)
        known = self._known[optimizer]
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

    def add(self, result: TrialResult) -> None:
        """Learn from a trial that has finished in this run."""
        self.pace.add(result)
        if self._since is None:  # until the first trial ended, workers started
            self._since = time.monotonic()
            return
        self._seconds += result.timing.get("seconds", 0.0)
        self._finished += 1

    def left(self) -> tuple[float | None, int]:
        """Expected seconds until the sweep is done, ``None`` while nothing is known, and trials until then."""
        when, took = self._renewed
        now = time.monotonic()
        if self._left is None or self.search.done or now - when > max(1.0, PATIENCE * took):
            self._renew(now)
            self._renewed = (now, time.monotonic() - now)
        assert self._left is not None
        seconds, trials = self._left
        return (max(0.0, seconds - (now - self._renewed[0])) if self.pace.known else None), trials

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
