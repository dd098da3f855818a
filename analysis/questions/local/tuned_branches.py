"""The branches of one checkpoint at the best learning rate of every factor of the batch size."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from analysis.arrays import Array
from analysis.estimate.branches.losses import BranchLosses
from analysis.read.branches import Branched


@dataclass(frozen=True)
class CheckpointTables:
    """The branches of a checkpoint as tables, at the best learning rate of every factor, see :func:`tables_of`.

    Attributes:
        rows: positions in :attr:`Branched.trials` of seed and factor, -1 where there is none, ``[N, K]``.
        lr_factors, edges: of every factor, see :class:`BranchesAt`.
        chosen_alone: whether at some factor one seed chose the learning rate by the loss that is compared.
    """

    branched: Branched
    factors: Array
    rows: np.ndarray
    lr_factors: Array
    edges: np.ndarray
    chosen_alone: bool = False

    def of(self, column: str) -> BranchLosses:
        """A column of the trials, NaN where there is none."""
        values = self.branched.trials[column].to_numpy(float)
        return BranchLosses(self.factors, np.where(self.rows >= 0, values[self.rows], np.nan))

    @property
    def noise(self) -> float:
        """Deviation of one branch's loss over seeds at the factor nearest to 1 that two seeds ran; NaN without."""
        losses = self.of("loss").losses
        known = np.isfinite(losses).sum(axis=0) > 1
        if not known.any():
            return math.nan
        nearest = min(np.flatnonzero(known), key=lambda place: abs(math.log(self.factors[place])))
        return float(np.std(losses[np.isfinite(losses[:, nearest]), nearest], ddof=1))


def tables_of(branched: Branched) -> CheckpointTables:
    """Where several learning rates were tried, the one that counts for a seed is that of the lowest mean over all other
    seeds, of those that most seeds ran and it ran itself: the best of several losses that are themselves compared would
    be too low."""
    factors, of_factor = np.unique(branched.trials["factor"].to_numpy(float), return_inverse=True)
    seeds, of_seed = np.unique(branched.trials["seed"], return_inverse=True)
    every_rate, every_loss = (branched.trials[name].to_numpy(float) for name in ("lr_factor", "loss"))
    rows = np.full((len(seeds), len(factors)), -1)
    best, edges, alone = np.ones(len(factors)), np.zeros(len(factors), dtype=bool), False
    for place in range(len(factors)):
        own = np.flatnonzero(of_factor == place)
        rates, of_rate = np.unique(every_rate[own], return_inverse=True)
        ran, of_run = np.unique(of_seed[own], return_inverse=True)
        losses, at = np.full((len(ran), len(rates)), np.nan), np.full((len(ran), len(rates)), -1)
        losses[of_run, of_rate], at[of_run, of_rate] = every_loss[own], own
        counts = (~np.isnan(losses)).sum(axis=0)
        most = np.flatnonzero(counts == counts.max())
        full = losses[:, most]
        best[place] = rates[most[_mean(full).argmin()]]
        edges[place] = len(rates) > 1 and best[place] in (rates[0], rates[-1])
        alone |= len(rates) > 1 and len(ran) == 1
        for run, seed in enumerate(ran):
            others = np.delete(full, run, axis=0) if len(ran) > 1 else full
            # a rate at which any seed diverged counts only where there is no other
            means = np.where(np.isinf(full).any(axis=0), np.inf, _mean(others))
            known = np.flatnonzero(~np.isnan(full[run]))
            if len(known):
                rows[seed, place] = at[run, most[known[means[known].argmin()]]]
    return CheckpointTables(branched, factors, rows, best, edges, alone)


def _mean(losses: Array) -> Array:
    """Means over seeds of what is known, infinity where nothing is."""
    counts = (~np.isnan(losses)).sum(axis=0)
    return np.where(counts > 0, np.nansum(losses, axis=0) / np.maximum(counts, 1), np.inf)
