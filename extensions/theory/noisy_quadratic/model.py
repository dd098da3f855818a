r"""The noisy quadratic model: curvatures, noise and start, and quantities that are known without training.

The loss is :math:`\frac12 \sum_i h_i \theta_i^2` and the gradient of a batch of B examples is :math:`h_i \theta_i` plus
independent noise of variance :math:`c_i/B` (Zhang et al. 2019, "Which Algorithmic Choices Matter at Which Batch
Sizes?", arXiv:1907.04164). The coordinates are independent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class NoisyQuadratic:
    """The noisy quadratic model.

    Attributes:
        curvature: ``h``, eigenvalues of the Hessian, at least 0, shape ``[d]``.
        noise: ``c``, variance of a single example's gradient noise, at least 0, shape ``[d]``.
        start: ``s_0``, second moment of the initial parameters, shape ``[d]``.
        count: number of coordinates that share each entry, shape ``[d]``.

    Raises:
        ValueError: if shapes differ, there is no coordinate, or a value is negative or not finite.
    """

    curvature: np.ndarray
    noise: np.ndarray
    start: np.ndarray
    count: np.ndarray

    def __post_init__(self) -> None:
        for name in ("curvature", "noise", "start", "count"):
            values = getattr(self, name)
            if values.ndim != 1 or values.shape != self.curvature.shape or not len(values):
                raise ValueError(f"{name} must be a vector as long as curvature, got shape {values.shape}")
            if not (np.isfinite(values).all() and (values >= 0).all()):
                raise ValueError(f"{name} must be finite and at least 0")

    @classmethod
    def power_law(cls, dimension: int, *, power: float = 1.0, noise: float = 1.0) -> NoisyQuadratic:
        """Return a model with curvature ``i^-power`` for ``i = 1 ... dimension``, noise ``noise * curvature``, unit
        start."""
        curvature = np.arange(1, dimension + 1) ** -float(power)
        ones = np.ones(dimension)
        return cls(curvature=curvature, noise=noise * curvature, start=ones, count=ones)

    def grouped(self, ratio: float = 1.01) -> NoisyQuadratic:
        """Return the model with curvatures that differ by less than ``ratio`` merged, each group at its mean.

        Losses change by about the square of ``ratio - 1``.
        """
        order = np.argsort(-self.curvature)
        h = self.curvature[order]
        with np.errstate(divide="ignore"):
            logs = np.where(h > 0, np.log(np.where(h > 0, h, 1.0)), -np.inf)
        bins = np.where(h > 0, np.floor((logs.max(initial=-np.inf, where=h > 0) - logs) / np.log(ratio)), 1e300)
        starts = np.flatnonzero(np.diff(bins, prepend=-1.0))
        count = np.add.reduceat(self.count[order], starts)

        def mean(values: np.ndarray) -> np.ndarray:
            return np.add.reduceat((values * self.count)[order], starts) / np.where(count > 0, count, 1.0)

        return NoisyQuadratic(
            curvature=mean(self.curvature), noise=mean(self.noise), start=mean(self.start), count=count
        )

    @classmethod
    def binned(cls, dimension: int, bins: int = 100) -> NoisyQuadratic:
        """Return a model with curvature ``1/i`` rounded down to ``bins`` geometric values, as in the authors'
        notebook."""
        values = np.geomspace(1.0, 1.0 / dimension, bins)
        index = np.searchsorted(-values, -cls.power_law(dimension).curvature).clip(max=bins - 1)
        count = np.bincount(index, minlength=bins).astype(float)
        return cls(curvature=values, noise=values, start=np.ones(bins), count=count)

    @property
    def initial_loss(self) -> float:
        """Expected loss before the first step."""
        return float(0.5 * (self.count * self.curvature * self.start).sum())

    @property
    def noise_trace(self) -> float:
        """Trace of the covariance of a single example's gradient, the same at every point."""
        return float((self.count * self.noise).sum())

    def lower_bound(self, batch_size: float, target: float) -> float:
        """Return a lower bound of the steps of all methods of the paper for ``c = h``: ``d / (2 * target *
        batch_size)``."""
        return float(self.count.sum() / (2.0 * target * batch_size))

    def preconditioner(self, power: float) -> np.ndarray:
        """Return ``h ** -power``, 0 where the curvature is 0, shape ``[d]``."""
        with np.errstate(divide="ignore"):
            return np.where(self.curvature > 0, self.curvature**-power, 0.0)

    def largest_lr(self, power: float = 0.0, momentum: float = 0.0, *, nesterov: bool = False) -> float:
        """Return the learning rate at which the steepest coordinate becomes unstable.

        It is ``2 (1 + m) / max h^(1 - power)`` for heavy ball, and for Nesterov with ``(2 + 2m) / (1 + 2m)`` as
        numerator.
        """
        steepest = float((self.curvature[self.curvature > 0] ** (1.0 - power)).max(initial=0.0))
        if steepest == 0.0:
            return np.inf
        return 2.0 * (1.0 + momentum) / ((1.0 + 2.0 * momentum) if nesterov else 1.0) / steepest
