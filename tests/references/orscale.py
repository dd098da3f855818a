"""OrScale in float64 from its formula: the slow twin of ``cbs.optimizers.orscale`` (arXiv 2605.07815)."""

from __future__ import annotations

import math

import numpy as np

from tests.references.muon import Momentum, newton_schulz


class OrScaleTwin:
    """One matrix under OrScale in either form."""

    def __init__(
        self,
        w: np.ndarray,
        lr: float,
        *,
        form: str,
        weight_decay: float,
        r_min: float,
        r_max: float,
        ratio_eps: float = 1e-6,
        momentum: float = 0.95,
        steps: int = 5,
    ) -> None:
        self.w = np.array(w, dtype=np.float64)
        self.momentum = Momentum(self.w.shape, momentum, nesterov=True)
        self.lr, self.weight_decay, self.bounds, self.eps = lr, weight_decay, (r_min, r_max), ratio_eps
        self.steps, self.ratio = steps, math.nan
        self.s = 0.2 * math.sqrt(max(self.w.shape)) if form == "lm" else 1.0
        self.c = None if form == "lm" else 1.0

    def step(self, g: np.ndarray) -> np.ndarray:
        d = self.weight_decay * self.w + self.s * newton_schulz(self.momentum.step(g), self.steps)
        w_norm, d_norm = frobenius(self.w), frobenius(d)
        if self.c is None and w_norm > 0 and d_norm > 0:
            self.c = w_norm / d_norm
        ratio = 1.0 if self.c is None else w_norm / (self.c * d_norm + self.eps)
        self.ratio = min(max(ratio, self.bounds[0]), self.bounds[1])
        self.w = self.w - self.lr * self.ratio * d
        return self.w


def frobenius(matrix: np.ndarray) -> float:
    """Square root of the sum of squares."""
    return math.sqrt(sum(float(entry) ** 2 for entry in matrix.flatten()))
