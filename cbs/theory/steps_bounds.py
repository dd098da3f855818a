r"""Upper bounds on the steps to an accuracy, and the batch size of the fewest examples under them, in closed form.

Sato, Naganuma and Iiduka, arXiv:2507.01598, proposition 4.2: after T steps of batches of b examples an average is at
most :math:`X/T + Y b^{-p} + Z`, so an accuracy :math:`\epsilon` is reached within

.. math:: T(b) = \frac{X}{c - Y b^{-p}}, \qquad c = \epsilon - Z, \qquad b > b_0 = (Y/c)^{1/p}

steps (:class:`PowerBound`). ``T`` falls and is convex. The examples ``b T(b)`` (the complexity of the stochastic
first-order oracle, SFO) fall, then rise, and are least at :math:`b^* = ((1 + p) Y/c)^{1/p}`: :math:`9 Y^2/4 c^2` for
p = 1/2, :math:`2 Y/c` for p = 1. They are convex everywhere for p = 1 alone, for p = 1/2 up to :math:`4 b^*`. With
decoupled weight decay :math:`\lambda` the start is forgotten geometrically and the steps are a logarithm
(:class:`DecayBound`). At or below :math:`b_0` the bound does not exist: nothing is said about T.

:func:`sgd` and :func:`momentum` give X, Y and Z. Those of :func:`momentum` are of Cesista and Wen, "Critical batch size
for steepest descent under arbitrary norms", who generalise Sato et al.: every step has length ``lr`` in a norm, against
the momentum. Muon is the spectral norm, Signum the largest entry, normalised SGD the Euclidean length; SGD's own steps
are of no fixed length, and the bound is not about them. The learning rate is the same at every batch size.

These are upper bounds with constants that nobody observes. They may be far above the steps that training takes; that
they move in one direction does not force measured steps to move with them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import lambertw


@dataclass(frozen=True, kw_only=True)
class StepsBound(ABC):
    """A bound on the steps as a function of the batch size.

    Attributes:
        x: what the start contributes.
        y: what the noise of one example contributes.
        z: what neither steps nor examples bring down: the length of a step.
        accuracy: that is to be reached; in the unit of ``y`` and ``z``.

    Raises:
        ValueError: if a constant is outside its domain, or the accuracy is not above ``z``: then there is no bound at
            any batch size.
    """

    x: float
    y: float
    z: float = 0.0
    accuracy: float

    def __post_init__(self) -> None:
        for name in ("x", "y", "accuracy"):
            positive(name, getattr(self, name))
        positive("z", self.z, zero=True)
        if not self.slack > 0:
            raise ValueError(
                f"the accuracy {self.accuracy:g} is not above Z = {self.z:g}, which no batch size and no number of "
                "steps brings down: there is no bound; take a smaller learning rate or an easier accuracy"
            )

    @property
    def slack(self) -> float:
        """``c``, what is left for start and noise."""
        return self.accuracy - self.z

    @property
    @abstractmethod
    def pole(self) -> float:
        """``b_0`` in examples: the bound exists above it."""

    @property
    @abstractmethod
    def best_batch_size(self) -> float:
        """``b*`` in examples, where :meth:`examples` are fewest; a real number above :attr:`pole`."""

    @abstractmethod
    def steps(self, batch_sizes: ArrayLike) -> np.ndarray:
        """``T(b)`` in optimizer steps, not rounded; infinity at and below :attr:`pole`."""

    def examples(self, batch_sizes: ArrayLike) -> np.ndarray:
        """``b T(b)``, gradients of single examples; infinity at and below :attr:`pole`."""
        return np.multiply(batch_sizes, self.steps(batch_sizes))

    @property
    def fewest_examples(self) -> float:
        """The examples at :attr:`best_batch_size`."""
        return float(self.examples(self.best_batch_size))


@dataclass(frozen=True, kw_only=True)
class PowerBound(StepsBound):
    """``T(b) = X / (c - Y b^-p)``, proposition 4.2 of arXiv:2507.01598 with p = 1/2; p = 1 for SGD.

    Attributes:
        power: p.
    """

    power: float = 0.5

    @property
    def pole(self) -> float:
        return float((self.y / self.slack) ** (1.0 / self.power))

    @property
    def best_batch_size(self) -> float:
        return self.pole * best_over_pole(self.power)

    @property
    def lower_bound(self) -> float:
        """What ``b*`` exceeds whatever Z is, ``9 Y^2 / 4 eps^2`` for p = 1/2; equal to it without a Z."""
        return float(((1.0 + self.power) * self.y / self.accuracy) ** (1.0 / self.power))

    def steps(self, batch_sizes: ArrayLike) -> np.ndarray:
        left = self.slack - self.y * np.asarray(batch_sizes, dtype=float) ** -self.power
        return np.divide(self.x, left, out=np.full_like(left, np.inf), where=left > 0)


@dataclass(frozen=True, kw_only=True)
class DecayBound(StepsBound):
    r"""``T(b) = ln(X / (c - Y/sqrt(b))) / rate``: the start is forgotten at the rate :math:`\lambda\eta` per step.

    Attributes:
        rate: weight decay times learning rate, at most 1.

    Raises:
        ValueError: also if ``x`` is not above the slack: the start is as good as what is asked for.
    """

    rate: float

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("weight decay times learning rate", self.rate)
        if self.rate > 1:
            raise ValueError(f"weight decay times learning rate must be at most 1, got {self.rate:g}")
        if not self.x > self.slack:
            raise ValueError(f"the start, {self.x:g} above the optimum, is within {self.slack:g} of it: nothing to do")

    @property
    def pole(self) -> float:
        return float((self.y / self.slack) ** 2)

    @property
    def best_batch_size(self) -> float:
        return self.pole * float(best_over_pole_with_decay(math.log(self.x / self.slack)))

    def steps(self, batch_sizes: ArrayLike) -> np.ndarray:
        left = self.slack - self.y / np.sqrt(np.asarray(batch_sizes, dtype=float))
        inside = np.divide(self.x, left, out=np.full_like(left, np.inf), where=left > 0)
        return np.asarray(np.log(inside) / self.rate)


def best_over_pole(power: float) -> float:
    """``b*/b_0`` of :class:`PowerBound`: 9/4 for p = 1/2, 2 for p = 1."""
    return float((1.0 + power) ** (1.0 / power))


def best_over_pole_with_decay(level: ArrayLike) -> np.ndarray:
    r"""``b*/b_0`` of :class:`DecayBound`, above 1 and at most 1.96.

    :math:`(1 + 1/u)^2` with :math:`u = -2 W_{-1}(-e^{-\ell - 1/2}/2) - 1`: the derivative of ``b T(b)`` is zero where
    :math:`u/2 - \ln(1 + u) = \ell`.

    Args:
        level: :math:`\ell = \ln(X/c)`, at least 0.
    """
    # beyond 600 the exponential is no number any more, and u so large that the ratio is 1 to 3 parts in 1000
    u = -2.0 * lambertw(-0.5 * np.exp(-np.minimum(level, 600.0) - 0.5), -1).real - 1.0
    return np.asarray((1.0 + 1.0 / u) ** 2)


@dataclass(frozen=True, kw_only=True)
class BoundConstants:
    """What a bound must know of the problem; norms are the dual ones of the norm that steps are measured in.

    Attributes:
        epsilon: accuracy: of the average gradient norm, or with weight decay of the loss above its least value.
        lr: length of a step in the norm; of SGD its learning rate.
        smoothness: L, the Lipschitz constant of the gradient.
        noise: sigma, standard deviation of the gradient of one example.
        gap: the loss at the start above its least value.
        initial_gradient: norm of the gradient at the start; absent: the most that smoothness and gap allow,
            ``sqrt(2 L gap)``.
        norm_constant: D, by which averages of noise fall slower in this norm than in the Euclidean one: 1 there, and
            about 1 for Muon and Signum where gradients have a low rank.

    Raises:
        ValueError: if a constant is outside its domain.
    """

    epsilon: float
    lr: float
    smoothness: float
    noise: float
    gap: float
    initial_gradient: float | None = None
    norm_constant: float = 1.0

    def __post_init__(self) -> None:
        for name in ("epsilon", "lr", "smoothness", "noise", "gap", "norm_constant"):
            positive(name.replace("_", " "), getattr(self, name))
        positive("initial gradient", self.steepest, zero=True)

    @property
    def steepest(self) -> float:
        """The norm of the gradient at the start, or its bound."""
        given = self.initial_gradient
        return math.sqrt(2.0 * self.smoothness * self.gap) if given is None else given


def noise_factor(beta: float, *, nesterov: bool) -> float:
    r"""Standard deviation of the average gradient that a step follows, over that of a batch: at most this.

    :math:`\sqrt{(1 - \beta)/(1 + \beta)}`; with Nesterov's look-ahead :math:`\beta` times this, plus :math:`1 - \beta`.

    Raises:
        ValueError: if ``beta`` is not in [0, 1).
    """
    if not 0.0 <= beta < 1.0:
        raise ValueError(f"beta must be in [0, 1), got {beta:g}")
    plain = math.sqrt((1.0 - beta) / (1.0 + beta))
    return beta * plain + 1.0 - beta if nesterov else plain


def relative_best(beta: float, *, nesterov: bool, weight_decay: float = 0.0) -> float:
    r"""``b*`` over everything else in it: :math:`\kappa^2`, and with weight decay :math:`\kappa^2/\lambda^2`.

    ``b*`` of two settings are in this ratio at the same :math:`\epsilon - Z`, noise, D (and X with weight decay). To
    first order :math:`\kappa^2` is proportional to :math:`1 - \beta`. With weight decay and without it they are not
    comparable.

    Raises:
        ValueError: if an argument is outside its domain.
    """
    positive("weight decay", weight_decay, zero=True)
    return noise_factor(beta, nesterov=nesterov) ** 2 / (weight_decay or 1.0) ** 2


def sgd(problem: BoundConstants) -> PowerBound:
    r"""SGD without momentum: :math:`\min_t E\|\nabla f\|^2 \le C_1/T + C_2/b`, the accuracy is ``epsilon`` squared.

    :math:`C_1 = 2 (f_0 - f^*)/((2 - L\eta)\eta)`, :math:`C_2 = L\eta\sigma^2/(2 - L\eta)` (Imaizumi and Iiduka; what
    could be read is their form, the algebra is checked).

    Raises:
        ValueError: if ``smoothness * lr`` is not below 2, beyond which a step need not descend.
    """
    rest = 2.0 - problem.smoothness * problem.lr
    if not rest > 0:
        raise ValueError(f"smoothness times learning rate must be below 2 for SGD, got {2.0 - rest:g}")
    return PowerBound(
        x=2.0 * problem.gap / (rest * problem.lr),
        y=problem.smoothness * problem.lr * problem.noise**2 / rest,
        accuracy=problem.epsilon**2,
        power=1.0,
    )


def momentum(problem: BoundConstants, beta: float, *, nesterov: bool, weight_decay: float = 0.0) -> StepsBound:
    r"""Steepest descent with momentum in a norm: ``M <- beta M + (1 - beta) g``, a step of length ``lr`` against M, or
    with Nesterov's look-ahead against ``beta M + (1 - beta) g``.

    Without weight decay the mean of :math:`E\|\nabla f\|` over the steps reaches ``epsilon``: with
    :math:`\kappa` of :func:`noise_factor` and k = 1 with Nesterov's look-ahead, else 0,

    .. math:: X = \frac{f_0 - f^*}{\eta} + \frac{2\beta^k}{1 - \beta}\|\nabla f(W_0)\|, \quad
        Y = 2\kappa\sqrt D\sigma, \quad Z = L\eta\Big(\frac{2\beta^{1 + k}}{1 - \beta} + \frac12\Big).

    With decoupled weight decay :math:`\lambda` the loss above its least value does, for a star-convex loss and a start
    of norm at most :math:`1/\lambda`:

    .. math:: X = f_0 - f^*, \quad Y = \frac{2\kappa}{\lambda}\sqrt D\sigma, \quad
        Z = \Big[\frac{4L}{\lambda}\Big(1 + \frac{\beta^{1 + k}}{1 - \beta}\Big)
        + \frac{2\beta^k}{1 - \beta}\|\nabla f(W_0)\|\Big]\eta.

    Cesista and Wen state both for k = 1; k = 0 is their proof with M in place of what the look-ahead gives.

    Raises:
        ValueError: if an argument is outside its domain, or there is no bound for these constants.
    """
    factor = noise_factor(beta, nesterov=nesterov)
    positive("weight decay", weight_decay, zero=True)
    memory, ahead = 1.0 / (1.0 - beta), beta if nesterov else 1.0
    start = 2.0 * ahead * memory * problem.steepest
    drift = ahead * beta * memory
    y = 2.0 * factor * math.sqrt(problem.norm_constant) * problem.noise
    if not weight_decay:
        return PowerBound(
            x=problem.gap / problem.lr + start,
            y=y,
            z=problem.smoothness * problem.lr * (2.0 * drift + 0.5),
            accuracy=problem.epsilon,
        )
    return DecayBound(
        x=problem.gap,
        y=y / weight_decay,
        z=(4.0 * problem.smoothness / weight_decay * (1.0 + drift) + start) * problem.lr,
        accuracy=problem.epsilon,
        rate=weight_decay * problem.lr,
    )


def positive(name: str, value: float, *, zero: bool = False) -> None:
    """Refuse what is not a finite number above 0 (or 0 itself, where it may be) with a ``ValueError``."""
    if not (math.isfinite(value) and (value > 0 or (zero and value == 0))):
        raise ValueError(f"{name} must be a finite number {'of at least' if zero else 'above'} 0, got {value:g}")
