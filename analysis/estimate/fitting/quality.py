"""Whether a fitted curve can be believed: how far the points lie off it, and what every single batch size decides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import fdtrc

from analysis.arrays import Array
from analysis.estimate.fitting import Fit
from analysis.estimate.fitting.data import LEAST_DEVIATION, Data, Trials, winners

FEWEST = 4
"""Batch sizes below which a curve through all but one of them is exactly determined or not at all."""


@dataclass(frozen=True)
class Misfit:
    """How far the points lie off a curve.

    Attributes:
        probability: of residuals as large as these if the curve has the right form.
        excess_rms: root mean square of what the residuals of ``ln S`` hold beyond what seeds and the spacing of the
            learning rates explain; 0 where they explain all.
    """

    probability: float
    excess_rms: float


def misfit(fit: Fit, tables: Sequence[Trials]) -> Misfit | None:
    r"""Test of lack of fit with its effect size; ``None`` where undefined.

    The classical test against pure error (Draper and Smith, "Applied Regression Analysis", section 2.1): with ``M``
    batch sizes, ``n`` seeds each and ``f`` degrees of freedom left to the residuals,

    .. math:: F = \frac{1}{f} \sum_m \frac{(\bar y_m - \hat y_m)^2}{s^2/n_m + g^2}

    follows the F distribution with ``f`` and ``sum (n - 1)`` degrees of freedom. ``s^2`` is the variance of one seed as
    the bootstrap has it, with the choice of the learning rate made again. ``g^2`` is :func:`grid_variance`: a learning
    rate between two points of the grid makes a batch size slower by an amount that no seed shows and that is no lack of
    fit.

    Undefined with one seed (no pure error) and below three batch sizes (no residuals). ``tables`` are those that were
    fitted.
    """
    fitted, freedom = fit.estimate.log_steps(fit.data.batch_sizes), fit.freedom - fit.seed_freedom
    return misfit_of(fitted, fit, fit.data, freedom, grid_variance(tables))


def misfit_of(fitted: Array, fit: Fit, data: Data, freedom: float, grid: float) -> Misfit | None:
    """The test of another curve, or on some of the batch sizes, with the noise of seeds that ``fit`` found.

    Args:
        fitted: log steps of the curve at the batch sizes of ``data``, shape ``[M]``.
        freedom: degrees of freedom that the curve leaves.
        grid: :func:`grid_variance` of the trials.
    """
    if not fit.seed_freedom or freedom < 0.5:
        return None
    here = data.reached
    squares = ((data.completed(fitted[None], fit.deviation)[0] - fitted) ** 2)[here]
    error = (max(fit.seed_variance, LEAST_DEVIATION**2) / data.all_weights + grid)[here]
    probability = float(fdtrc(freedom, fit.seed_freedom, (squares / error).sum() / freedom))
    return Misfit(probability, math.sqrt(max(squares.sum() / freedom - error.mean(), 0.0)))


def grid_variance(tables: Sequence[Trials]) -> float:
    r"""Variance of the mean log steps of a batch size from where its learning rates happen to lie.

    Near its minimum ``ln S`` is a parabola in the logarithm of the learning rate. With the second difference ``D``
    between neighbours on the grid and the optimum anywhere between two of them, the best point of the grid is slower
    than the optimum by :math:`D u^2/8`, with ``u`` uniform in [-1, 1]. Its variance is :math:`D^2/64 \cdot 4/45 =
    D^2/720`. ``D`` is averaged over the batch sizes whose winner has two neighbours that reached the target on the same
    seeds.
    """
    found = []
    for table, winner in zip(tables, winners(tables), strict=True):
        if winner is None or not 0 < winner < len(table.steps) - 1:
            continue
        logs = np.log(table.steps[winner - 1 : winner + 2])
        both = np.isfinite(logs).all(axis=0)
        if both.any():
            found.append(float((logs[0] - 2.0 * logs[1] + logs[2])[both].mean()))
    return max(float(np.mean(found)), 0.0) ** 2 / 720.0 if found else 0.0


@dataclass(frozen=True)
class LeaveOneOut:
    """What the curve says without one batch size at a time.

    Attributes:
        batch_sizes: the one left out, shape ``[M]``.
        critical: critical batch size of the refit, shape ``[M]``; 0 or infinity where the rest does not bound it.
        misfit: probability of :func:`misfit` of the rest, shape ``[M]``; NaN where undefined.
    """

    batch_sizes: Array
    critical: Array
    misfit: Array

    @property
    def range(self) -> tuple[float | None, float | None]:
        """Lowest and highest; ``None`` for 0 and for infinity."""
        low, high = (float(end) if 0 < end < np.inf else None for end in (self.critical.min(), self.critical.max()))
        return low, high


def leave_one_out(fit: Fit, tables: Sequence[Trials]) -> LeaveOneOut | None:
    """Refits without one batch size that reached the target; ``None`` below :data:`FEWEST`."""
    if len(fit.batch_sizes) < FEWEST:
        return None
    grid = grid_variance(tables)
    critical, probability = [], []
    for place in np.flatnonzero(fit.data.reached):
        rest = fit.data.without(int(place))
        refit = rest.fit(fit.exponent, max(fit.deviation, LEAST_DEVIATION), start=fit.estimate).row(0)
        critical.append(float(refit.critical))
        found = misfit_of(refit.log_steps(rest.batch_sizes), fit, rest, fit.freedom - fit.seed_freedom - 1, grid)
        probability.append(np.nan if found is None else found.probability)
    return LeaveOneOut(fit.batch_sizes, np.array(critical), np.array(probability))
