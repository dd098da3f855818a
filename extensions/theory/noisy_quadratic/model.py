r"""The noisy quadratic model: curvatures, noise and start, and quantities that are known without training.

The loss is :math:`\frac12 \sum_i h_i \theta_i^2` and the gradient of a batch of B examples is :math:`h_i \theta_i` plus
independent noise of variance :math:`c_i/B` (Zhang et al. 2019, "Which Algorithmic Choices Matter at Which Batch
Sizes?", arXiv:1907.04164). The coordinates are independent.
"""

from __future__ import annotations

import functools
import math
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
        # Curvatures of 0 share a bin behind all others.
        bins = np.where(h > 0, np.floor((logs.max(initial=-np.inf, where=h > 0) - logs) / np.log(ratio)), 1e300)
        starts = np.flatnonzero(np.diff(bins, prepend=-1.0))
        count = np.add.reduceat(self.count[order], starts)

        def mean(values: np.ndarray) -> np.ndarray:
            return np.add.reduceat((values * self.count)[order], starts) / np.where(count > 0, count, 1.0)

        return NoisyQuadratic(
            curvature=mean(self.curvature), noise=mean(self.noise), start=mean(self.start), count=count
        )

    @classmethod
    def binned(cls, dimension: int) -> NoisyQuadratic:
        """Return a model with curvature ``1/i`` rounded down to a hundred geometric values, as in the authors'
        notebook."""
        bins = 100
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


METHODS = ("sgd", "heavy_ball", "nesterov", "averaged")
"""The methods; ``momentum`` is the decay of the average for the last, and must be 0 for the first."""

# Roots closer than this fraction of their size are moved apart by as much, so that sums and differences keep five
# digits.
APART = 3e-6

EDGE = 1e-8  # Smallest distance of a root from -1


@dataclass(frozen=True, kw_only=True)
class Modes:
    r"""A method at given settings; every loss has the shape of the settings, ``[...]``.

    Attributes:
        roots: for each of the d coordinates the absolute value of the only root (the loss depends on its square), or
            both roots; shape ``[..., 1 or 2, d]``.
        start: weights :math:`w_a` of the powers of the roots; the loss from the start is the sum over coordinates of
            :math:`(\sum_a w_a r_a^k)^2`. Shape of ``roots``.
        noise: weights of products of the powers of two roots in the loss from noise per unit of ``1/B``, ``[..., pairs
            * d]``: for the square of the first and, if there are two, for their product and the square of the second.
        rest: the stationary loss per unit of ``1/B``, ``[...]``.
        stable: whether no coordinate grows without bound, ``[...]``.
        initial: the loss at step 0.
    """

    roots: np.ndarray
    start: np.ndarray
    noise: np.ndarray
    rest: np.ndarray
    stable: np.ndarray
    initial: float

    def loss(self, steps: int, batch_size: float) -> np.ndarray:
        """Return the expected loss after ``steps`` steps; infinity if it overflows."""
        with np.errstate(all="ignore"):
            from_start, from_noise = self.parts(self.powers(steps))
            return np.nan_to_num(from_start + from_noise / batch_size, nan=np.inf, posinf=np.inf)

    def losses(self, steps: int, batch_size: float) -> np.ndarray:
        """Return the expected loss after 0, 1, ..., ``steps`` steps, shape ``[..., steps + 1]``, by one matrix
        product."""
        width = math.isqrt(steps) + 1
        with np.errstate(all="ignore"):
            weights = pairs(self.start, 2.0) - self.noise / batch_size
            # the power i + width * j of each pair of roots is the product of its powers i and width * j
            fine = np.stack([pairs(self.powers(step)) for step in range(width)], -1)
            coarse = np.stack([weights * pairs(self.powers(width * j)) for j in range(width)], -2)
            table = (coarse @ fine).real + self.rest[..., None, None] / batch_size
        losses = np.nan_to_num(table.reshape(*self.stable.shape, -1)[..., : steps + 1], nan=np.inf, posinf=np.inf)
        losses[..., 0] = self.initial
        return losses

    def floor(self, batch_size: float) -> np.ndarray:
        """Return the expected loss after infinitely many steps; infinity if the method is unstable."""
        return np.where(self.stable, self.rest / batch_size, np.inf)

    def at(self, chosen: np.ndarray) -> Modes:
        """Return the settings that ``chosen`` indexes, from a row of settings."""
        parts = {name: getattr(self, name)[chosen] for name in ("roots", "start", "noise", "rest", "stable")}
        return Modes(**parts, initial=self.initial)

    @functools.cached_property
    def _logs(self) -> np.ndarray:
        return np.log(self.roots)

    def powers(self, steps: int | np.ndarray) -> np.ndarray:
        """Return the roots to the power of ``steps``, a number, or numbers above 0 that broadcast with the roots."""
        return np.exp(steps * self._logs) if np.any(steps) else np.ones_like(self.roots)

    def parts(self, powers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the loss from the start and that from noise per unit of ``1/B``, given :meth:`powers`."""
        return self.from_start(powers), self.rest - np.einsum("...i,...i->...", self.noise, pairs(powers)).real

    def from_start(self, powers: np.ndarray) -> np.ndarray:
        """Return the loss from the start alone, a lower bound of the loss."""
        each = self.start * powers
        left = each[..., 0, :] if each.shape[-2] == 1 else (each[..., 0, :] + each[..., 1, :]).real
        return np.einsum("...i,...i->...", left, left)


def pairs(powers: np.ndarray, mixed: float = 1.0) -> np.ndarray:
    """Return products of two powers of roots, shape ``[..., pairs * d]``; those of different roots times ``mixed``."""
    first = powers[..., 0, :]
    if powers.shape[-2] == 1:
        return first * first
    second = powers[..., 1, :]
    return np.concatenate([first * first, mixed * first * second, second * second], -1)


def modes_of(
    model: NoisyQuadratic,
    method: str,
    lr: float | np.ndarray,
    momentum: float | np.ndarray = 0.0,
    *,
    power: float = 0.0,
    cushion: float = 0.0,
) -> Modes:
    """Return the modes of one of :data:`METHODS` on a model at some settings.

    Args:
        lr: learning rate, a number or an array.
        momentum: in [0, 1), of a shape that broadcasts with that of ``lr``; the decay of the average for ``averaged``.
        power: the exponent p of the preconditioner.
        cushion: number added to ``1 - (1 - x)^2`` in the stationary moment of SGD, as in the authors' notebook.

    Raises:
        ValueError: if there is no such method, or a value is outside its domain.
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    lr, m = np.broadcast_arrays(np.asarray(lr, float)[..., None], np.asarray(momentum, float)[..., None])
    if not ((lr >= 0) & np.isfinite(lr)).all():
        raise ValueError("learning rates must be finite and at least 0")
    if not ((m >= 0) & (m < 1)).all() or (method == "sgd" and m.any()):
        raise ValueError("momentum must be in [0, 1), and 0 for sgd")
    scale = model.preconditioner(power)
    x = lr * scale * model.curvature
    # Where the curvature is 0, the random walk due to noise does not matter, because it does not change the loss.
    x = np.where(x > 0, x, 1e-300)
    if method == "sgd":
        gaps = [x]
    elif method == "averaged":
        gaps = _apart(x, np.broadcast_to(1.0 - m, x.shape))
    else:
        # the roots of q^2 - 2 half q + x, the smaller first, without cancellation
        half = (1.0 - m + x * (1.0 + m if method == "nesterov" else 1.0)) / 2.0
        large = half + np.sqrt((half**2 - x).astype(complex))
        gaps = _apart(x / large, large)
    # With a root of -1 noise accumulates without end; the limit keeps the divisions below finite.
    gaps = [np.where(np.abs(2.0 - gap) < EDGE, gap * (1.0 - EDGE), gap) for gap in gaps]
    alpha, beta = (np.stack(weights, -2) for weights in _weights(method, gaps, m))
    weight = 0.5 * model.count * model.curvature
    with np.errstate(all="ignore"):
        decays = np.concatenate([one + other - one * other for one, other in _twos(gaps)], -1)
        kicked = weight * (lr * scale) ** 2 * model.noise
        noise = np.tile(kicked, len(_twos(gaps))) * pairs(alpha, 2.0) / (decays + (cushion if method == "sgd" else 0.0))
    roots = np.stack([1.0 - gap for gap in gaps], -2)
    sizes = np.abs(roots)
    grows = ((sizes >= 1.0 - 4.0 * EDGE) & (roots.real < 0.0)) | ((sizes >= 1.0) & (x > 1e-300)[..., None, :])
    return Modes(
        roots=sizes if method == "sgd" else roots.astype(complex),
        start=np.sqrt(weight * model.start) * beta,
        noise=noise,
        rest=noise.real.sum(-1),
        stable=np.asarray(~grows.any((-1, -2))),
        initial=model.initial_loss,
    )


def _apart(first: np.ndarray, second: np.ndarray) -> list[np.ndarray]:
    meet = np.abs(second - first) < APART * np.abs(second)
    return [np.where(meet, first * (1.0 - APART), first), np.where(meet, second * (1.0 + APART), second)]


def _weights(method: str, gaps: list[np.ndarray], m: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return ``alpha`` and ``beta`` of the roots ``1 - q``; ``gaps`` holds the q."""
    if method == "sgd":
        return [np.ones_like(gaps[0])], [np.ones_like(gaps[0])]
    first, second = gaps
    apart = second - first
    if method == "averaged":
        share = (1.0 - m) * (1.0 - first) / apart
        return [share, (m - 1.0) * (1.0 - second) / apart], [share, 1.0 - share]
    # Under Nesterov, torch's parameters are one momentum step ahead.
    ahead = [(1.0 + m) * (1.0 - q) - m if method == "nesterov" else 1.0 - q for q in gaps]
    alpha = [ahead[0] / apart, -ahead[1] / apart]
    return alpha, [alpha[0] * second, alpha[1] * first]


def _twos(values: list[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return pairs: the first twice, first and second, the second twice."""
    return [(one, other) for index, one in enumerate(values) for other in values[index:]]
