"""The noisy quadratic of Zhang et al. (2019, arXiv:1907.04164): its expected loss step by step, and by sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Quadratic:
    """The loss is half the sum of ``curvature * theta^2`` over ``count`` coordinates of each kind.

    The gradient of B examples has noise of variance ``noise / B``; ``start`` is the second moment of the first theta.
    """

    curvature: np.ndarray
    noise: np.ndarray
    start: np.ndarray
    count: np.ndarray

    @classmethod
    def power_law(cls, dimension: int, *, power: float = 1.0, noise: float = 1.0) -> Quadratic:
        curvature = np.arange(1, dimension + 1) ** -power
        return cls(curvature=curvature, noise=noise * curvature, start=np.ones(dimension), count=np.ones(dimension))


@np.errstate(over="ignore", invalid="ignore")
def expected_losses(
    model: Any, method: str, momentum: float, stages: Sequence[tuple[float, float]], power: float = 0.0
) -> np.ndarray:
    """Expected loss before the first and after every step, by the covariance of each coordinate's state.

    ``stages`` holds the learning rate and the batch size of every step. The state is what the update keeps: the
    parameter, and the velocity, torch's buffer or the average; it follows ``z' = A z + n xi``.
    """
    h, zero = model.curvature, np.zeros_like(model.curvature)
    averaged = method == "averaged"
    first, second, both = model.start, model.start if averaged else zero, model.start if averaged else zero
    losses = [(0.5 * model.count * h * first).sum()]
    for lr, batch_size in stages:
        eta = lr * h**-power
        x = eta * h
        if averaged:
            (a, b), (c, d) = (1 - x, zero), ((1 - momentum) * (1 - x), momentum)
            kick, other = eta, eta * (1 - momentum)
        elif method == "nesterov":
            # torch: buffer' = m buffer + g, then theta' = theta - lr (g + m buffer').
            (a, b), (c, d) = (1 - x * (1 + momentum), -eta * momentum**2), (h, momentum)
            kick, other = -eta * (1 + momentum), 1.0
        else:
            (a, b), (c, d) = (1 - x, momentum), (-x, momentum)
            kick, other = eta, eta
        noise = model.noise / batch_size
        first, second, both = (
            a * a * first + 2 * a * b * both + b * b * second + kick * kick * noise,
            c * c * first + 2 * c * d * both + d * d * second + other * other * noise,
            a * c * first + (a * d + b * c) * both + b * d * second + kick * other * noise,
        )
        losses.append((0.5 * model.count * h * (second if averaged else first)).sum())
    return np.array(losses)


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
