"""LAMB, entry by entry: the slow twin of ``cbs.optimizers.LAMB`` (arXiv 1904.00962, Algorithm 2)."""

import math

import numpy as np

from tests.references.merit import euclidean


class LambTwin:
    """One tensor under LAMB, in float64; :meth:`step` updates ``w`` in place. Options as in ``LAMB``."""

    def __init__(
        self,
        w: np.ndarray,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        *,
        bias_correction: bool = True,
        gamma_l: float = 0.0,
        gamma_u: float | None = None,
        ratio_from_ndim: int = 0,
        decay_from_ndim: int = 0,
    ) -> None:
        self.w = np.array(w, dtype=np.float64)
        self.m = np.zeros_like(self.w)
        self.v = np.zeros_like(self.w)
        self.t = 0
        self.lr, self.betas, self.eps = lr, betas, eps
        self.weight_decay = weight_decay if self.w.ndim >= decay_from_ndim else 0.0
        self.bias_correction, self.gamma_l, self.gamma_u = bias_correction, gamma_l, gamma_u
        self.scaled = self.w.ndim >= ratio_from_ndim

    def step(self, g: np.ndarray) -> np.ndarray:
        beta1, beta2 = self.betas
        self.t += 1
        d = np.zeros_like(self.w)
        for index in np.ndindex(self.w.shape):
            self.m[index] = beta1 * self.m[index] + (1 - beta1) * g[index]
            self.v[index] = beta2 * self.v[index] + (1 - beta2) * g[index] ** 2
            m, v = self.m[index], self.v[index]
            if self.bias_correction:
                m, v = m / (1 - beta1**self.t), v / (1 - beta2**self.t)
            d[index] = m / (math.sqrt(v) + self.eps) + self.weight_decay * self.w[index]
        phi, d_norm = max(euclidean(self.w), self.gamma_l), euclidean(d)
        if self.gamma_u is not None:
            phi = min(phi, self.gamma_u)
        ratio = phi / d_norm if self.scaled and phi > 0 and d_norm > 0 else 1.0
        for index in np.ndindex(self.w.shape):
            self.w[index] = self.w[index] - self.lr * ratio * d[index]
        return self.w
