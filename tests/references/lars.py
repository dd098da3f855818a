"""LARS, entry by entry: the slow twin of ``cbs.optimizers.LARS`` (arXiv 1708.03888, optax, arXiv 1904.00962)."""

from __future__ import annotations

import numpy as np

from tests.references.merit import euclidean


class LarsTwin:
    """One tensor under LARS, in float64; :meth:`step` updates ``w`` in place. Options as in ``LARS``."""

    def __init__(
        self,
        w: np.ndarray,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        *,
        variant: str = "paper",
        trust_coefficient: float | None = None,
        ratio_from_ndim: int = 0,
        decay_from_ndim: int = 0,
    ) -> None:
        self.w = np.array(w, dtype=np.float64)
        self.buffer = np.zeros_like(self.w)
        self.lr, self.momentum, self.variant = lr, momentum, variant
        self.weight_decay = weight_decay if self.w.ndim >= decay_from_ndim else 0.0
        self.coefficient = trust_coefficient
        if trust_coefficient is None:
            self.coefficient = 1.0 if variant == "lamb" else 0.001
        self.scaled = self.w.ndim >= ratio_from_ndim

    def step(self, g: np.ndarray) -> np.ndarray:
        decayed = np.zeros_like(self.w)
        for index in np.ndindex(self.w.shape):
            decayed[index] = g[index] + self.weight_decay * self.w[index]
        w_norm = euclidean(self.w)
        if self.variant == "lamb":
            for index in np.ndindex(self.w.shape):
                self.buffer[index] = self.momentum * self.buffer[index] + (1 - self.momentum) * decayed[index]
            ratio = self.ratio(w_norm, euclidean(self.buffer), 0.0)
            for index in np.ndindex(self.w.shape):
                self.w[index] -= self.lr * ratio * self.buffer[index]
            return self.w
        if self.variant == "paper":
            ratio = self.ratio(w_norm, euclidean(g), self.weight_decay * w_norm)
        else:
            ratio = self.ratio(w_norm, euclidean(decayed), 0.0)
        for index in np.ndindex(self.w.shape):
            self.buffer[index] = self.momentum * self.buffer[index] + self.lr * ratio * decayed[index]
            self.w[index] -= self.buffer[index]
        return self.w

    def ratio(self, w_norm: float, other: float, more: float) -> float:
        if not self.scaled:
            return 1.0
        if w_norm == 0 or other == 0:
            return 1.0 if self.variant == "optax" else self.coefficient
        return self.coefficient * w_norm / (other + more)
