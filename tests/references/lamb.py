"""LAMB, entry by entry: the slow twin of ``cbs.optimizers.LAMB`` (arXiv 1904.00962, Algorithm 2)."""

import numpy as np

from tests.references.merit import AdamTwin, euclidean


class LambTwin(AdamTwin):
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
        decay = weight_decay if np.ndim(w) >= decay_from_ndim else 0.0
        super().__init__(w, lr, betas, eps, decay, bias_correction)
        self.gamma_l, self.gamma_u = gamma_l, gamma_u
        self.scaled = self.w.ndim >= ratio_from_ndim

    def step(self, g: np.ndarray) -> np.ndarray:
        d = self.direction(g)
        phi, d_norm = max(euclidean(self.w), self.gamma_l), euclidean(d)
        if self.gamma_u is not None:
            phi = min(phi, self.gamma_u)
        ratio = phi / d_norm if self.scaled and phi > 0 and d_norm > 0 else 1.0
        for index in np.ndindex(self.w.shape):
            self.w[index] = self.w[index] - self.lr * ratio * d[index]
        return self.w
