"""MERIT, entry by entry: the slow twin of ``cbs.optimizers.MERIT`` (arXiv 2508.20577, and released code)."""

import math

import numpy as np


class AdamTwin:
    """One tensor, in float64, and the direction that Adam with weight decay has for it."""

    def __init__(
        self,
        w: np.ndarray,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        bias_correction: bool,
    ) -> None:
        self.w = np.array(w, dtype=np.float64)
        self.m = np.zeros_like(self.w)
        self.v = np.zeros_like(self.w)
        self.t = 0
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay
        self.bias_correction = bias_correction

    def direction(self, g: np.ndarray) -> np.ndarray:
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
        return d


class MeritTwin(AdamTwin):
    """One tensor under MERIT, in float64; :meth:`step` updates ``w`` in place. Options as in ``MERIT``."""

    def __init__(
        self,
        w: np.ndarray,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        *,
        bias_correction: bool = False,
        variant: str = "code",
        clip: float | None = 1.0,
        lower_bound: bool = True,
        elementwise: bool = True,
        norm: str = "max",
        ratio_from_ndim: int = 0,
        decay_from_ndim: int = 0,
    ) -> None:
        decay = weight_decay if np.ndim(w) >= decay_from_ndim else 0.0
        super().__init__(w, lr, betas, eps, decay, bias_correction)
        self.variant, self.clip = variant, clip
        self.lower_bound, self.elementwise = lower_bound, elementwise
        self.scaled = self.w.ndim >= ratio_from_ndim
        self.size = largest if norm == "max" else euclidean

    def step(self, g: np.ndarray) -> np.ndarray:
        d = self.direction(g)
        before = self.w.copy()
        for index in np.ndindex(self.w.shape):
            s = self.elementwise_ratio(before, d, index) if self.scaled else 1.0
            update = s * d[index]
            if self.clip is not None:
                update = min(max(update, -self.clip), self.clip)
            self.w[index] = before[index] - self.lr * update
        return self.w

    def elementwise_ratio(self, w: np.ndarray, d: np.ndarray, index: tuple[int, ...]) -> float:
        """The factor s of one entry."""
        w_all, d_all = self.size(w), self.size(d)
        if w.ndim < 2 or not self.elementwise:
            return w_all / d_all if w_all > 0 and d_all > 0 else 1.0
        if self.variant == "code":
            row: tuple = (index[0], slice(None), *index[2:])
            column: tuple = (slice(None), *index[1:])
        else:
            row, column = (index[0],), (slice(None), *index[1:])
        w_row, d_row, w_column, d_column = (
            self.size(w[row]),
            self.size(d[row]),
            self.size(w[column]),
            self.size(d[column]),
        )
        if self.variant == "code":
            if w_row == 0 or d_row == 0 or w_column == 0 or d_column == 0:
                return 1.0
        elif w_all == 0 or d_all == 0:
            return 1.0
        ratios = [w_row / d_row if d_row > 0 else 0.0, w_column / d_column if d_column > 0 else 0.0]
        return max([*ratios, w_all / d_all] if self.lower_bound else ratios)


def largest(entries: np.ndarray) -> float:
    """The largest absolute value."""
    return max(abs(float(entry)) for entry in entries.flatten())


def euclidean(entries: np.ndarray) -> float:
    """Square root of the sum of squares."""
    return math.sqrt(sum(float(entry) ** 2 for entry in entries.flatten()))
