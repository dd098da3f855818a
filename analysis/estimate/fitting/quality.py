"""What every single batch size decides of a fitted curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.arrays import Array
from analysis.estimate.fitting import Fit
from analysis.estimate.fitting.data import LEAST_DEVIATION, Data, Trials
from analysis.estimate.fitting.misfit import Misfit, grid_variance, lack_of_fit

FEWEST = 4
"""Batch sizes below which a curve through all but one of them is exactly determined or not at all."""


def misfit_of(fitted: Array, fit: Fit, data: Data, freedom: float, grid: float) -> Misfit | None:
    """The test of another curve, or on some of the batch sizes, with the noise of seeds that ``fit`` found.

    Args:
        fitted: log steps of the curve at the batch sizes of ``data``, shape ``[M]``.
        freedom, grid: as of :func:`analysis.estimate.fitting.misfit.lack_of_fit`.
    """
    here, residuals = data.reached, data.completed(fitted[None], fit.deviation)[0] - fitted
    return lack_of_fit(residuals[here], data.all_weights[here], freedom, fit.seed_variance, fit.seed_freedom, grid)


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
        refit = rest.fit(
            fit.exponent, max(fit.deviation, LEAST_DEVIATION), start=fit.estimate, knee=float(fit.estimate.knee)
        ).row(0)
        critical.append(float(refit.critical))
        misfit = misfit_of(refit.log_steps(rest.batch_sizes), fit, rest, fit.freedom - fit.seed_freedom - 1, grid)
        probability.append(np.nan if misfit is None else misfit.probability)
    return LeaveOneOut(fit.batch_sizes, np.array(critical), np.array(probability))
