"""The trials of one study as a table, by learning rate and seed, and which learning rate is best so far.

Learning rates have integer positions, :data:`OCTAVE` per factor of 2 from an optimizer's default. Searches that arrive
from different sides therefore try exactly the same floats, and trials of earlier sweeps on a grid with a factor of 2
can be reused.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cbs.trial.lr_choice import best_of_standings, censored, standings

# Number of positions per factor of 2: neighbouring learning rates differ by 1.1 %
OCTAVE = 64

# Largest distance from the default, in positions: a factor of 1e12 on either side
FARTHEST = 40 * OCTAVE

_SAME = 1e-5  # Relative difference below which two learning rates are one: they are written with six digits


class Lattice:
    """Map between positions and learning rates of one optimizer.

    Args:
        grid: the optimizer's own learning rates in increasing order. Their middle is position 0, and a position that
            falls on one of them returns exactly that float.
    """

    def __init__(self, grid: Sequence[float]) -> None:
        self._anchor = middle(grid)
        self._own = {round(self.position(lr)): lr for lr in grid}

    def lr(self, position: int) -> float:
        """Return the learning rate at a position, rounded to six digits."""
        exact = self._anchor * 2.0 ** (position / OCTAVE)
        own = self._own.get(position, exact)
        return own if abs(own / exact - 1.0) < _SAME else float(f"{exact:.6g}")

    def position(self, lr: float) -> float:
        """Return the position of a learning rate; not an integer if the learning rate is not on the lattice."""
        position = OCTAVE * math.log2(lr / self._anchor)
        return float(round(position)) if abs(position - round(position)) < OCTAVE * _SAME else position

    def nearest(self, log_lr: float, step: int = OCTAVE) -> int:
        """Return the multiple of ``step`` nearest to ``exp(log_lr)``, at most :data:`FARTHEST` from the default."""
        position = round((log_lr - math.log(self._anchor)) / math.log(2.0) * OCTAVE / step) * step
        return max(-FARTHEST, min(FARTHEST, position))


def middle(grid: Sequence[float]) -> float:
    """Return the middle of a grid; the upper of the two middle values if their number is even."""
    return grid[len(grid) // 2]


# Prior of the noise: the standard deviation of ln S of one trial after the effects of learning rate and seed are
# removed, and the degrees of freedom for which this prior counts.
SEED_DEVIATION, SEED_WEIGHT = 0.05, 3.0

# Digits to which the final distances to the target of trials that missed it are compared
ALIKE = 3


@dataclass(frozen=True)
class TrialOutcome:
    """How a trial ended.

    Attributes:
        cost: what the search minimises: steps to target, or another cost if trials train to a budget; NaN if there is
            none.
        distance: distance to the target at the end as a fraction of the distance at the start; infinite if the trial
            diverged, 0 if it has a cost.
        tells: whether the outcome says something about training; false if the machine was the reason.
    """

    cost: float
    distance: float
    tells: bool = True


Seen = dict[tuple[float, int], TrialOutcome]
"""Outcome of every finished trial, by learning rate and seed."""


class TrialTable:
    """The trials of one study as arrays, for ``L`` learning rates and ``N`` seeds.

    Attributes:
        lrs: learning rates in increasing order, length ``L``.
        at: positions of the learning rates on the lattice, shape ``[L]``.
        costs: costs after the pruning rule, shape ``[L, N]``; NaN where there is none.
        ran: whether the trial has run, shape ``[L, N]``.
        distance: mean final distance to the target over the trials of a learning rate, shape ``[L]``.
    """

    def __init__(self, seen: Seen, seeds: Sequence[int], lattice: Lattice, prune_factor: float | None) -> None:
        self.lrs = sorted({lr for lr, _ in seen})
        self.at = np.array([lattice.position(lr) for lr in self.lrs])
        row, column = {lr: i for i, lr in enumerate(self.lrs)}, {seed: j for j, seed in enumerate(seeds)}
        shape = (len(self.lrs), len(seeds))
        costs, distance = np.full(shape, np.nan), np.zeros(shape)
        self.ran = np.zeros(shape, dtype=bool)
        for (lr, seed), outcome in seen.items():
            place = row[lr], column[seed]
            costs[place], distance[place], self.ran[place] = outcome.cost, outcome.distance, True
        self.costs = censored(costs, prune_factor)
        self.distance = distance.sum(axis=1) / np.maximum(self.ran.sum(axis=1), 1)

    @cached_property
    def best(self) -> int | None:
        """Row of the best learning rate; ``None`` if no trial reached the target."""
        row = int(best_of_standings(*self._standings)[0])
        return None if row < 0 else row

    def leader(self) -> int:
        """Return the row of the best learning rate. If no trial reached the target this is the one that ended nearest
        to it; among equally near ones the highest, because too low a learning rate hardly moves. If every trial
        diverged it is the lowest."""
        best = self.best
        if best is not None:
            return best
        if not np.isfinite(self.distance).any():
            return 0
        near = np.round(self.distance, ALIKE)
        return int(np.flatnonzero(near == near.min())[-1])

    @cached_property
    def _standings(self) -> tuple[np.ndarray, np.ndarray]:
        return standings(self.costs[None], self.ran[None])

    def rises(self, row: int) -> np.ndarray:
        """Return log steps relative to those of a row, shape ``[L]``; infinite where a larger share missed the
        target."""
        failed, mean = (each[0] for each in self._standings)
        # shares of seeds are quotients, alike up to rounding
        return np.where(failed <= failed[row] + 1e-9, np.maximum(mean - mean[row], 0.0), np.inf)

    def seed_deviation(self) -> float:
        """Return the standard deviation of the log steps of one trial, shrunk towards :data:`SEED_DEVIATION`.

        It is taken from the residuals after effects of learning rate and seed, or of learning rate alone where the
        trials do not allow both to be estimated.
        """
        logs, hit = np.log(self.costs), np.isfinite(self.costs)
        paired = hit & (hit.sum(axis=0) > 1) & (hit.sum(axis=1) > 1)[:, None]
        squares, freedom = 0.0, 0.0
        if paired.any():
            lrs, seeds = np.flatnonzero(paired.any(axis=1)), np.flatnonzero(paired.any(axis=0))
            freedom = float(paired.sum() - len(lrs) - len(seeds) + 1)
            squares = _residual(np.where(paired, logs, 0.0)[np.ix_(lrs, seeds)], paired[np.ix_(lrs, seeds)])
        if freedom <= 0:
            squares = freedom = 0.0
            for row in np.flatnonzero(hit.sum(axis=1) > 1):
                values = logs[row][hit[row]]
                squares, freedom = squares + float(values.var()) * len(values), freedom + len(values) - 1
        return math.sqrt((SEED_WEIGHT * SEED_DEVIATION**2 + squares) / (SEED_WEIGHT + freedom))


def _residual(logs: np.ndarray, there: np.ndarray) -> float:
    """Return the residual sum of squares of an additive model of learning rate and seed, fitted by alternating
    means."""
    rows, columns = np.zeros(logs.shape[0]), np.zeros(logs.shape[1])
    for _ in range(50):  # converges by a constant factor a round; tables without gaps need one
        rest = np.where(there, logs - columns, 0.0).sum(axis=1) / np.maximum(there.sum(axis=1), 1)
        settled = np.abs(rest - rows).max() < 1e-9
        rows = rest
        columns = np.where(there, logs - rows[:, None], 0.0).sum(axis=0) / np.maximum(there.sum(axis=0), 1)
        if settled:
            break
    return float((np.where(there, logs - rows[:, None] - columns, 0.0) ** 2).sum())
