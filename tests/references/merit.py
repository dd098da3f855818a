"""MERIT, entry by entry: the slow twin of ``cbs.optimizers.MERIT`` (arXiv 2508.20577, Algorithm 1, released code)."""

from __future__ import annotations

import math

import numpy as np


class MeritTwin:
    """One tensor under MERIT, in float64; :meth:`step` updates ``w`` in place."""

    def __init__(self, w: np.ndarray, lr: float, betas: tuple[float, float], eps: float, weight_decay: float) -> None:
        self.w = np.array(w, dtype=np.float64)
        self.m = np.zeros_like(self.w)
        self.v = np.zeros_like(self.w)
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay

    def step(self, g: np.ndarray) -> np.ndarray:
        beta1, beta2 = self.betas
        d = np.zeros_like(self.w)
        for index in np.ndindex(self.w.shape):
            self.m[index] = beta1 * self.m[index] + (1 - beta1) * g[index]
            self.v[index] = beta2 * self.v[index] + (1 - beta2) * g[index] ** 2
            d[index] = self.m[index] / (math.sqrt(self.v[index]) + self.eps) + self.weight_decay * self.w[index]
        before = self.w.copy()
        for index in np.ndindex(self.w.shape):
            s = elementwise_ratio(before, d, index)
            self.w[index] = before[index] - self.lr * min(max(s * d[index], -1.0), 1.0)
        return self.w


def elementwise_ratio(w: np.ndarray, d: np.ndarray, index: tuple[int, ...]) -> float:
    """The factor s of one entry."""
    w_all, d_all = largest(w), largest(d)
    if w.ndim < 2:
        return w_all / d_all if w_all > 0 and d_all > 0 else 1.0
    row = (index[0], slice(None), *index[2:])
    column = (slice(None), *index[1:])
    w_row, d_row, w_column, d_column = largest(w[row]), largest(d[row]), largest(w[column]), largest(d[column])
    if w_row == 0 or d_row == 0 or w_column == 0 or d_column == 0:
        return 1.0
    return max(w_row / d_row, w_column / d_column, w_all / d_all)


def largest(entries: np.ndarray) -> float:
    """The largest absolute value."""
    return max(abs(float(entry)) for entry in entries.flatten())
