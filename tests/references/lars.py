"""LARS, entry by entry: the slow twin of ``cbs.optimizers.LARS`` (arXiv 1708.03888)."""

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
        trust_coefficient: float = 1e-3,
        ratio_from_ndim: int = 0,
        decay_from_ndim: int = 0,
    ) -> None:
        self.w = np.array(w, dtype=np.float64)
        self.buffer = np.zeros_like(self.w)
        self.lr, self.momentum = lr, momentum
        self.weight_decay = weight_decay if self.w.ndim >= decay_from_ndim else 0.0
        self.coefficient = trust_coefficient
        self.scaled = self.w.ndim >= ratio_from_ndim

    def step(self, g: np.ndarray) -> np.ndarray:
        decayed = np.zeros_like(self.w)
        for index in np.ndindex(self.w.shape):
            decayed[index] = g[index] + self.weight_decay * self.w[index]
        w_norm = euclidean(self.w)
        ratio = self.ratio(w_norm, euclidean(g), self.weight_decay * w_norm)
        for index in np.ndindex(self.w.shape):
            self.buffer[index] = self.momentum * self.buffer[index] + self.lr * ratio * decayed[index]
            self.w[index] -= self.buffer[index]
        return self.w

    def ratio(self, w_norm: float, other: float, more: float) -> float:
        if not self.scaled:
            return 1.0
        if w_norm == 0 or other == 0:
            return self.coefficient
        return self.coefficient * w_norm / (other + more)
