"""LAMB, entry by entry: the slow twin of ``cbs.optimizers.LAMB`` (arXiv 1904.00962, Algorithm 2, phi(z) = z)."""

from __future__ import annotations

import math

import numpy as np


class LambTwin:
    """One tensor under LAMB, in float64; :meth:`step` updates ``w`` in place."""

    def __init__(self, w: np.ndarray, lr: float, betas: tuple[float, float], eps: float, weight_decay: float) -> None:
        self.w = np.array(w, dtype=np.float64)
        self.m = np.zeros_like(self.w)
        self.v = np.zeros_like(self.w)
        self.t = 0
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay

    def step(self, g: np.ndarray) -> np.ndarray:
        beta1, beta2 = self.betas
        self.t += 1
        d = np.zeros_like(self.w)
        for index in np.ndindex(self.w.shape):
            self.m[index] = beta1 * self.m[index] + (1 - beta1) * g[index]
            self.v[index] = beta2 * self.v[index] + (1 - beta2) * g[index] ** 2
            m_hat = self.m[index] / (1 - beta1**self.t)
            v_hat = self.v[index] / (1 - beta2**self.t)
            d[index] = m_hat / (math.sqrt(v_hat) + self.eps) + self.weight_decay * self.w[index]
        w_norm, d_norm = euclidean(self.w), euclidean(d)
        ratio = w_norm / d_norm if w_norm > 0 and d_norm > 0 else 1.0
        for index in np.ndindex(self.w.shape):
            self.w[index] = self.w[index] - self.lr * ratio * d[index]
        return self.w


def euclidean(entries: np.ndarray) -> float:
    """Square root of the sum of squares."""
    return math.sqrt(sum(float(entry) ** 2 for entry in entries.flatten()))
