"""Slow twins of the noisy quadratic: the covariance one step at a time, and the process itself by sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from cbs.theory.noisy_quadratic import NoisyQuadratic


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
