r"""The functional forms of steps bounds in the batch size, fitted to measured steps.

A bound (:mod:`.closed_form`) says how steps depend on the batch size up to constants. With the pole :math:`b_0`, the
batch size at and below which it does not exist, the forms are

.. math:: S = S_\infty / (1 - (b_0/b)^p) \quad (p = 1/2, 1), \qquad
    S = \tau (\ell - \ln(1 - \sqrt{b_0/b}))

with two constants for optimizers without weight decay and three with it. The batch size of the fewest examples,
:math:`b^*`, is a multiple of :math:`b_0` that the form determines: 9/4, 2, and at most 1.96. Because the target was
reached at the smallest measured batch size, :math:`b_0` lies below it, and :math:`b^*` below that multiple of it,
whatever the steps: this part of a fitted :math:`b^*` comes from the form, not from the data.

Residuals are in log steps. The pole is searched between the smallest batch size and the point at which it no longer
matters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit

from analysis.arrays import Array, Quantity
from analysis.estimate.fitting import Fit, interval
from analysis.estimate.fitting.data import Data
from analysis.estimate.fitting.form_fits import pooled_deviation, widening
from analysis.estimate.fitting.least_squares import profiled
from analysis.extensions.theory.bounds.closed_form import best_over_pole, best_over_pole_with_decay

POWERS = {"root": 0.5, "linear": 1.0}
"""Exponent ``p`` of the forms with two constants, by name."""

FORMS = (*POWERS, "decay")
"""``root``: momentum, Muon, Signum; ``linear``: SGD; ``decay``: momentum, Muon, Signum with decoupled weight decay."""

NEGLIGIBLE = 1e-3
"""Fraction that the pole contributes to the steps at the smallest batch size below which it is not searched: it is
0."""

_NEAREST = 30.0
_LEVELS = (1e-3, 1e3)


@dataclass(frozen=True)
class FittedBound:
    """A fitted form, scalars or one per resample, shape ``[R]``.

    Attributes:
        name: one of :data:`FORMS`.
        log_scale: ``ln S_inf``, or ``ln tau`` for ``decay``; optimizer steps.
        log_pole: ``ln b_0``, in examples.
        level: the constant l of ``decay``; infinity for the other forms.
        plateau: whether the pole cannot be distinguished from 0, so that steps do not fall with the batch size.
    """

    name: str
    log_scale: Array
    log_pole: Array
    level: Array
    plateau: Array

    def log_steps(self, batch_sizes: Array) -> Array:
        """Return ``ln S`` at ``batch_sizes`` ``[M]``, shape ``[M]`` or ``[R, M]``; infinity at and below the pole."""
        below = np.asarray(self.log_pole)[..., None] - np.log(np.asarray(batch_sizes, dtype=float))
        with np.errstate(divide="ignore"):
            rise = -np.log(-np.expm1(np.minimum(POWERS.get(self.name, 0.5) * below, 0.0)))
            if self.name == "decay":
                rise = np.log(np.asarray(self.level)[..., None] + rise)
        return np.asarray(np.asarray(self.log_scale)[..., None] + rise)

    @property
    def pole(self) -> Array:
        """``b_0`` in examples; 0 on a plateau."""
        return np.where(self.plateau, 0.0, np.exp(self.log_pole))

    @property
    def best(self) -> Array:
        """``b*`` in examples; 0 on a plateau."""
        ratio = best_over_pole_with_decay(self.level) if self.name == "decay" else best_over_pole(POWERS[self.name])
        return np.asarray(self.pole * ratio)


def best_over_smallest(name: str) -> float:
    """Return the multiple of the smallest batch size that reached the target below which ``b*`` must lie."""
    return best_over_pole(POWERS[name]) if name in POWERS else float(best_over_pole_with_decay(0.0))


def fit_form(name: str, batch_sizes: Array, log_steps: Array, weights: Array) -> FittedBound:
    """Fit the form to ``log_steps`` ``[R, M]`` at increasing ``batch_sizes`` with ``weights``, shape ``[M]`` each, by
    least squares; shape ``[R]``."""
    power, ratios = POWERS.get(name, 0.5), np.log(batch_sizes[0] / np.asarray(batch_sizes))[:, None]
    levels = np.log(_LEVELS) if name == "decay" else np.zeros(2)
    box = np.array([[math.log(NEGLIGIBLE) / power, levels[0]], [_NEAREST, levels[1]]])

    def shape(theta: Array) -> tuple[Array, Array, Array]:
        """Return the shape; the first parameter is the logit of ``b_0`` over the smallest batch size, the second ``ln
        level``."""
        part = power * (ratios - np.logaddexp(0.0, -theta[:, 0]))
        rise = -np.log(-np.expm1(part))
        slope = power * expit(-theta[:, 0]) * np.exp(part + rise)
        if name != "decay":
            return rise, slope, np.zeros_like(rise)
        level = np.exp(theta[:, 1])
        return np.log(level + rise), slope / (level + rise), level / (level + rise)

    theta, log_scale = profiled(shape, log_steps, weights, box, cells=(60, 12))
    level = np.exp(theta[:, 1]) if name == "decay" else np.full(len(theta), np.inf)
    log_pole = math.log(batch_sizes[0]) - np.logaddexp(0.0, -theta[:, 0])
    return FittedBound(name, log_scale, log_pole, level, theta[:, 0] <= box[0, 0] + 1e-6)


@dataclass(frozen=True)
class BoundFit:
    """A form fitted to the steps of one optimizer at one target, with resamples.

    Attributes:
        form, resampled: the fitted form, scalars, and its resamples, shape ``[R]``; no rows if the interval is
            undefined.
        residual_rms: root of the weighted mean squared residual of the log steps.
        freedom: degrees of freedom of the residuals.
        confidence: confidence of the intervals.
    """

    form: FittedBound
    resampled: FittedBound
    residual_rms: float
    freedom: int
    confidence: float

    @property
    def best(self) -> Quantity:
        """``b*`` in examples; no value on a plateau."""
        return self._quantity(float(self.form.best), self.resampled.best)

    @property
    def pole(self) -> Quantity:
        """``b_0`` in examples; no value on a plateau."""
        return self._quantity(float(self.form.pole), self.resampled.pole)

    def _quantity(self, value: float, drawn: Array) -> Quantity:
        return Quantity(value or None, interval(drawn, self.confidence))


def fit_bound(name: str, fit: Fit, confidence: float) -> BoundFit | None:
    """Fit the form to the same log steps as ``fit``; ``None`` with fewer batch sizes than it has constants.

    Resamples are the deviations of those of ``fit`` around the form, rescaled to the standard deviation of
    :func:`analysis.estimate.fitting.pooled_deviation`. There are none without a residual.
    """
    constants = 3 if name == "decay" else 2
    sizes, steps, weights = fit.batch_sizes, fit.log_steps, fit.weights
    freedom = len(sizes) - constants
    if freedom < 0:
        return None
    one = fit_form(name, sizes, steps[None], weights)
    form = replace(one, **{part: getattr(one, part)[0] for part in ("log_scale", "log_pole", "level", "plateau")})
    squares = float(weights @ (steps - form.log_steps(sizes)) ** 2)
    drawn = fit.resampled_log_steps - fit.estimate.log_steps(sizes)
    if not freedom:
        drawn = drawn[:0]
    elif fit.deviation > 0:
        own, together = pooled_deviation(squares, freedom, fit.seed_variance, fit.seed_freedom)
        drawn = drawn * (own * widening(together, confidence)) / (fit.deviation * widening(fit.freedom, confidence))
    return BoundFit(
        form=form,
        resampled=fit_form(name, sizes, form.log_steps(sizes) + drawn, weights),
        residual_rms=math.sqrt(squares / weights.sum()),
        freedom=freedom,
        confidence=confidence,
    )


def fitted_data(fit: Fit) -> Data:
    """Return the data that a form is fitted to: the log steps of ``fit``, with expected values for seeds that
    missed."""
    return Data(fit.batch_sizes, fit.log_steps, fit.weights, np.empty(0, dtype=int), np.empty(0))
