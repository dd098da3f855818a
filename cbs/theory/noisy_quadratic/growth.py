"""The best growing batch size of SGD at a constant learning rate.

The batch size grows by a constant factor from piece to piece of equal length. Its mean over the steps is what stands
for the batch size of a run, so that steps times batch size are the examples, as with a constant one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from cbs.theory.noisy_quadratic.model import NoisyQuadratic
from cbs.theory.noisy_quadratic.schedules import SMALLEST, largest_tried, loss_and_gradient, shortest

MOST = 1e4
"""Largest batch size of a run over its smallest."""


@dataclass(frozen=True, kw_only=True)
class BestGrowth:
    """Fewest steps of SGD under a batch size that grows.

    Attributes:
        steps: all of them, a multiple of the number of pieces.
        lr: the learning rate.
        growth: the last batch size over the first.
    """

    steps: int
    lr: float
    growth: float


def batch_sizes(mean: float, growth: float, pieces: int) -> np.ndarray:
    """Batch sizes of the pieces, a geometric sequence of this mean whose last is ``growth`` times the first."""
    relative = growth ** np.linspace(0.0, 1.0, pieces)
    return np.asarray(mean * relative / relative.mean())


def best_growth(
    model: NoisyQuadratic,
    target: float,
    batch_size: float,
    pieces: int = 10,
    *,
    power: float = 0.0,
    limit: int = 2**22,
) -> BestGrowth | None:
    """Fewest steps of SGD to ``target`` at the best constant learning rate and the best growth of the batch size.

    Args:
        model: the noisy quadratic.
        target: expected loss to reach.
        batch_size: mean over the steps.
        pieces: stages of equal length, at least 2.
        power: exponent of the preconditioner.
        limit: steps of a piece after which the search gives up.

    Returns:
        ``None`` if the target is not reached within ``limit`` steps a piece.
    """
    if model.initial_loss <= target:
        return BestGrowth(steps=0, lr=0.0, growth=1.0)
    largest = largest_tried(model, power)
    if largest is None:
        return None

    def best(steps: int, start: np.ndarray) -> tuple[float, np.ndarray]:
        def log_loss(logs: np.ndarray) -> float:
            sizes = batch_sizes(batch_size, float(np.exp(logs[1])), pieces)
            return float(np.log(loss_and_gradient(model, steps, np.full(pieces, np.exp(logs[0])), sizes, power)[0]))

        bounds = [(np.log(largest * SMALLEST), np.log(largest)), (0.0, np.log(MOST))]
        outcome = minimize(log_loss, np.log(start), method="L-BFGS-B", bounds=bounds)
        return float(np.exp(outcome.fun)), np.exp(outcome.x)

    shortest_run = shortest(best, np.array([0.2 * largest, 4.0]), target, limit)
    return (
        None
        if shortest_run is None
        else BestGrowth(steps=shortest_run[0] * pieces, lr=shortest_run[1][0], growth=shortest_run[1][1])
    )
