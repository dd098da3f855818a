"""The influence of every single batch size on a fitted curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.arrays import Array
from analysis.estimate.fitting import Fit
from analysis.estimate.fitting.data import LEAST_DEVIATION, Data, Trials
from analysis.estimate.fitting.misfit import Misfit, grid_variance, lack_of_fit

FEWEST = 4
"""Number of batch sizes below which a curve through all but one of them is not overdetermined."""


def misfit_of(fitted: Array, fit: Fit, data: Data, freedom: float, grid: float) -> Misfit | None:
    """Test another curve, or some of the batch sizes, for lack of fit, with the noise of seeds from ``fit``.

    Args:
        fitted: log steps of the curve at the batch sizes of ``data``, shape ``[M]``.
        fit: the fit that supplies the noise.
        data: the data to test.
        freedom, grid: as for :func:`analysis.estimate.fitting.misfit.lack_of_fit`.
    """
    here, residuals = data.reached, data.completed(fitted[None], fit.deviation)[0] - fitted
    return lack_of_fit(residuals[here], data.all_weights[here], freedom, fit.seed_variance, fit.seed_freedom, grid)


@dataclass(frozen=True)
class LeaveOneOut:
    """Results of refits without one batch size at a time.

    Attributes:
        batch_sizes: the batch size left out, shape ``[M]``.
        critical: critical batch size of the refit, shape ``[M]``; 0 or infinity if the remaining data do not bound it.
        misfit: probability of the misfit of the remaining data, shape ``[M]``; NaN if undefined.
    """

    batch_sizes: Array
    critical: Array
    misfit: Array

    @property
    def range(self) -> tuple[float | None, float | None]:
        """Smallest and largest critical batch size; ``None`` in place of 0 and infinity."""
        low, high = (float(end) if 0 < end < np.inf else None for end in (self.critical.min(), self.critical.max()))
        return low, high


def leave_one_out(fit: Fit, tables: Sequence[Trials]) -> LeaveOneOut | None:
    """Refit without each batch size that reached the target in turn; ``None`` below :data:`FEWEST`."""
    if len(fit.batch_sizes) < FEWEST:
        return None
    grid = grid_variance(tables)
    critical, probability = [], []
    for place in np.flatnonzero(fit.data.reached):
        rest = fit.data.without(int(place))
        refit = rest.fit(
            fit.exponent, max(fit.deviation, LEAST_DEVIATION), start=fit.estimate, knee=float(fit.estimate.knee)
        ).row(0)
        critical.append(float(refit.critical))
        misfit = misfit_of(refit.log_steps(rest.batch_sizes), fit, rest, fit.freedom - fit.seed_freedom - 1, grid)
        probability.append(np.nan if misfit is None else misfit.probability)
    return LeaveOneOut(fit.batch_sizes, np.array(critical), np.array(probability))
