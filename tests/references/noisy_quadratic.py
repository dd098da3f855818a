"""Slow twins of the noisy quadratic: the second moments one step at a time, and the process itself by sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np


def expected_losses(
    curvature: Sequence[float], noise: Sequence[float], lr: float, batch_size: int, momentum: float, steps: int
) -> list[float]:
    """Expected loss of heavy ball after 0, ..., ``steps`` steps from unit second moments, by taking expectations of
    ``v' = momentum v - lr (h theta + xi)`` and ``theta' = theta + v'`` once for each coordinate and step."""
    moments = [(1.0, 0.0, 0.0) for _ in curvature]
    losses = []
    for _ in range(steps + 1):
        losses.append(sum(0.5 * h * square for h, (square, _, _) in zip(curvature, moments, strict=True)))
        following = []
        for h, c, (square, speed, cross) in zip(curvature, noise, moments, strict=True):
            kick = lr * lr * c / batch_size
            new_speed = momentum**2 * speed - 2 * momentum * lr * h * cross + (lr * h) ** 2 * square + kick
            new_cross = momentum * cross - lr * h * square + new_speed
            new_square = square + 2 * (momentum * cross - lr * h * square) + new_speed
            following.append((new_square, new_speed, new_cross))
        moments = following
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
