"""Simulate a sweep without training: run the real search on trials whose outcomes are given beforehand.

Trials start, stop each other at the pruning bound of their cell, and end, on a simulated clock. The plan and the cost
shown before a sweep come from this simulation.
"""

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from cbs.trial.config import TrialConfig
from cbs.trial.record import Measurement, TrialResult, TrialStatus
from sweeps.search.search import Search
from sweeps.spec.axes import Cell


@dataclass(frozen=True)
class End:
    """How a trial would end if it were not stopped early.

    Attributes:
        steps: number of updates after which it ends.
        reached: whether it ends by reaching the target.
        distance: distance to the target at the end relative to the start; infinite if it diverged. Ignored if the
            target was reached.
    """

    steps: float
    reached: bool = True
    distance: float = 0.0


@dataclass
class Played:
    """Totals of a simulated sweep.

    Attributes:
        trials: number of trials by status.
        examples: examples that all trials took together.
        seconds: simulated time at which the last trial ended.
        results: results of all trials.
    """

    trials: Counter[TrialStatus] = field(default_factory=Counter)
    examples: float = 0.0
    seconds: float = 0.0
    results: list[TrialResult] = field(default_factory=list)


@dataclass
class _Running:
    config: TrialConfig
    end: End
    started: float
    per_step: float
    overhead: float
    stop: float
    """Steps after which it ends, given the pruning bound of its cell."""

    @property
    def until(self) -> float:
        return self.started + self.overhead + self.stop * self.per_step

    def taken(self, now: float) -> float:
        """Return the steps taken so far."""
        return max(0.0, (now - self.started - self.overhead) / self.per_step)


def play(
    search: Search,
    end_of: Callable[[TrialConfig], End],
    *,
    workers: int = 1,
    seconds_per_step: Callable[[TrialConfig], float] = lambda config: float(config.batch_size),
    overhead: float = 0.0,
    most: int | None = None,
) -> Played:
    """Run a search to its end on the simulated clock.

    Args:
        search: the search; it is modified.
        end_of: returns how a trial would end; called once for each trial.
        workers: number of trials that run at the same time.
        seconds_per_step: returns the seconds per step of a trial.
        overhead: seconds between two trials of a worker.
        most: stop after this many trials.
    """
    played, factor, order = Played(), search.sweep.prune_factor, itertools.count()
    running: dict[str, _Running] = {}
    ends: list[tuple[float, int, str]] = []
    now, search.workers = 0.0, max(workers, 1)

    def bounded(trial: _Running) -> None:
        best = search.best_steps(Cell.of(trial.config))
        if best is not None and factor is not None and trial.end.steps > factor * best:
            trial.stop = min(trial.stop, max(trial.taken(now), factor * best))
        heapq.heappush(ends, (trial.until, next(order), trial.config.trial_id))

    def following() -> TrialConfig | None:
        return search.next({trial_id: trial.taken(now) for trial_id, trial in running.items()})

    while True:
        while len(running) < max(workers, 1) and (config := following()) is not None:
            end = end_of(config)
            pace = seconds_per_step(config)
            running[config.trial_id] = _Running(config, end, now, pace, overhead, end.steps)
            bounded(running[config.trial_id])
        if not running or (most is not None and sum(played.trials.values()) >= most):
            return played
        now, _, trial_id = heapq.heappop(ends)
        trial = running.get(trial_id)
        if trial is None or trial.until != now:
            continue  # the trial was stopped earlier, or has already ended
        del running[trial_id]
        result = ended(trial.config, trial.end, trial.stop)
        played.trials[result.status] += 1
        played.examples += trial.stop * trial.config.batch_size
        played.seconds = now
        played.results.append(result)
        search.add(result)
        if result.steps_to_target is not None:
            for other in running.values():
                if Cell.of(other.config) == Cell.of(trial.config):
                    bounded(other)


def ended(config: TrialConfig, end: End, stop: float) -> TrialResult:
    """Return the result of a trial that ended, or was stopped, after ``stop`` steps."""
    target = config.target
    status, distance = TrialStatus.BUDGET_EXHAUSTED, end.distance
    if stop < end.steps:
        status, distance = TrialStatus.PRUNED, 1.0
    elif end.reached:
        status, distance = TrialStatus.REACHED, -1e-9  # just past the target
    elif math.isinf(end.distance):
        status = TrialStatus.DIVERGED
    last = math.ceil(stop)
    # any step before the last would do: its value is not finite, so that the crossing is placed at the last step
    before = [(math.ceil(last / 1.3), math.inf)] if status is TrialStatus.REACHED and last > 1 else []
    rows = [
        Measurement(
            step=step,
            examples=step * config.batch_size,
            value=target.value + target.sign * gap,
            train_loss=gap,
            lr=config.lr,
        )
        for step, gap in ((0, 1.0), *before, (last, distance))
    ]
    return TrialResult(
        config=config,
        status=status,
        steps_to_target=end.steps if status is TrialStatus.REACHED else None,
        evaluations=rows,
        steps={},
        workload=None,
    )
