"""The table behind every local critical batch size: losses at the end of the branches of one checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from analysis.arrays import Array
from cbs.errors import DataError


@dataclass(frozen=True)
class BranchLosses:
    """Branches of one checkpoint, each as long as the others in examples; those of one seed saw the same examples in
    the same order, so that within a row differences are paired.

    Attributes:
        factors: k, batch size over that of the trunk, above 0 and increasing, shape ``[K]``.
        losses: :func:`cbs.trial.record.end_mean` of the metric, less is better: NaN where a branch was not run,
            infinity where it diverged, ``[N, K]`` for N seeds.

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
        """Factors at which the branch of some seed diverged, shape ``[K]``."""
        return np.asarray(np.isposinf(self.losses).any(axis=0))

    @property
    def usable(self) -> np.ndarray:
        """Factors that can be compared with one another, shape ``[K]``: none of their branches diverged, and seeds join
        them, directly or by way of others. Of several such sets that with the most branches."""
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
        """The branches of some of the factors."""
        return BranchLosses(self.factors[kept], self.losses[:, kept])
