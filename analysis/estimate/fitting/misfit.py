"""Test whether points lie as close to a curve as the noise of their seeds says they should."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import fdtrc

from analysis.arrays import Array
from analysis.estimate.fitting.data import LEAST_DEVIATION, Trials


@dataclass(frozen=True)
class Misfit:
    """How far the points lie off a curve.

    Attributes:
        probability: probability of residuals at least this large if the curve has the right form.
        excess_rms: root mean square of the residuals of ``ln S`` in excess of what seeds and the spacing of learning
            rates explain; 0 if these explain everything.
    """

    probability: float
    excess_rms: float


def lack_of_fit(
    residuals: Array, weights: Array, freedom: float, variance: float, known: float, grid: float
) -> Misfit | None:
    r"""Test for lack of fit and return it with its effect size; ``None`` if undefined.

    The classical test against pure error (Draper and Smith, "Applied Regression Analysis", section 2.1): with ``M``
    batch sizes, ``n`` seeds each and ``f`` degrees of freedom left to the residuals,

    .. math:: F = \frac{1}{f} \sum_m \frac{(\bar y_m - \hat y_m)^2}{s^2/n_m + g^2}

    follows the F distribution with ``f`` and ``sum (n - 1)`` degrees of freedom. ``g^2`` is :func:`grid_variance`: if
    the best learning rate lies between two points of the grid, a batch size is slower by an amount that seeds do not
    show and that is not a lack of fit.

    Undefined with one seed (no pure error) and below three batch sizes (no residuals).

    Args:
        residuals: residuals of log steps, shape ``[M]``.
        weights: numbers of seeds, shape ``[M]``.
        freedom: ``f``, degrees of freedom that the curve leaves.
        variance, known: ``s^2``, variance of one seed from the bootstrap, including the choice of the learning rate,
            and its degrees of freedom.
        grid: ``g^2``, :func:`grid_variance` of the trials.
    """
    if not known or freedom < 0.5:
        return None
    squares, error = residuals**2, max(variance, LEAST_DEVIATION**2) / weights + grid
    probability = float(fdtrc(freedom, known, (squares / error).sum() / freedom))
    return Misfit(probability, math.sqrt(max(squares.sum() / freedom - error.mean(), 0.0)))


def grid_variance(tables: Sequence[Trials]) -> float:
    r"""Return the variance of the mean log steps of a batch size due to the position of its learning rates.

    Near its minimum ``ln S`` is a parabola in the logarithm of the learning rate. With the second difference ``D``
    between neighbours on the grid and the optimum anywhere between two of them, the best point of the grid is slower
    than the optimum by :math:`D u^2/8`, with ``u`` uniform in [-1, 1]. Its variance is :math:`D^2/64 \cdot 4/45 =
    D^2/720`. ``D`` is averaged over the batch sizes whose winner has two neighbours that reached the target on the same
    seeds.
    """
    variances = []
    for table in tables:
        winner = table.winner
        if winner is None or not 0 < winner < len(table.steps) - 1:
            continue
        logs = np.log(table.steps[winner - 1 : winner + 2])
        both = np.isfinite(logs).all(axis=0)
        if both.any():
            variances.append(float((logs[0] - 2.0 * logs[1] + logs[2])[both].mean()))
    return max(float(np.mean(variances)), 0.0) ** 2 / 720.0 if variances else 0.0


def between_rates(tables: Sequence[Trials], grid: float) -> tuple[Array, Array]:
    """Return what the best learning rate of every batch size saves over the best one tried, in log steps, and the
    variance of what is unknown of it, shape ``[M]`` each.

    Where the shape of the steps around the winner says less than the spacing of the grid does, the latter's variance
    ``grid`` (:func:`grid_variance`) stays, and the saving is the mean of the others.
    """
    low, high = np.array([table.savings for table in tables]).T
    variance = (high - low) ** 2 / 12.0
    known = (high > 0) & (variance < grid)
    saved = (low + high) / 2.0
    return np.where(known, saved, saved[known].mean() if known.any() else 0.0), np.where(known, variance, grid)
