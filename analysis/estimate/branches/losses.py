"""Final losses of the branches of one checkpoint, by seed and factor of the batch size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.arrays import Array
from cbs.errors import DataError


@dataclass(frozen=True)
class BranchLosses:
    """Losses of the branches of one checkpoint after equal numbers of examples. Branches of one seed see the same
    examples in the same order.

    Attributes:
        factors: k, the ratio of the batch size to that of the trunk, above 0 and increasing, ``[K]``.
        losses: :func:`cbs.trial.record.end_mean` of the metric, lower is better, ``[N, K]`` for N seeds; NaN where no
            branch was run, infinity where it diverged.

    Raises:
        DataError: if shapes do not fit or factors do not increase.
    """

    factors: Array
    losses: Array

    def __post_init__(self) -> None:
        if self.losses.ndim != 2 or self.losses.shape[1:] != self.factors.shape or not len(self.factors):
            raise DataError(f"branch losses of shape {self.losses.shape} for factors of shape {self.factors.shape}")
        if not ((self.factors > 0).all() and (np.diff(self.factors) > 0).all()):
            raise DataError("the factors of branches must be above 0 and increase")
