r"""Expected loss of linear methods on a noisy quadratic in closed form, for all settings and batch sizes at once.

Every method here is a linear recurrence of second order in each coordinate. With its two roots :math:`r_a = 1 - q_a`
the parameters after k steps are the start times :math:`\sum_a \beta_a r_a^k`, plus the gradient noise of j + 1 steps
before times :math:`\sum_a \alpha_a r_a^j`, for each j below k. The second moment is therefore

.. math::
    E \theta_k^2 = s_0 \Big(\sum_a \beta_a r_a^k\Big)^2
        + \frac{\eta^2 c}{B} \sum_{ab} \alpha_a \alpha_b \frac{1 - (r_a r_b)^k}{1 - r_a r_b}.

The noise enters as 1/B, so the roots serve every batch size, and powers of two of k cost a multiplication each. Written
in q, which is small where a coordinate is slow, nothing is lost to rounding. The methods, with :math:`x = \eta h^{1-p}`
for a preconditioner :math:`h^{-p}` (p = 0 plain, 1/2 Adam's kin, 1 Newton):

- SGD, :math:`\theta' = \theta - \eta g`: one root, q = x;
- heavy ball, :math:`v' = m v - \eta g,\ \theta' = \theta + v'`: :math:`q^2 - (1 - m + x) q + x = 0`
  (arXiv:1907.04164, equation 21);
- Nesterov as torch has it, evaluated where the gradient is taken: :math:`q^2 - (1 - m + (1 + m) x) q + x = 0`;
- the average of SGD's iterates :math:`e' = m e + (1 - m) \theta'` from :math:`e_0 = \theta_0`: q = x and 1 - m
  (equation 38).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from cbs.theory.noisy_quadratic.model import NoisyQuadratic

METHODS = ("sgd", "heavy_ball", "nesterov", "averaged")
"""The methods; ``momentum`` is the decay of the average for the last, and must be 0 for the first."""

APART = 3e-6
"""Roots closer than this part of their size are moved apart by as much: both sums and differences keep five digits."""


@dataclass(frozen=True, kw_only=True)
class Modes:
    """A method at given settings; every loss is of shape ``[...]``, the shape of the settings.

    Attributes:
        log_roots: logarithms of the two roots, complex, ``[2, ..., d]``.
        start: weights of the products of two roots' powers in the loss from the start, ``[3, ..., d]``: of the first
            squared, of both, of the second squared.
        noise: the same for the stationary loss per unit of ``1/B``.
        stable: whether no coordinate grows without bound, ``[...]``.
        initial: the loss at step 0.
    """

    log_roots: np.ndarray
    start: np.ndarray
    noise: np.ndarray
    stable: np.ndarray
    initial: float

    def loss(self, steps: int, batch_size: float) -> np.ndarray:
        """Expected loss after ``steps`` steps; infinity where it exceeds every number."""
        return combined(*self.parts(self.powers(steps)), batch_size)

    def losses(self, steps: int, batch_size: float) -> np.ndarray:
        """Expected loss after 0, 1, ..., ``steps`` steps, shape ``[..., steps + 1]``; costs one matrix product."""
        width = math.isqrt(steps) + 1
        with np.errstate(all="ignore"):
            weights = self.start - self.noise / batch_size
            # Step i + width * j is the product of what i and width * j steps do to each pair of roots.
            fine = np.stack([self._pairs(self.powers(step)) for step in range(width)], -1)
            coarse = np.stack([weights * self._pairs(self.powers(width * j)) for j in range(width)], -1)
            rows, columns = (np.moveaxis(part, 0, -3).reshape(*self.stable.shape, -1, width) for part in (coarse, fine))
            varying = (rows.swapaxes(-1, -2) @ columns).real
            table = varying + self.noise.real.sum((0, -1))[..., None, None] / batch_size
        return np.nan_to_num(table.reshape(*self.stable.shape, -1)[..., : steps + 1], nan=np.inf, posinf=np.inf)

    def floor(self, batch_size: float) -> np.ndarray:
        """Expected loss after infinitely many steps; infinity where the method is unstable."""
        return np.where(self.stable, self.noise.real.sum((0, -1)) / batch_size, np.inf)

    def steps_to_target(self, target: float, batch_size: float, limit: int = 1_000_000) -> float:
        """First step at or below ``target``, infinity if there is none up to ``limit``; of one setting.

        Every step is looked at, so a loss that oscillates or rises again is no trouble.
        """
        horizon = 1023
        while True:
            below = self.losses(min(horizon, limit), batch_size) <= target
            if below.any():
                return float(below.argmax())
            if horizon >= limit:
                return np.inf
            horizon = 8 * horizon + 7

    def at(self, chosen: np.ndarray) -> Modes:
        """The settings that ``chosen`` indexes, along the flattened shape."""
        width = self.start.shape[-1]
        return Modes(
            log_roots=self.log_roots.reshape(2, -1, width)[:, chosen],
            start=self.start.reshape(3, -1, width)[:, chosen],
            noise=self.noise.reshape(3, -1, width)[:, chosen],
            stable=self.stable.reshape(-1)[chosen],
            initial=self.initial,
        )

    def powers(self, steps: int) -> np.ndarray:
        """The roots to the power of ``steps``."""
        with np.errstate(all="ignore"):
            return np.exp(steps * self.log_roots) if steps else np.ones_like(self.log_roots)

    def parts(self, powers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The loss from the start and that from noise per unit of ``1/B``, from :meth:`powers`."""
        with np.errstate(all="ignore"):
            pairs = self._pairs(powers)
            return (self.start * pairs).real.sum((0, -1)), (self.noise * (1.0 - pairs)).real.sum((0, -1))

    @staticmethod
    def _pairs(powers: np.ndarray) -> np.ndarray:
        return np.stack([powers[0] ** 2, powers[0] * powers[1], powers[1] ** 2])


def combined(from_start: np.ndarray, from_noise: np.ndarray, batch_size: float) -> np.ndarray:
    """The loss at a batch size; infinity for what is no number."""
    with np.errstate(all="ignore"):
        return np.nan_to_num(from_start + from_noise / batch_size, nan=np.inf, posinf=np.inf)


def modes(
    model: NoisyQuadratic,
    method: str,
    lr: float | np.ndarray,
    momentum: float | np.ndarray = 0.0,
    *,
    power: float = 0.0,
    cushion: float = 0.0,
) -> Modes:
    """A method on a model at some settings.

    Args:
        model: the noisy quadratic.
        method: one of :data:`METHODS`.
        lr: learning rate, a number or any shape.
        momentum: in [0, 1), of a shape that broadcasts with that of ``lr``; the decay of the average if ``averaged``.
        power: the exponent p of the preconditioner.
        cushion: added to ``1 - (1 - x)^2`` in the stationary moment of SGD, as the authors' notebook does.

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
    with np.errstate(divide="ignore"):
        scale = np.where(model.curvature > 0, model.curvature**-power, 0.0)
    x = lr * scale * model.curvature
    # Where the curvature is 0 nothing is lost by the walk that noise takes: the loss does not see it.
    x = np.where(x > 0, x, 1e-300)
    if method in ("sgd", "averaged"):
        first, second = x.astype(complex), np.broadcast_to(1.0 - m, x.shape).astype(complex)
    else:
        half = (1.0 - m + x * (1.0 + m if method == "nesterov" else 1.0)) / 2.0
        first, second = _roots(half, x)
    meet = np.abs(second - first) < APART * np.abs(second)
    first, second = np.where(meet, first * (1.0 - APART), first), np.where(meet, second * (1.0 + APART), second)
    alpha, beta = _weights(method, first, second, m)
    with np.errstate(all="ignore"):
        log_roots = np.stack([np.log1p(-first), np.log1p(-second)])
        decays = np.stack([first * (2.0 - first), first + second - first * second, second * (2.0 - second)])
        decays += cushion if method == "sgd" else 0.0
        weight = 0.5 * model.count * model.curvature
        twice = np.array([1.0, 2.0, 1.0]).reshape(3, *[1] * x.ndim)
        start = weight * model.start * twice * _products(beta)
        noise = weight * (lr * scale) ** 2 * model.noise * twice * _products(alpha) / decays
    grows = (np.abs(1.0 - np.stack([first, second])) >= 1.0) & (x > 1e-300)
    return Modes(
        log_roots=log_roots,
        start=start,
        noise=noise,
        stable=np.asarray(~grows.any((0, -1))),
        initial=model.initial_loss,
    )


def _roots(half: np.ndarray, product: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The roots of ``q^2 - 2 half q + product``, the smaller first, without cancellation."""
    large = half + np.sqrt((half**2 - product).astype(complex))
    return product / large, large


def _weights(method: str, first: np.ndarray, second: np.ndarray, m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``alpha`` and ``beta`` of the roots ``1 - first`` and ``1 - second``."""
    r, others, gap = np.stack([1.0 - first, 1.0 - second]), np.stack([second, first]), second - first
    signed = np.stack([1.0 / gap, -1.0 / gap])
    if method == "sgd":
        return np.stack([np.ones_like(gap), np.zeros_like(gap)]), np.stack([np.ones_like(gap), np.zeros_like(gap)])
    if method == "averaged":
        share = (1.0 - m) * r[0] / gap
        return (1.0 - m) * signed * r, np.stack([share, 1.0 - share])
    # What torch's parameters hold under Nesterov is a step of momentum ahead.
    ahead = (1.0 + m) * r - m if method == "nesterov" else r
    return signed * ahead, signed * others * ahead


def _products(weights: np.ndarray) -> np.ndarray:
    return np.stack([weights[0] ** 2, weights[0] * weights[1], weights[1] ** 2])
