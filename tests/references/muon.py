"""Muon in float64 from its formulas: the slow twin of ``cbs.optimizers.muon``.

Jordan et al. 2024 (kellerjordan.github.io/posts/muon), Liu et al. 2025 (arXiv 2502.16982).
"""

import math

import numpy as np

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def singular_value_after(value: float, steps: int, coefficients: tuple[float, float, float] = COEFFICIENTS) -> float:
    """What ``steps`` Newton-Schulz steps make of one singular value."""
    a, b, c = coefficients
    for _ in range(steps):
        value = a * value + b * value**3 + c * value**5
    return value


def newton_schulz(g: np.ndarray, steps: int, coefficients: tuple[float, float, float] = COEFFICIENTS) -> np.ndarray:
    """The iteration through the singular values, which it maps one by one; the vectors stay."""
    u, s, v = np.linalg.svd(g, full_matrices=False)
    norm = max(math.sqrt(float((s**2).sum())), 1e-7)
    return sum(
        singular_value_after(float(value) / norm, steps, coefficients) * np.outer(left, right)
        for value, left, right in zip(s, u.T, v, strict=True)
    )


def polar(g: np.ndarray) -> np.ndarray:
    """Sum of u v^T over the singular vectors with a value above rounding."""
    u, s, v = np.linalg.svd(g, full_matrices=False)
    floor = s[0] * max(g.shape) * np.finfo(np.float64).eps
    terms = [np.outer(left, right) for value, left, right in zip(s, u.T, v, strict=True) if value > floor]
    return sum(terms, start=np.zeros_like(g))


class Momentum:
    """The sum M <- beta M + g and its Nesterov look-ahead, as papers write it; polar factors do not see its scale."""

    def __init__(self, shape: tuple[int, ...], beta: float, nesterov: bool) -> None:
        self.m, self.beta, self.nesterov = np.zeros(shape), beta, nesterov

    def step(self, g: np.ndarray) -> np.ndarray:
        self.m = self.beta * self.m + g
        return g + self.beta * self.m if self.nesterov else self.m


class MuonTwin:
    """One matrix under Muon; ``steps`` None takes the exact polar factor."""

    def __init__(
        self,
        w: np.ndarray,
        lr: float,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.0,
        steps: int | None = 5,
        lr_convention: str = "match_rms_adamw",
    ) -> None:
        self.w = np.array(w, dtype=np.float64)
        self.momentum = Momentum(self.w.shape, momentum, nesterov)
        self.lr, self.weight_decay, self.steps = lr, weight_decay, steps
        m, n = self.w.shape
        self.scale = 0.2 * math.sqrt(max(m, n)) if lr_convention == "match_rms_adamw" else math.sqrt(max(1.0, m / n))

    def direction(self, o: np.ndarray) -> np.ndarray:
        return o

    def step(self, g: np.ndarray) -> np.ndarray:
        hat = self.momentum.step(g)
        o = polar(hat) if self.steps is None else newton_schulz(hat, self.steps)
        self.w = self.w - self.lr * (self.scale * self.direction(o) + self.weight_decay * self.w)
        return self.w
