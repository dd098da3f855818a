"""A sweep without training: trials whose steps to target follow a known law, run through the real search."""

import math
import random

from cbs.trial.config import Choice, TrialConfig
from cbs.trial.record import Measurement, TrialResult, TrialStatus
from cbs.trial.target import Target
from sweeps.search.pruning import beyond
from sweeps.search.search import Search
from sweeps.spec.axes import Axes, Cell
from sweeps.spec.spec import Sweep, prototype

MIN_STEPS, MIN_EXAMPLES, NOISE = 100.0, 3000.0, 0.03


def small_sweep(**changes: object) -> Sweep:
    """Two optimizers, four batch sizes, two seeds."""
    sweep = Sweep(
        name="simulated",
        trial=prototype(workload=Choice(name="noisy_quadratic"), target=Target(metric="validation_loss", value=1.0)),
        axes=Axes(optimizers=(Choice(name="adamw"), Choice(name="merit")), batch_sizes=(4, 16, 64, 256), seeds=(0, 1)),
    )
    return sweep.replace(**changes)


def true_best_lr(config: TrialConfig) -> float:
    """The best learning rate drifts with the batch size, off the grid, and to beyond its upper end."""
    return 1.3e-3 * config.batch_size**0.75


def true_steps(config: TrialConfig) -> float:
    """Steps to target: hyperbola x learning-rate penalty x seed noise; infinite far above the best learning rate."""
    gap = math.log(config.lr / true_best_lr(config))
    if gap > math.log(10):
        return math.inf
    noise = random.Random(config.trial_id).gauss(0.0, NOISE)
    return (MIN_STEPS + MIN_EXAMPLES / config.batch_size) * math.exp(0.25 * gap**2 + noise)


def simulate(config: TrialConfig, best_steps: float | None, prune_factor: float | None) -> TrialResult:
    """What ``run_trial`` would return, given the bound that was known all along."""
    steps, rows = true_steps(config), []
    step, status = 0, TrialStatus.BUDGET_EXHAUSTED
    while step < config.max_steps:
        value = 2.0 - min(step / steps, 2.0) if step else 2.0
        rows.append(
            Measurement(step=step, examples=step * config.batch_size, value=value, train_loss=value, lr=config.lr)
        )
        if config.target.reached(value):
            status = TrialStatus.REACHED
            break
        if beyond(step, best_steps, prune_factor):
            status = TrialStatus.PRUNED
            break
        step = config.evaluation.next_step(step, 0.0)
    crossing = config.target.crossing([row.step for row in rows], [row.value for row in rows])
    return TrialResult(
        config=config, status=status, steps_to_target=crossing, evaluations=rows, steps={}, workload=None
    )


def run_search(
    search: Search, *, order: int = 0, workers: int = 2, stop_after: int | None = None
) -> dict[str, TrialResult]:
    """Drive a search to its end with trials finishing in an order drawn from ``order``; settles like a sweep does.

    With ``stop_after`` the run ends after that many trials, as a killed sweep does: running trials are lost and nothing
    is settled.
    """
    draw, running, results = random.Random(order), [], {}
    while not search.done:
        while len(running) < workers and (config := search.next()) is not None:
            running.append(config)
        config = running.pop(draw.randrange(len(running)))
        cell = Cell.of(config)
        result = simulate(config, search.best_steps(cell), search.sweep.prune_factor)
        results[config.trial_id] = result
        search.add(result)
        if stop_after is not None and len(results) >= stop_after:
            return results
    for cell in search.cells():
        results |= {changed.trial_id: changed for changed in search.settled(cell)}
    return results
