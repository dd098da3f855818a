"""Steps bounds, and the long way to them: sums over steps, counting steps until a bound is met, a search."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

TERMS = 4_000


@dataclass(frozen=True, kw_only=True)
class StepsBound:
    """``T(b)`` up to the accuracy; ``x`` is what the start contributes, ``y`` the noise of one example, ``power`` p."""

    x: float
    y: float
    accuracy: float
    power: float = 0.5

    @property
    def pole(self) -> float:
        return float((self.y / self.accuracy) ** (1.0 / self.power))

    def steps(self, batch_sizes: ArrayLike) -> np.ndarray:
        raise NotImplementedError

    def examples(self, batch_sizes: ArrayLike) -> np.ndarray:
        return np.multiply(batch_sizes, self.steps(batch_sizes))

    @property
    def best_batch_size(self) -> float:
        """Of the fewest examples, by a search."""
        from scipy.optimize import minimize_scalar

        found = minimize_scalar(
            lambda log: float(np.log(self.examples(math.exp(log)))),
            bounds=(math.log(self.pole) + 1e-9, math.log(self.pole) + 3.0),
            method="bounded",
            options={"xatol": 1e-10},
        )
        return math.exp(found.x)


@dataclass(frozen=True, kw_only=True)
class PowerBound(StepsBound):
    """``X / (c - Y b^-p)``."""

    def steps(self, batch_sizes: ArrayLike) -> np.ndarray:
        left = self.accuracy - self.y * np.asarray(batch_sizes, dtype=float) ** -self.power
        return np.divide(self.x, left, out=np.full_like(left, np.inf), where=left > 0)


@dataclass(frozen=True, kw_only=True)
class DecayBound(StepsBound):
    """``ln(X / (c - Y/sqrt(b))) / rate``."""

    rate: float

    def steps(self, batch_sizes: ArrayLike) -> np.ndarray:
        left = self.accuracy - self.y / np.sqrt(np.asarray(batch_sizes, dtype=float))
        inside = np.divide(self.x, left, out=np.full_like(left, np.inf), where=left > 0)
        return np.asarray(np.log(inside) / self.rate)


def noise_factor(beta: float, *, nesterov: bool) -> float:
    """Standard deviation of the momentum of unit noise, summed over past steps; with the look-ahead that of its two
    parts added."""
    weights = (1 - beta) * beta ** np.arange(TERMS)
    momentum = math.sqrt(float((weights**2).sum()))
    return beta * momentum + (1 - beta) if nesterov else momentum


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
