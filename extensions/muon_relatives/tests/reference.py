"""The slow twins: one matrix in float64, from the formulas."""

import math
from typing import Any

import numpy as np

from tests.references.muon import Momentum, MuonTwin, newton_schulz


class NorMuonTwin(MuonTwin):
    """Rows of the polar factor divided by the roots of their average squares, with its length."""

    def __init__(self, w: np.ndarray, lr: float, *, beta2: float, **options: Any) -> None:
        super().__init__(w, lr, **options)
        self.beta2, self.v = beta2, np.zeros(len(self.w))

    def direction(self, o: np.ndarray) -> np.ndarray:
        self.v = self.beta2 * self.v + (1 - self.beta2) * np.array([np.mean(row**2) for row in o])
        even = np.array([row / (math.sqrt(v) + 1e-10) for row, v in zip(o, self.v, strict=True)])
        return even * (np.linalg.norm(o) / (np.linalg.norm(even) + 1e-10))


class MonaTwin(MuonTwin):
    """The gradient plus ``acceleration`` times the average of its differences."""

    def __init__(
        self, w: np.ndarray, lr: float, *, acceleration_decay: float, acceleration: float | None = None, **options: Any
    ) -> None:
        super().__init__(w, lr, **options)
        self.decay, self.a, self.before = acceleration_decay, np.zeros(self.w.shape), None
        self.alpha = -1 / (2 * (1 - acceleration_decay)) if acceleration is None else acceleration

    def step(self, g: np.ndarray) -> np.ndarray:
        difference = g - (g if self.before is None else self.before)
        self.a, self.before = self.decay * self.a + (1 - self.decay) * difference, g
        return super().step(g + self.alpha * self.a)


class HyperballTwin:
    """One matrix under MuonH, or with ``beta2`` under AdamH: a step relative to the first norm, and back to it."""

    def __init__(
        self, w: np.ndarray, lr: float, *, momentum: float = 0.95, nesterov: bool = False, beta2: float | None = None
    ) -> None:
        self.w, self.lr, self.radius = np.array(w, dtype=np.float64), lr, np.linalg.norm(w)
        self.momentum, self.beta2, self.v = Momentum(self.w.shape, momentum, nesterov), beta2, np.zeros(self.w.shape)

    def step(self, g: np.ndarray) -> np.ndarray:
        m = self.momentum.step(g)
        if self.beta2 is None:
            o = newton_schulz(m, 5)
        else:
            self.v = self.beta2 * self.v + (1 - self.beta2) * g**2
            o = m * (1 - self.momentum.beta) / (np.sqrt(self.v) + 1e-8)
        length = np.linalg.norm(o)
        moved = self.w - self.lr * self.radius * (o / length if length > 0 else o)
        self.w = self.radius * moved / np.linalg.norm(moved)
        return self.w
