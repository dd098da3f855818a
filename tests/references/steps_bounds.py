"""Steps bounds the long way: sums over steps, counting steps until a bound is met, and training with noise."""

from __future__ import annotations

import math

import numpy as np

TERMS = 4_000


def noise_factor(beta: float, *, nesterov: bool) -> float:
    """Standard deviation of the momentum of unit noise, summed over past steps; with the look-ahead that of its two
    parts added."""
    weights = (1 - beta) * beta ** np.arange(TERMS)
    momentum = math.sqrt(float((weights**2).sum()))
    return beta * momentum + (1 - beta) if nesterov else momentum


def direction_noise(beta: float, *, nesterov: bool) -> float:
    """Standard deviation of what a step follows, its noise added up exactly."""
    weights = (1 - beta) * beta ** np.arange(TERMS)
    if nesterov:
        weights = beta * weights
        weights[0] += 1 - beta
    return math.sqrt(float((weights**2).sum()))


def momentum_constants(
    *, gap: float, lr: float, smoothness: float, noise: float, gradient: float, beta: float, nesterov: bool,
    weight_decay: float = 0.0, norm_constant: float = 1.0,
) -> tuple[float, float, float]:  # fmt: skip
    """X, Y and Z by adding up, step by step, how far the momentum is from the gradient: its start, its noise and how
    far the gradient has moved meanwhile."""
    ahead = beta if nesterov else 1.0
    start = sum(ahead * beta**step for step in range(TERMS)) * gradient
    moved = sum(ahead * beta**age for age in range(1, TERMS)) * smoothness * lr
    noisy = noise_factor(beta, nesterov=nesterov) * math.sqrt(norm_constant) * noise
    if not weight_decay:
        return gap / lr + 2 * start, 2 * noisy, 2 * moved + smoothness * lr / 2
    # a step moves twice as far at most, and what goes wrong in one is forgotten at the rate of the weight decay
    rate = 1 / weight_decay
    return gap, 2 * rate * noisy, rate * (2 * 2 * moved + 4 * smoothness * lr) + 2 * lr * start


def first_step(x: float, y: float, z: float, accuracy: float, batch_size: float, power: float) -> int:
    """The first T with ``X/T + Y b^-p + Z`` at most the accuracy."""
    step = 1
    while x / step + y * batch_size**-power + z > accuracy:
        step += 1
    return step


def first_step_with_decay(x: float, y: float, z: float, accuracy: float, batch_size: float, rate: float) -> int:
    """The first T with ``(1 - rate)^T X + Y/sqrt(b) + Z`` at most the accuracy."""
    left, step = x, 0
    while left + y / math.sqrt(batch_size) + z > accuracy:
        left *= 1 - rate
        step += 1
    return step


def train(
    curvature: np.ndarray, start: np.ndarray, *, noise: float, batch_size: int, lr: float, beta: float, nesterov: bool,
    weight_decay: float, steps: int, runs: int, rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Normalised SGD with momentum on ``1/2 sum h w^2``: mean gradient norm and mean loss before every step, shape
    ``[steps]``. The noise of an example has the expected squared length ``noise^2``."""
    weights, momentum = np.tile(start, (runs, 1)), np.zeros((runs, len(start)))
    scale = noise / math.sqrt(len(start) * batch_size)
    norms, losses = np.empty(steps), np.empty(steps)
    for step in range(steps):
        gradient = curvature * weights
        norms[step] = np.linalg.norm(gradient, axis=1).mean()
        losses[step] = 0.5 * (curvature * weights**2).sum(axis=1).mean()
        noisy = gradient + scale * rng.standard_normal(weights.shape)
        momentum = beta * momentum + (1 - beta) * noisy
        along = beta * momentum + (1 - beta) * noisy if nesterov else momentum
        along = along / np.linalg.norm(along, axis=1, keepdims=True)
        weights = (1 - lr * weight_decay) * weights - lr * along
    return norms, losses


def sgd_mean_squared_norm(
    *, curvature: float, gap: float, lr: float, noise: float, batch_size: float, steps: int
) -> tuple[float, float]:
    """Mean over the steps of the expected squared gradient of SGD on one parameter, and the expected loss at the end
    over that at the start."""
    second, total = 2 * gap / curvature, 0.0
    for _ in range(steps):
        total += curvature**2 * second
        second = (1 - lr * curvature) ** 2 * second + lr**2 * noise**2 / batch_size
    return total / steps, 0.5 * curvature * second / gap


def form(name: str, batch_sizes: np.ndarray, log_steps: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Pole and sum of squares of the form fitted by a search over many starts."""
    from scipy.optimize import minimize

    sizes = np.asarray(batch_sizes, dtype=float)

    def cost(parameters: np.ndarray) -> float:
        pole = sizes[0] / (1 + math.exp(-parameters[0]))
        if name == "decay":
            shape = np.log(math.exp(parameters[1]) - np.log(1 - np.sqrt(pole / sizes)))
        else:
            shape = -np.log(1 - (pole / sizes) ** {"root": 0.5, "linear": 1.0}[name])
        residual = log_steps - shape
        return float(weights @ (residual - weights @ residual / weights.sum()) ** 2)

    starts = [(first, second) for first in (-3.0, 0.0, 3.0) for second in (-2.0, 0.0, 2.0)]
    options = {"xatol": 1e-10, "fatol": 1e-14, "maxiter": 4000}
    found = [minimize(cost, start, method="Nelder-Mead", options=options) for start in starts]
    best = min(found, key=lambda result: result.fun)
    return float(sizes[0] / (1 + math.exp(-best.x[0]))), float(best.fun)
