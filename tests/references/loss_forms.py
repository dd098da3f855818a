"""The forms of the loss by what they say, one coordinate and one step at a time."""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import zeta


def nqs(
    parameters: int, batch_size: float, steps: int,
    *, E: float, P: float, p: float, Q: float, q: float, R: float, r: float, lr: float = 1.0,
) -> float:  # fmt: skip
    """Loss of the noisy quadratic system (arXiv:2605.09154): SGD followed step by step on every coordinate.

    The second moment m of ``w - w*`` goes to ``(1 - lr lambda)^2 m + lr^2 R/(n^r B)``.
    """
    n = np.arange(1.0, parameters + 1.0)
    curvature, noise = Q / n**q, R / (n**r * batch_size)
    moment = P / n**p / curvature
    for _ in range(steps):
        moment = (1.0 - lr * curvature) ** 2 * moment + lr**2 * noise
    return E + 0.5 * P * float(zeta(p, parameters + 1)) + 0.5 * float((curvature * moment).sum())


def kaplan(
    parameters: float, batch_size: float, steps: float,
    *, E: float, N_c: float, alpha_N: float, S_c: float, alpha_S: float, B_star: float, alpha_B: float,
) -> float:  # fmt: skip
    """Loss at which equation 1.6 of Kaplan et al. (2020) holds, by bracketing."""

    def excess(log_loss: float) -> float:
        loss = math.exp(log_loss)
        fewest = steps / (1.0 + B_star / loss ** (1.0 / alpha_B) / batch_size)
        return loss - E - (N_c / parameters) ** alpha_N - (S_c / fewest) ** alpha_S

    return math.exp(brentq(excess, -8.0, 25.0, xtol=1e-14))


def chinchilla(
    parameters: float, batch_size: float, steps: float, *, E: float, A: float, alpha: float, B_D: float, beta: float
) -> float:
    """Equation 2 of Hoffmann et al. (2022)."""
    return E + A / parameters**alpha + B_D / (batch_size * steps) ** beta
