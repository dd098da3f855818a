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

import functools
import math
from dataclasses import dataclass

import numpy as np

from analysis.extensions.theory.noisy_quadratic.model import NoisyQuadratic

METHODS = ("sgd", "heavy_ball", "nesterov", "averaged")
"""The methods; ``momentum`` is the decay of the average for the last, and must be 0 for the first."""

APART = 3e-6
"""Roots closer than this part of their size are moved apart by as much: both sums and differences keep five digits."""

EDGE = 1e-8
"""How close to -1 a root may come."""


@dataclass(frozen=True, kw_only=True)
class Modes:
    """A method at given settings; every loss is of shape ``[...]``, the shape of the settings.

    Attributes:
        roots: for each of the d coordinates the size of the only one, as the loss sees squares of it, or both; shape
            ``[..., 1 or 2, d]``.
        start: weights of the roots' powers in what is left of the start, of which the loss is the sum of squares; shape
            of the roots.
        noise: weights of the products of two roots' powers in the stationary loss per unit of ``1/B``, ``[..., pairs *
            d]``: of the first squared and, where there are two, of both and of the second squared.
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
        """Expected loss after ``steps`` steps; infinity where it exceeds every number."""
        with np.errstate(all="ignore"):
            from_start, from_noise = self.parts(self.powers(steps))
            return np.nan_to_num(from_start + from_noise / batch_size, nan=np.inf, posinf=np.inf)

    def losses(self, steps: int, batch_size: float) -> np.ndarray:
        """Expected loss after 0, 1, ..., ``steps`` steps, shape ``[..., steps + 1]``; costs one matrix product."""
        width = math.isqrt(steps) + 1
        with np.errstate(all="ignore"):
            weights = pairs(self.start, 2.0) - self.noise / batch_size
            # Step i + width * j is the product of what i and width * j steps do to each pair of roots.
            fine = np.stack([pairs(self.powers(step)) for step in range(width)], -1)
            coarse = np.stack([weights * pairs(self.powers(width * j)) for j in range(width)], -2)
            table = (coarse @ fine).real + self.rest[..., None, None] / batch_size
        losses = np.nan_to_num(table.reshape(*self.stable.shape, -1)[..., : steps + 1], nan=np.inf, posinf=np.inf)
        losses[..., 0] = self.initial
        return losses

    def floor(self, batch_size: float) -> np.ndarray:
        """Expected loss after infinitely many steps; infinity where the method is unstable."""
        return np.where(self.stable, self.rest / batch_size, np.inf)

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
        """The settings that ``chosen`` indexes; of a row of settings."""
        return Modes(
            roots=self.roots[chosen],
            start=self.start[chosen],
            noise=self.noise[chosen],
            rest=self.rest[chosen],
            stable=self.stable[chosen],
            initial=self.initial,
        )

    @functools.cached_property
    def _logs(self) -> np.ndarray:
        return np.log(self.roots)

    def powers(self, steps: int | np.ndarray) -> np.ndarray:
        """The roots to the power of ``steps``, a number, or numbers above 0 of a shape that fits the roots'."""
        return np.exp(steps * self._logs) if np.any(steps) else np.ones_like(self.roots)

    def parts(self, powers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The loss from the start and that from noise per unit of ``1/B``, from :meth:`powers`."""
        return self.from_start(powers), self.rest - np.einsum("...i,...i->...", self.noise, pairs(powers)).real

    def from_start(self, powers: np.ndarray) -> np.ndarray:
        """The loss from the start alone, which noise only adds to."""
        each = self.start * powers
        left = each[..., 0, :] if each.shape[-2] == 1 else (each[..., 0, :] + each[..., 1, :]).real
        return np.einsum("...i,...i->...", left, left)


def pairs(powers: np.ndarray, mixed: float = 1.0) -> np.ndarray:
    """Products of two powers of roots, shape ``[..., pairs * d]``, those of unlike roots times ``mixed``."""
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
    scale = model.preconditioner(power)
    x = lr * scale * model.curvature
    # Where the curvature is 0 nothing is lost by the walk that noise takes: the loss does not see it.
    x = np.where(x > 0, x, 1e-300)
    if method == "sgd":
        gaps = [x]
    elif method == "averaged":
        gaps = _apart(x, np.broadcast_to(1.0 - m, x.shape))
    else:
        gaps = _apart(*_roots((1.0 - m + x * (1.0 + m if method == "nesterov" else 1.0)) / 2.0, x))
    # A root of -1 lets noise pile up without end, by a limit of what is divided below.
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


def _roots(half: np.ndarray, product: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The roots of ``q^2 - 2 half q + product``, the smaller first, without cancellation."""
    large = half + np.sqrt((half**2 - product).astype(complex))
    return product / large, large


def _apart(first: np.ndarray, second: np.ndarray) -> list[np.ndarray]:
    meet = np.abs(second - first) < APART * np.abs(second)
    return [np.where(meet, first * (1.0 - APART), first), np.where(meet, second * (1.0 + APART), second)]


def _weights(method: str, gaps: list[np.ndarray], m: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """``alpha`` and ``beta`` of the roots ``1 - q``; ``gaps`` holds the q."""
    if method == "sgd":
        return [np.ones_like(gaps[0])], [np.ones_like(gaps[0])]
    first, second = gaps
    apart = second - first
    if method == "averaged":
        share = (1.0 - m) * (1.0 - first) / apart
        return [share, (m - 1.0) * (1.0 - second) / apart], [share, 1.0 - share]
    # What torch's parameters hold under Nesterov is a step of momentum ahead.
    ahead = [(1.0 + m) * (1.0 - q) - m if method == "nesterov" else 1.0 - q for q in gaps]
    alpha = [ahead[0] / apart, -ahead[1] / apart]
    return alpha, [alpha[0] * second, alpha[1] * first]


def _twos(values: list[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Both of the first, one of each, both of the second."""
    return [(one, other) for index, one in enumerate(values) for other in values[index:]]
