r"""The batch size at which an upper bound on the steps has its fewest examples, in closed form.

Sato, Naganuma and Iiduka, arXiv:2507.01598, proposition 4.2: after T steps of batches of b examples an average is at
most :math:`X/T + Y b^{-p} + Z`, so an accuracy :math:`\epsilon` is reached within

.. math:: T(b) = \frac{X}{c - Y b^{-p}}, \qquad c = \epsilon - Z, \qquad b > b_0 = (Y/c)^{1/p}

steps, with p = 1/2 for momentum and p = 1 for SGD. ``T`` falls and is convex. The examples ``b T(b)`` (the complexity
of the stochastic first-order oracle, SFO) fall, then rise, with the minimum at :math:`b^* = ((1 + p) Y/c)^{1/p}`. With
decoupled weight decay :math:`\lambda` the start is forgotten geometrically and the steps are a logarithm. At or below
:math:`b_0` the bound does not exist: nothing is said about T.

How X, Y and Z depend on the optimizer is derived by Cesista and Wen, "Critical batch size for steepest descent under
arbitrary norms", who generalise Sato et al.: every step has length ``lr`` in a norm, against the momentum. Muon
corresponds to the spectral norm, Signum to the largest entry; SGD's own steps have no fixed length, so the bound does
not cover them. The learning rate is the same at every batch size.

These are upper bounds with constants that cannot be observed. They may be far above the steps that training takes; if
they move in one direction, measured steps need not move with them.
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
    # above 600 the exponential underflows, and u is so large that the ratio is 1 to within 3 parts in 1000
    u = -2.0 * lambertw(-0.5 * np.exp(-np.minimum(level, 600.0) - 0.5), -1).real - 1.0
    return np.asarray((1.0 + 1.0 / u) ** 2)


def noise_factor(beta: float, *, nesterov: bool) -> float:
    r"""Return an upper bound of the standard deviation of the averaged gradient that a step follows, over that of a
    batch.

    :math:`\sqrt{(1 - \beta)/(1 + \beta)}`; with Nesterov's look-ahead :math:`\beta` times this, plus :math:`1 - \beta`.

    Raises:
        ValueError: if ``beta`` is not in [0, 1).
    """
    if not 0.0 <= beta < 1.0:
        raise ValueError(f"beta must be in [0, 1), got {beta:g}")
    plain = math.sqrt((1.0 - beta) / (1.0 + beta))
    return beta * plain + 1.0 - beta if nesterov else plain


def relative_best(beta: float, *, nesterov: bool, weight_decay: float = 0.0) -> float:
    r"""Return ``b*`` up to factors common to both settings: :math:`\kappa^2`, or :math:`\kappa^2/\lambda^2` with weight
    decay.

    ``b*`` of two settings are in this ratio at the same :math:`\epsilon - Z`, noise, D (and X with weight decay). To
    first order :math:`\kappa^2` is proportional to :math:`1 - \beta`. Settings with and without weight decay are not
    comparable.

    Raises:
        ValueError: if an argument is outside its domain.
    """
    if not 0.0 <= weight_decay < math.inf:
        raise ValueError(f"weight decay must be a finite number of at least 0, got {weight_decay:g}")
    return noise_factor(beta, nesterov=nesterov) ** 2 / (weight_decay or 1.0) ** 2
