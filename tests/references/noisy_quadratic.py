"""Twins of the noisy quadratic: the covariance one step at a time, along stages, and the process itself by sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.extensions.theory.noisy_quadratic import NoisyQuadratic


def binned(dimension: int, bins: int = 100) -> NoisyQuadratic:
    """The power law with curvatures rounded down to ``bins`` geometric values, as in the figures of Zhang et al."""
    values = np.geomspace(1.0, 1.0 / dimension, bins)
    index = np.searchsorted(-values, -NoisyQuadratic.power_law(dimension).curvature).clip(max=bins - 1)
    count = np.bincount(index, minlength=bins).astype(float)
    return NoisyQuadratic(curvature=values, noise=values, start=np.ones(bins), count=count)


def expected_losses(
    model: NoisyQuadratic,
    method: str,
    momentum: float,
    stages: Sequence[tuple[float, float]],
    power: float = 0.0,
) -> list[float]:
    """Expected loss before the first and after every step, by the covariance of each coordinate's state.

    ``stages`` holds the learning rate and the batch size of every step. The state is what the update keeps: the
    parameter, and the velocity, torch's buffer or the average; it follows ``z' = A z + n xi``.
    """
    losses = [0.0] * (len(stages) + 1)
    for h, c, start, count in zip(model.curvature, model.noise, model.start, model.count, strict=True):
        counted = np.array([0.0, 1.0]) if method == "averaged" else np.array([1.0, 0.0])
        first = np.array([1.0, 1.0]) if method == "averaged" else np.array([1.0, 0.0])
        covariance = start * np.outer(first, first)
        losses[0] += 0.5 * count * h * counted @ covariance @ counted
        for step, (lr, batch_size) in enumerate(stages, start=1):
            eta = lr * h**-power
            x = eta * h
            if method == "averaged":
                matrix = [[1 - x, 0.0], [(1 - momentum) * (1 - x), momentum]]
                kick = [eta, eta * (1 - momentum)]
            elif method == "nesterov":
                # torch: buffer' = m buffer + g, then theta' = theta - lr (g + m buffer').
                matrix = [[1 - x * (1 + momentum), -eta * momentum**2], [h, momentum]]
                kick = [-eta * (1 + momentum), 1.0]
            else:
                matrix = [[1 - x, momentum], [-x, momentum]]
                kick = [eta, eta]
            covariance = np.array(matrix) @ covariance @ np.array(matrix).T
            covariance += c / batch_size * np.outer(kick, kick)
            losses[step] += 0.5 * count * h * counted @ covariance @ counted
    return losses


def sampled_losses(
    curvature: np.ndarray,
    noise: np.ndarray,
    update: Callable[[np.ndarray, np.ndarray], np.ndarray],
    batch_size: int,
    steps: int,
    *,
    runs: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Losses after ``steps`` steps of ``runs`` independent runs from N(0, I), shape ``[runs]``.

    ``update(theta, gradient)`` changes ``theta`` in place, keeps its own state and returns the parameters whose loss
    counts.
    """
    theta = rng.standard_normal((runs, len(curvature)))
    counted = theta
    for _ in range(steps):
        gradient = curvature * theta + rng.standard_normal(theta.shape) * np.sqrt(noise / batch_size)
        counted = update(theta, gradient)
    return 0.5 * (curvature * counted**2).sum(axis=1)


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

    The moments of ``(theta^2, v^2, theta v)`` are handed from stage to stage; a stage of k steps is the k-th power of
    one matrix for each coordinate (arXiv:1907.04164, equation 21).

    Args:
        model: the noisy quadratic.
        stages: in order; a stage of a single step may change everything at every step.
        momentum: of heavy ball, in [0, 1).
        power: exponent of the preconditioner.
    """
    weight = 0.5 * model.count * model.curvature
    moments = np.zeros((len(weight), 4))
    moments[:, 0], moments[:, 3] = model.start, 1.0
    losses = [model.initial_loss]
    for stage in stages:
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
