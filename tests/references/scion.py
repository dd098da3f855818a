"""Scion in float64 from its formula: the slow twin of ``cbs.optimizers.scion`` (Pethick et al., arXiv 2502.07529)."""

from __future__ import annotations

import math

import numpy as np

from tests.references.muon import newton_schulz, polar


class ScionTwin:
    """One parameter under Scion; ``ball`` is ``"spectral"``, ``"sign"`` or ``"rms"``. ``steps`` None is exact."""

    def __init__(
        self,
        w: np.ndarray,
        lr: float,
        *,
        ball: str,
        radius: float,
        constrained: bool,
        alpha: float = 0.1,
        steps: int | None = 5,
    ) -> None:
        self.w = np.array(w, dtype=np.float64)
        self.d = np.zeros_like(self.w)
        self.lr, self.ball, self.radius, self.constrained, self.alpha = lr, ball, radius, constrained, alpha
        self.steps = steps

    def step(self, g: np.ndarray) -> np.ndarray:
        self.d = (1 - self.alpha) * self.d + self.alpha * g
        start = (1 - self.lr) * self.w if self.constrained else self.w
        self.w = start + self.lr * self.lmo()
        return self.w

    def lmo(self) -> np.ndarray:
        if self.ball == "spectral":
            d_out, d_in = self.d.shape
            factor = polar(self.d) if self.steps is None else newton_schulz(self.d, self.steps)
            return -self.radius * math.sqrt(d_out / d_in) * factor
        if self.ball == "sign":
            return -(self.radius / self.d.shape[1]) * np.sign(self.d)
        rms = math.sqrt(sum(float(entry) ** 2 for entry in self.d.flatten()) / self.d.size)
        return -self.radius * self.d / rms if rms > 0 else np.zeros_like(self.d)
