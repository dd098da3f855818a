"""Sweeps as they would have come out, without training code: step by step in numpy, and read at the evaluations.

Trained replicates are dear, so what choosing, fitting and the interval do to them is looked at on many more of these.
Learning rates of a seed share starts and noise, as trials of a cell share their examples.
"""

import math
from typing import Any

import numpy as np
import pandas as pd

from analysis.config import AnalysisConfig
from analysis.questions.fit.table_fit import fit_table
from benchmarks.calibration.cases import PLAN, SEEDS, TARGET, Case
from benchmarks.calibration.replicates import record
from benchmarks.calibration.truth import Truth, fine_grid
from cbs.trial.config import EvaluationPlan
from cbs.trial.target import Target

PRUNED = 1.3
"""Multiple of the best steps of a seed beyond which a trial counts as not having reached the target, as in a sweep."""


def simulated(case: Case, truth: Truth, index: int) -> dict[str, Any]:
    """A replicate as :func:`benchmarks.calibration.replicates.replicate` has it, on the fine grid."""
    (answer,) = fit_table(table(case, truth, index), AnalysisConfig(seed=index)).answers
    return {"case": case.name, "grid": "simulated", "replicate": index} | record(answer)


def table(case: Case, truth: Truth, index: int) -> pd.DataFrame:
    """Steps to target: columns ``batch_size``, ``lr``, ``seed``, ``steps`` and ``censored``."""
    rows = []
    for best in truth.swept:
        rng = np.random.default_rng([index, int(best.batch_size)])
        lrs = fine_grid(best)
        steps = steps_of(case, best.batch_size, np.array(lrs), SEEDS, rng)
        limit = PRUNED * steps.min(axis=1, keepdims=True)
        for (seed, place), count in np.ndenumerate(np.minimum(steps, limit)):
            late = bool(steps[seed, place] > limit[seed, 0])
            rows.append((int(best.batch_size), lrs[place], seed, count, late))
    return pd.DataFrame(rows, columns=["batch_size", "lr", "seed", "steps", "censored"])


def steps_of(case: Case, batch_size: float, lrs: np.ndarray, seeds: int, rng: np.random.Generator) -> np.ndarray:
    """Steps to target, shape ``[seeds, learning rates]``; infinity where it takes more than :data:`PRUNED` times the
    fewest of the slowest seed."""
    model = case.theory
    h, noise = model.curvature.astype(np.float32), np.sqrt(model.noise / batch_size).astype(np.float32)
    scale = (lrs[:, None] * model.preconditioner(case.power)).astype(np.float32)
    theta = np.repeat(rng.standard_normal((seeds, 1, len(h)), dtype=np.float32), len(lrs), axis=1)
    speed = np.zeros_like(theta)
    losses = [_losses(theta, h)]
    fewest = np.full(seeds, math.inf)
    while len(losses) - 1 <= PLAN.growth * (PRUNED * fewest.max() + 1):
        gradient = h * theta + noise * rng.standard_normal((seeds, 1, len(h)), dtype=np.float32)
        speed = case.momentum * speed - scale * gradient
        theta += speed
        losses.append(_losses(theta, h))
        if len(losses) % 10 == 0 and np.isinf(fewest).any():
            fewest = _read(np.array(losses)).min(axis=1)
    return _read(np.array(losses))


def _losses(theta: np.ndarray, curvature: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(0.5 * np.square(theta) @ curvature, dtype=float)


def _read(losses: np.ndarray) -> np.ndarray:
    """First crossings of curves of every step, shape ``[steps + 1, ...]``, at their evaluations."""
    flat = losses.reshape(len(losses), -1)
    return np.array([crossing(curve, TARGET.value, PLAN) for curve in flat.T]).reshape(losses.shape[1:])


def crossing(losses: np.ndarray, target: float, plan: EvaluationPlan) -> float:
    """Steps at which the evaluations of a curve of every step see it below the target; infinity if none does."""
    steps, reach = [0], float(losses[0]) - target
    while True:
        away = float(losses[steps[-1]]) - target
        steps.append(plan.next_step(steps[-1], away / reach))
        if steps[-1] >= len(losses) or not losses[steps[-1]] - target <= 5.0 * reach:
            return math.inf
        if losses[steps[-1]] < target:
            return Target(metric="loss", value=target).crossing(steps, losses[steps].tolist()) or math.inf
