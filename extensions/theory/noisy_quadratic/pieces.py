r"""The learning rate of SGD that reaches a target in the fewest steps, constant on pieces of equal length.

Zhang et al. (2019, arXiv:1907.04164), section 3: the log rates of all pieces are optimized together, with a gradient in
closed form, and the length of a piece by bisection. On a piece of k steps at rate :math:`\alpha`, with :math:`x =
\alpha h`, the second moment of a coordinate goes from s to :math:`s_\infty + (1-x)^{2k} (s - s_\infty)`, where
:math:`s_\infty = \alpha c / (B h (2 - x))`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from analysis.arrays import Array
from extensions.theory.noisy_quadratic.model import NoisyQuadratic
from extensions.theory.noisy_quadratic.search import tuned

_LOWEST = 1e-9
"""Lowest rate of a piece, as a share of the largest stable one."""


@dataclass(frozen=True)
class RateSchedule:
    """The best rates at one batch size.

    Attributes:
        batch_size: examples per step.
        steps: number of steps to the target, a multiple of the number of pieces.
        lrs: learning rate of every piece, shape ``[pieces]``.
        constant_lr, constant_steps: the best constant rate, and the steps it takes.
    """

    batch_size: float
    steps: int
    lrs: tuple[float, ...]
    constant_lr: float
    constant_steps: float


def loss_and_slope(model: NoisyQuadratic, log_lrs: Array, length: int, batch_size: float) -> tuple[float, Array]:
    """Return the expected loss after pieces of ``length`` steps each, and its gradient by the log rates."""
    weight = 0.5 * model.count * model.curvature
    lrs = np.exp(log_lrs)[:, None]
    x = lrs * model.curvature
    with np.errstate(divide="ignore", invalid="ignore"):
        kick = np.where(model.curvature > 0, model.noise / (batch_size * model.curvature), 0.0)
    rest = lrs * kick / (2 - x)
    kept = (1 - x) ** (2 * length)
    moments = [model.start]
    for keep, at in zip(kept, rest, strict=True):
        moments.append(at + keep * (moments[-1] - at))
    before = np.array(moments[:-1])
    # derivatives by ln alpha: s_inf has alpha kick 2 / (2 - x)^2, (1 - x)^2k has -2 k x (1 - x)^(2k - 1)
    turns = 2 * lrs * kick / (2 - x) ** 2 * (1 - kept)
    turns -= 2 * length * x * (1 - x) ** (2 * length - 1) * (before - rest)
    after = np.cumprod(np.vstack([np.ones_like(kept[:1]), kept[:0:-1]]), axis=0)[::-1]
    return float(weight @ moments[-1]), np.asarray((turns * after) @ weight)


def best_pieces(model: NoisyQuadratic, target: float, batch_size: float, *, pieces: int = 50) -> RateSchedule | None:
    """Return the best rates to an expected loss of ``target``; ``None`` if no constant rate reaches it, or one does so
    in fewer steps than pieces."""
    constant = tuned(model, "sgd", target, batch_size)
    if constant is None or constant.steps <= pieces:
        return None
    largest = model.largest_lr()
    bounds = [(np.log(_LOWEST * largest), np.log(largest * (1 - 1e-4)))] * pieces
    start = np.full(pieces, np.log(min(constant.lr, largest * (1 - 1e-3))))

    def best(length: int, first: Array) -> tuple[float, Array]:
        def logged(logs: Array) -> tuple[float, Array]:
            loss, slope = loss_and_slope(model, logs, length, batch_size)
            return float(np.log(loss)), slope / loss

        found = minimize(logged, first, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 200})
        return float(np.exp(found.fun)), found.x

    low, high = 0, -(-int(np.ceil(constant.steps)) // pieces)
    logs = start
    while high - low > 1:
        middle = (low + high) // 2
        loss, there = best(middle, logs)
        low, high, logs = (low, middle, there) if loss <= target else (middle, high, logs)
    _, logs = best(high, logs)
    return RateSchedule(batch_size, high * pieces, tuple(np.exp(logs).tolist()), constant.lr, constant.steps)
