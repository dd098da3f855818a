r"""Learning rates and batch sizes that change along a run of heavy ball, and the best piecewise constant learning rate.

Under a schedule the moments of :math:`(\theta^2, v^2, \theta v)` are handed from stage to stage; a stage of k steps is
the k-th power of one matrix for each coordinate (arXiv:1907.04164, equation 21), and the noise of a step enters as one
over its batch size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from cbs.theory.noisy_quadratic.model import NoisyQuadratic

SMALLEST = 1e-8
"""Least learning rate of a piece, as a part of the largest."""


@dataclass(frozen=True, kw_only=True)
class QuadraticStage:
    """Consecutive steps that are alike.

    Attributes:
        steps: how many, at least 0.
        lr: learning rate.
        batch_size: examples per step, above 0.
    """

    steps: int
    lr: float
    batch_size: float


def losses_along(
    model: NoisyQuadratic, stages: Sequence[QuadraticStage], momentum: float = 0.0, *, power: float = 0.0
) -> np.ndarray:
    """Expected loss at the start and after every stage, shape ``[stages + 1]``.

    Args:
        model: the noisy quadratic.
        stages: in order; a stage of a single step may change everything at every step.
        momentum: of heavy ball, in [0, 1).
        power: exponent of the preconditioner.

    Raises:
        ValueError: if a stage has a negative number of steps or learning rate, or no batch.
    """
    weight = 0.5 * model.count * model.curvature
    moments = np.zeros((len(weight), 4))
    moments[:, 0], moments[:, 3] = model.start, 1.0
    losses = [model.initial_loss]
    for stage in stages:
        if stage.steps < 0 or stage.lr < 0 or not stage.batch_size > 0:
            raise ValueError(f"a stage needs steps and lr of at least 0 and a batch size above 0, got {stage}")
        step = _step(model, stage, momentum, power)
        with np.errstate(all="ignore"):
            moments = (np.linalg.matrix_power(step, stage.steps) @ moments[..., None])[..., 0]
            losses.append(float(np.nan_to_num((weight * moments[:, 0]).sum(), nan=np.inf, posinf=np.inf)))
    return np.array(losses)


def _step(model: NoisyQuadratic, stage: QuadraticStage, momentum: float, power: float) -> np.ndarray:
    """What a step does to ``(theta^2, v^2, theta v, 1)``, shape ``[d, 4, 4]``."""
    scaled = stage.lr * model.preconditioner(power)
    x, kick = scaled * model.curvature, scaled**2 * model.noise / stage.batch_size
    zero, m = np.zeros_like(x), np.full_like(x, momentum)
    rows = [
        [(1 - x) ** 2, m**2, 2 * m * (1 - x), kick],
        [x**2, m**2, -2 * m * x, kick],
        [-x * (1 - x), m**2, m * (1 - 2 * x), kick],
        [zero, zero, zero, zero + 1],
    ]
    return np.moveaxis(np.array(rows), -1, 0)


@dataclass(frozen=True, kw_only=True)
class BestPieces:
    """Fewest steps of SGD under a piecewise constant learning rate.

    Attributes:
        steps: all of them, a multiple of the number of pieces.
        lrs: the learning rate of each piece.
    """

    steps: int
    lrs: np.ndarray


def best_pieces(
    model: NoisyQuadratic,
    target: float,
    batch_size: float,
    pieces: int = 10,
    *,
    power: float = 0.0,
    limit: int = 2**22,
) -> BestPieces | None:
    """Fewest steps of SGD to ``target`` with ``pieces`` stages of equal length, each at the best learning rate.

    The logarithms of the learning rates are optimized with the gradient, as far as the paper goes, the largest stable
    learning rate over :math:`1 + 10^{-4 (1 - p)} + 10^{-4}`, and the length is bisected, to one part in 2048. The
    problem may have other minima, so the result is an upper bound.

    Args:
        model: the noisy quadratic.
        target: expected loss to reach.
        batch_size: examples per step.
        pieces: stages of equal length, at least 1.
        power: exponent of the preconditioner.
        limit: steps of a piece after which the search gives up.

    Returns:
        ``None`` if the target is not reached within ``limit`` steps a piece.
    """
    if model.initial_loss <= target:
        return BestPieces(steps=0, lrs=np.zeros(pieces))
    largest = largest_tried(model, power)
    if largest is None:
        return None
    shortest_run = shortest(
        lambda steps, lrs: _best_lrs(model, steps, lrs, batch_size, power, largest),
        largest * np.geomspace(0.5, 0.05, pieces),
        target,
        limit,
    )
    return None if shortest_run is None else BestPieces(steps=shortest_run[0] * pieces, lrs=shortest_run[1])


def largest_tried(model: NoisyQuadratic, power: float) -> float | None:
    """How far learning rates are tried, just short of the largest stable one; ``None`` where there is no such."""
    largest = model.largest_lr(power)
    return largest / (1.0 + 10.0 ** (-4.0 * (1.0 - power)) + 1e-4) if np.isfinite(largest) else None


def shortest(
    best: Callable[[int, np.ndarray], tuple[float, np.ndarray]], start: np.ndarray, target: float, limit: int
) -> tuple[int, np.ndarray] | None:
    """Fewest steps of a piece, to one part in 2048, and the settings with which they lead to the target.

    Args:
        best: steps of a piece and settings to begin with -> the least loss after all pieces, and the settings that lead
            to it.
        start: settings.
        target: loss to reach.
        limit: steps of a piece after which the search gives up, with ``None``.
    """
    settings, low, high, shortest_settings = start, 0, 1, None
    while shortest_settings is None:
        if high > limit:
            return None
        loss, settings = best(high, settings)
        if loss <= target:
            shortest_settings = settings
        else:
            low, high = high, 2 * high
    while high - low > max(1, high // 2048):
        middle = (low + high) // 2
        loss, tried = best(middle, shortest_settings)
        if loss <= target:
            high, shortest_settings = middle, tried
        else:
            low = middle
    return high, shortest_settings


def _best_lrs(
    model: NoisyQuadratic, steps: int, start: np.ndarray, batch_size: float, power: float, largest: float
) -> tuple[float, np.ndarray]:
    """The loss after pieces of ``steps`` steps at the learning rates that minimize it, and those."""

    def value(log_lrs: np.ndarray) -> tuple[float, np.ndarray]:
        loss, gradient = loss_and_gradient(model, steps, np.exp(log_lrs), batch_size, power)
        return float(np.log(loss)), gradient * np.exp(log_lrs) / loss

    bounds = [(np.log(largest * SMALLEST), np.log(largest))] * len(start)
    outcome = minimize(value, np.log(start), jac=True, method="L-BFGS-B", bounds=bounds)
    return float(np.exp(outcome.fun)), np.exp(outcome.x)


def loss_and_gradient(
    model: NoisyQuadratic, steps: int, lrs: np.ndarray, batch_size: float | np.ndarray, power: float = 0.0
) -> tuple[float, np.ndarray]:
    r"""Loss of SGD after ``steps`` steps at each learning rate in turn, and its derivative in them, shape ``[pieces]``.

    The batch size is one for all pieces, or one for each, shape ``[pieces]``.

    In a piece a second moment goes from s to :math:`s_\infty + A (s - s_\infty)` with :math:`A = (1 - x)^{2k}`.
    """
    used = model.curvature > 0
    h, c, count = model.curvature[used], model.noise[used], model.count[used]
    scale = h**-power
    x = lrs[:, None] * scale * h
    kept = (1.0 - x) ** (2 * steps)
    slope = -2 * steps * scale * h * (1.0 - x) ** (2 * steps - 1)
    # The stationary moment lr^2 P^2 c / (B x (2 - x)), free of the division by x.
    size = np.broadcast_to(batch_size, lrs.shape)[:, None]
    rest = lrs[:, None] * scale * c / (size * h * (2.0 - x))
    rest_slope = 2.0 * scale * c / (size * h * (2.0 - x) ** 2)
    moment, before = model.start[used], []
    for piece in range(len(lrs)):
        before.append(moment)
        moment = rest[piece] + kept[piece] * (moment - rest[piece])
    weight = 0.5 * count * h
    adjoint, gradient = weight, np.empty(len(lrs))
    for piece in reversed(range(len(lrs))):
        here = slope[piece] * (before[piece] - rest[piece]) + (1.0 - kept[piece]) * rest_slope[piece]
        gradient[piece] = (adjoint * here).sum()
        adjoint = adjoint * kept[piece]
    return float((weight * moment).sum()), gradient
