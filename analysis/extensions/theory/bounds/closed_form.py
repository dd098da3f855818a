r"""Where an upper bound on the steps has its fewest examples, in closed form.

Sato, Naganuma and Iiduka, arXiv:2507.01598, proposition 4.2: after T steps of batches of b examples an average is at
most :math:`X/T + Y b^{-p} + Z`, so an accuracy :math:`\epsilon` is reached within

.. math:: T(b) = \frac{X}{c - Y b^{-p}}, \qquad c = \epsilon - Z, \qquad b > b_0 = (Y/c)^{1/p}

steps, with p = 1/2 for momentum and p = 1 for SGD. ``T`` falls and is convex. The examples ``b T(b)`` (the complexity
of the stochastic first-order oracle, SFO) fall, then rise, and are least at :math:`b^* = ((1 + p) Y/c)^{1/p}`. With
decoupled weight decay :math:`\lambda` the start is forgotten geometrically and the steps are a logarithm. At or below
:math:`b_0` the bound does not exist: nothing is said about T.

How X, Y and Z depend on the optimizer is in Cesista and Wen, "Critical batch size for steepest descent under arbitrary
norms", who generalise Sato et al.: every step has length ``lr`` in a norm, against the momentum. Muon is the spectral
norm, Signum the largest entry; SGD's own steps are of no fixed length, and the bound is not about them. The learning
rate is the same at every batch size.

These are upper bounds with constants that nobody observes. They may be far above the steps that training takes; that
they move in one direction does not force measured steps to move with them.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import lambertw


def best_over_pole(power: float) -> float:
    r"""``b*/b_0`` of :math:`T(b) = X/(c - Y b^{-p})`: 9/4 for p = 1/2, 2 for p = 1."""
    return float((1.0 + power) ** (1.0 / power))


def best_over_pole_with_decay(level: ArrayLike) -> np.ndarray:
    r"""``b*/b_0`` of :math:`T(b) = \ln(X/(c - Y/\sqrt b))/(\lambda\eta)`, above 1 and at most 1.96.

    :math:`(1 + 1/u)^2` with :math:`u = -2 W_{-1}(-e^{-\ell - 1/2}/2) - 1`: the derivative of ``b T(b)`` is zero where
    :math:`u/2 - \ln(1 + u) = \ell`.

    Args:
        level: :math:`\ell = \ln(X/c)`, at least 0.
    """
    # beyond 600 the exponential is no number any more, and u so large that the ratio is 1 to 3 parts in 1000
    u = -2.0 * lambertw(-0.5 * np.exp(-np.minimum(level, 600.0) - 0.5), -1).real - 1.0
    return np.asarray((1.0 + 1.0 / u) ** 2)


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
    if not 0.0 <= weight_decay < math.inf:
        raise ValueError(f"weight decay must be a finite number of at least 0, got {weight_decay:g}")
    return noise_factor(beta, nesterov=nesterov) ** 2 / (weight_decay or 1.0) ** 2
