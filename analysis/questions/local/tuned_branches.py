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
        branched: all branches of the checkpoint.
        factors: ratios of the batch sizes to that of the trunk, increasing, ``[K]``.
        rows: positions in :attr:`Branched.trials` by seed and factor, -1 where there is no branch, ``[N, K]``.
        lr_factors: ratio of the best learning rate of every factor to that of the trunk, ``[K]``.
        edges: whether that rate is the lowest or the highest of several, ``[K]``.
        chosen_alone: whether several rates were tried with a single seed, so that the loss that is compared also chose.
    """

    branched: Branched
    factors: Array
    rows: np.ndarray
    lr_factors: Array
    edges: np.ndarray
    chosen_alone: bool = False

    def of(self, column: str) -> BranchLosses:
        """Return a column of the trials by seed and factor; NaN where there is no branch."""
        values = self.branched.trials[column].to_numpy(float)
        return BranchLosses(self.factors, np.where(self.rows >= 0, values[self.rows], np.nan))

    @property
    def noise(self) -> float:
        """Standard deviation of the loss over seeds at the factor nearest to 1 that two seeds ran; NaN without one."""
        losses = self.of("loss").losses
        known = np.isfinite(losses).sum(axis=0) > 1
        if not known.any():
            return math.nan
        nearest = min(np.flatnonzero(known), key=lambda place: abs(math.log(self.factors[place])))
        return float(np.std(losses[np.isfinite(losses[:, nearest]), nearest], ddof=1))


def tables_of(branched: Branched) -> CheckpointTables:
    """Choose the learning rate of every factor and seed, and arrange the branches by seed and factor.

    Of the learning rates that the most seeds ran, a seed takes the one with the lowest mean loss over all other seeds,
    among those that it ran itself. Its own loss counts only if it is the only seed: the lowest of several noisy losses
    is biased.
    """
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
            # a learning rate at which some seed diverged is chosen only if all others are like it
            means = np.where(np.isinf(full).any(axis=0), np.inf, _mean(others))
            known = np.flatnonzero(~np.isnan(full[run]))
            if len(known):
                rows[seed, place] = at[run, most[known[means[known].argmin()]]]
    return CheckpointTables(branched, factors, rows, best, edges, alone)


def _mean(losses: Array) -> Array:
    """Return the mean of every column over the known losses; infinity if none is known."""
    counts = (~np.isnan(losses)).sum(axis=0)
    return np.where(counts > 0, np.nansum(losses, axis=0) / np.maximum(counts, 1), np.inf)
