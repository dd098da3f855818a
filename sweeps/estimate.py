"""How long a sweep takes: before it starts from a few timed steps, while it runs from what it has seen."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field

import torch

from cbs.errors import CbsError, ConfigError, out_of_memory, reason
from cbs.record import TrialResult
from cbs.training import run_trial
from cbs.workloads import Workload
from sweeps.cell import Cell, Study
from sweeps.search import Search
from sweeps.spec import Sweep
from sweeps.workload import built

TIMED_STEPS = 3
LONG_STEP = 20.0
"""Seconds of a step at the largest batch size from which on it is extrapolated, not timed."""
TYPICAL_EXTENSION = 1.0
"""Learning rates by which a study that is not finished is expected to grow."""


@dataclass(frozen=True)
class StepCost:
    """Seconds of one optimizer update and of one evaluation, the update as ``fixed + per_example * batch_size``."""

    fixed: float
    per_example: float
    evaluation: float

    def seconds(self, batch_size: int, steps: float) -> float:
        """Seconds of a trial of ``steps`` updates, its evaluations included."""
        evaluations = 2.0 + math.log(max(steps, 1.0)) / math.log(1.08)
        return steps * (self.fixed + self.per_example * batch_size) + evaluations * self.evaluation


def measure_cost(sweep: Sweep) -> StepCost | None:
    """Time a few steps at the smallest and the largest batch size, with one thread, in this process.

    The largest is left out where a step there would take long or does not fit in memory; its cost is then taken as
    proportional to the batch size. ``None`` where even the smallest does not fit.

    Raises:
        ConfigError: if the target is reached before the first step, or the model fails in its first step, as it would
            in every trial.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    workload = built(sweep.workload)
    smallest, largest = sweep.batch_sizes[0], sweep.batch_sizes[-1]
    try:
        small, evaluation = _timed(sweep, workload, smallest)
        large = small * largest / smallest
        if large < LONG_STEP:
            large, _ = _timed(sweep, workload, largest)
    except CbsError:
        raise
    except Exception as error:
        if out_of_memory(error):
            return None
        what = f"{type(error).__name__}: {reason(error)}"
        raise ConfigError(f"workload {sweep.workload.name!r} fails in its first step: {what}") from error
    finally:
        torch.set_num_threads(threads)
    per_example = max(0.0, (large - small) / (largest - smallest)) if largest > smallest else 0.0
    return StepCost(fixed=max(0.0, small - per_example * smallest), per_example=per_example, evaluation=evaluation)


def _timed(sweep: Sweep, workload: Workload, batch_size: int) -> tuple[float, float]:
    """Seconds of a step and of an evaluation, after one of each to warm up."""
    optimizer = next(iter(sweep.choices))
    config = sweep.trial(Cell(optimizer, batch_size, 0), sweep.lr_grid(optimizer)[0])
    config = dataclasses.replace(config, batch_schedule=None)
    first = run_trial(dataclasses.replace(config, max_steps=1), workload=workload)
    if first.steps_to_target == 0.0:
        value = first.evaluations[0].value
        raise ConfigError(f"target {config.target} is reached before the first step ({value:.4g}); choose a harder one")
    timing = run_trial(dataclasses.replace(config, max_steps=TIMED_STEPS), workload=workload).timing
    return timing["training_seconds"] / TIMED_STEPS, timing["evaluation_seconds"] / (TIMED_STEPS + 1)


def prior_steps(sweep: Sweep, batch_size: int) -> float:
    """Steps a trial is expected to take before anything is known: the recipe's expectation, else the budget."""
    if sweep.expected is None:
        return float(sweep.budget(batch_size))
    min_steps, min_examples = sweep.expected
    return min(float(sweep.budget(batch_size)), min_steps + min_examples / batch_size)


@dataclass
class Estimator:
    """Time left of a running sweep.

    Args:
        search: the sweep's state.
        cost: cost of a step; only its shape over batch sizes matters once trials have finished. ``None`` where it is
            unknown; the shape is then that of the steps alone.
        workers: trials at a time; 0 for as many as are running.
    """

    search: Search
    cost: StepCost | None
    workers: int
    _seconds: dict[Study, list[float]] = field(default_factory=dict)

    def add(self, result: TrialResult) -> None:
        """Learn from a trial that has finished in this run."""
        study = Cell.of(result.config).study
        self._seconds.setdefault(study, []).append(result.timing.get("seconds", 0.0))

    def trial_seconds(self, study: Study) -> float:
        """Expected seconds of a trial: from its study's own, else scaled from the nearest batch size's, else prior."""
        near = min(
            self._seconds,
            key=lambda other: (other.optimizer != study.optimizer, abs(math.log(other.batch_size / study.batch_size))),
            default=None,
        )
        prior = self._prior(study)
        if near is None:
            return prior
        return sum(self._seconds[near]) / len(self._seconds[near]) * prior / max(self._prior(near), 1e-9)

    def seconds_left(self) -> float | None:
        """Expected seconds until the sweep is done; ``None`` while nothing is known."""
        if self.cost is None and not self._seconds:
            return None
        search, seeds = self.search, len(self.search.sweep.seeds)
        work = 0.0
        for study in search.sweep.studies():
            finished, planned = search.counts(study)
            missing = float(planned - finished)
            if missing and search.sweep.lrs is None:
                missing += TYPICAL_EXTENSION * seeds
            work += missing * self.trial_seconds(study)
        busy = sum(self.trial_seconds(cell.study) for cell, _ in search.running.values())
        return max(0.0, work - busy / 2) / (self.workers or max(1, len(search.running)))

    def _prior(self, study: Study) -> float:
        cost = self.cost or StepCost(fixed=1.0, per_example=0.0, evaluation=0.0)
        return cost.seconds(study.batch_size, prior_steps(self.search.sweep, study.batch_size))
