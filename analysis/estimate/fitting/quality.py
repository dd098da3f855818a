"""Whether a fitted curve can be believed: a test of lack of fit, and what every single batch size decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from analysis.arrays import Array
from analysis.estimate.fitting import Data, Fit, fit_data
from analysis.estimate.fitting.censoring import LEAST_DEVIATION
from analysis.estimate.fitting.hyperbola import predicted
from cbs.lr_choice import best_lr

FEWEST = 4
"""Batch sizes below which a curve through all but one of them is exactly determined or not at all."""


def lack_of_fit(fit: Fit, tables: Sequence[Array]) -> float | None:
    r"""Probability of residuals as large as these if the curve is the hyperbola; ``None`` where undefined.

    The classical test against pure error (Draper and Smith, "Applied Regression Analysis", section 2.1): with
    ``M`` batch sizes, ``n`` seeds each and two parameters,

    .. math:: F = \frac{1}{M - 2} \sum_m \frac{(\bar y_m - \hat y_m)^2}{s^2/n_m + g^2}

    follows the F distribution with ``M - 2`` and ``sum (n - 1)`` degrees of freedom. ``s^2`` is the variance of one
    seed as the bootstrap has it, with the choice of the learning rate made again. ``g^2`` is
    :func:`grid_variance`: a learning rate between two points of the grid makes a batch size slower by an amount that
    no seed shows and that is no lack of fit.

    Undefined with one seed (no pure error) and below three batch sizes (no residuals).

    Args:
        fit: the curve.
        tables: steps to target, ``[learning rates, seeds]`` per batch size, as they were fitted.
    """
    if fit.data is None or not fit.seed_freedom:
        return None
    return _probability(fit, fit.data, predicted(fit.data.batch_sizes, fit.estimate), grid_variance(tables))


def _probability(fit: Fit, data: Data, curve: Array, grid: float) -> float | None:
    """The test on some of the batch sizes of ``fit``; ``curve`` is the fit to them."""
    freedom = int(data.reached.sum()) - 2
    if freedom < 1:
        return None
    complete = data.completed(curve[None], fit.deviation)[0]
    error = max(fit.seed_variance, LEAST_DEVIATION**2) / data.all_weights + grid
    squares = ((complete - curve) ** 2 / error)[data.reached].sum()
    return float(stats.f.sf(squares / freedom, freedom, fit.seed_freedom))


def grid_variance(tables: Sequence[Array]) -> float:
    r"""Variance of the mean log steps of a batch size from where its learning rates happen to lie.

    Near its minimum ``ln S`` is a parabola in the logarithm of the learning rate. With the second difference ``D``
    between neighbours on the grid and the optimum anywhere between two of them, the best point of the grid is slower
    than the optimum by :math:`D u^2/8`, with ``u`` uniform in [-1, 1]. Its variance is :math:`D^2/64 \cdot 4/45 =
    D^2/720`. ``D`` is averaged over the batch sizes whose winner has two neighbours that reached the target on the same
    seeds.

    Args:
        tables: steps to target, ``[learning rates, seeds]`` per batch size, learning rates increasing.
    """
    found = []
    for table in tables:
        winner = best_lr(table)
        if winner is None or not 0 < winner < len(table) - 1:
            continue
        logs = np.log(table[winner - 1 : winner + 2])
        both = np.isfinite(logs).all(axis=0)
        if both.any():
            found.append(float((logs[0] - 2.0 * logs[1] + logs[2])[both].mean()))
    return max(float(np.mean(found)), 0.0) ** 2 / 720.0 if found else 0.0


@dataclass(frozen=True)
class LeaveOneOut:
    """What the curve says without one batch size at a time.

    Attributes:
        batch_sizes: the one left out, shape ``[M]``.
        critical: ``E_min / S_min`` of the refit, shape ``[M]``; 0 or infinity where the rest does not bound it.
        lack_of_fit: :func:`lack_of_fit` of the rest, shape ``[M]``; NaN where undefined.
    """

    batch_sizes: Array
    critical: Array
    lack_of_fit: Array

    @property
    def range(self) -> tuple[float | None, float | None]:
        """Lowest and highest; ``None`` for 0 and for infinity."""
        low, high = float(self.critical.min()), float(self.critical.max())
        return low if low > 0 else None, high if np.isfinite(high) else None


def leave_one_out(fit: Fit, tables: Sequence[Array]) -> LeaveOneOut | None:
    """Refits without one batch size that reached the target; ``None`` below :data:`FEWEST`.

    Args:
        fit: the curve.
        tables: as :func:`lack_of_fit` takes them.
    """
    if fit.data is None or len(fit.batch_sizes) < FEWEST:
        return None
    grid = grid_variance(tables)
    critical, probability = [], []
    for place in np.flatnonzero(fit.data.reached):
        rest = fit.data.without(int(place))
        refit = fit_data(rest, fit.deviation)
        critical.append(np.exp(float(refit.log_critical[0])))
        found = _probability(fit, rest, predicted(rest.batch_sizes, refit)[0], grid) if fit.seed_freedom else None
        probability.append(np.nan if found is None else found)
    return LeaveOneOut(fit.batch_sizes, np.array(critical), np.array(probability))
