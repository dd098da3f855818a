r"""Expected loss of linear methods on a noisy quadratic in closed form, for all settings and batch sizes at once.

Every method here is a linear recurrence of second order in each coordinate. With its two roots :math:`r_a = 1 - q_a`,
the parameters after k steps are the start times :math:`\sum_a \beta_a r_a^k`, plus the gradient noise of j + 1 steps
earlier times :math:`\sum_a \alpha_a r_a^j`, for each j below k. The second moment is therefore

.. math::
    E \theta_k^2 = s_0 \Big(\sum_a \beta_a r_a^k\Big)^2
        + \frac{\eta^2 c}{B} \sum_{ab} \alpha_a \alpha_b \frac{1 - (r_a r_b)^k}{1 - r_a r_b}.

The noise enters as 1/B, so the same roots serve every batch size, and powers of two of k cost one multiplication each.
Written in q, which is small if a coordinate is slow, nothing is lost to rounding. The methods, with :math:`x = \eta
h^{1-p}` for a preconditioner :math:`h^{-p}` (p = 0 plain, 1/2 like Adam, 1 Newton):

- SGD, :math:`\theta' = \theta - \eta g`: one root, q = x;
- heavy ball, :math:`v' = m v - \eta g,\ \theta' = \theta + v'`: :math:`q^2 - (1 - m + x) q + x = 0`
  (arXiv:1907.04164, equation 21);
- Nesterov as in torch, evaluated where the gradient is taken: :math:`q^2 - (1 - m + (1 + m) x) q + x = 0`;
- the average of SGD's iterates :math:`e' = m e + (1 - m) \theta'` from :math:`e_0 = \theta_0`: q = x and 1 - m
  (equation 38).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from extensions.theory.noisy_quadratic.model import NoisyQuadratic

METHODS = ("sgd", "heavy_ball", "nesterov", "averaged")
"""The methods; ``momentum`` is the decay of the average for the last, and must be 0 for the first."""

APART = 3e-6
"""Roots closer than this fraction of their size are moved apart by as much, so that sums and differences keep five
digits."""

EDGE = 1e-8
"""Smallest distance of a root from -1."""


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
