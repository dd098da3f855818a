"""Final losses of the branches of one checkpoint, by seed and factor of the batch size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from analysis.arrays import Array
from cbs.errors import DataError


@dataclass(frozen=True)
class BranchLosses:
    """Losses of the branches of one checkpoint after equal numbers of examples. Branches of one seed see the same
    examples in the same order, so differences within a row are paired.

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

    @property
    def diverged(self) -> np.ndarray:
        """Mask of the factors at which the branch of some seed diverged, ``[K]``."""
        return np.asarray(np.isposinf(self.losses).any(axis=0))

    @property
    def usable(self) -> np.ndarray:
        """Mask of the factors that can be compared with one another, ``[K]``: none of their branches diverged, and they
        share seeds, directly or through other factors. Of several such sets it is the one with the most branches."""
        there = np.isfinite(self.losses) & ~self.diverged
        seeds, factors = there.shape
        rows, columns = np.nonzero(there)
        if not len(rows):
            return np.zeros(factors, dtype=bool)
        graph = csr_array((np.ones(len(rows)), (rows, seeds + columns)), shape=(seeds + factors,) * 2)
        labels = connected_components(graph, directed=False)[1]
        sizes = np.bincount(labels[rows], minlength=labels.max() + 1)
        return np.asarray((labels[seeds:] == sizes.argmax()) & there.any(axis=0))

    def of(self, kept: np.ndarray) -> BranchLosses:
        """Return the branches of the factors in a mask ``[K]``."""
        return BranchLosses(self.factors[kept], self.losses[:, kept])
