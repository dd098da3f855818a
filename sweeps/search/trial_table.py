"""The trials of one study as a table, by learning rate and seed: which learning rate is best so far, and where a better
one may lie.

Learning rates have integer positions, :data:`OCTAVE` per factor of 2 from an optimizer's default. Searches that arrive
from different sides therefore try exactly the same floats, and trials of earlier sweeps on a grid with a factor of 2
can be reused.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cbs.trial.lr_choice import Expected, best_of_standings, censored, standings

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
            cell = row[lr], column[seed]
            costs[cell], distance[cell], self.ran[cell] = outcome.cost, outcome.distance, True
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


# If two learning rates differ by less than this in log steps, the best one is near: where, is lost in the noise
NEAR = math.log(1.3)

# Fall of ln of the steps per ln lr above which two learning rates do not say how far away the best one is: far below
# it, steps are in proportion to 1/lr, however far.
STRAIGHT = 0.8

# By how much ln of the steps usually rises per squared distance in ln lr from the best learning rate
CURVATURE = 0.2

# Standard deviation of that, as a share of it
VAGUE = 0.5

# Octaves that the first step beyond the leader has at least where no trial reached the target: a learning rate within
# a factor of 4 of the best one rarely takes the whole budget.
_FAR = 4

# Octaves below a learning rate that diverged within which the best one usually lies
_BELOW_CLIFF = 2

# Octaves up to which nothing lies between two learning rates: a bracket is a factor of 2 on either side.
_NEXT = 1.5

# Most octaves of a step beyond the leader, a factor of 65,536
_LONGEST_STRIDE = 16


def two_rates(table: TrialTable) -> Expected | None:
    """Return where two learning rates that reached the target put the best one, by how far apart their steps are;
    ``None`` for another number of them."""
    if table.best is None or len(rows := np.flatnonzero(np.isfinite(rises := table.rises(table.best)))) != 2:
        return None
    low, high = rows
    apart, deviation = math.log(table.lrs[high] / table.lrs[low]), table.seed_deviation()
    away = _from_middle(float(rises[low] - rises[high]), apart)
    middle = math.log(table.lrs[high] * table.lrs[low]) / 2
    # the noise of two runs seen through the parabola, and what is not known of its curvature
    return Expected(middle + away, math.hypot(deviation / (math.sqrt(2) * CURVATURE * apart), VAGUE * away))


def _from_middle(fall: float, apart: float) -> float:
    """Return how far in ln lr from the middle of two learning rates the best one lies, on the side of the faster one,
    given their distance and by how much ln of the steps falls between them; by the usual :data:`CURVATURE`."""
    return fall / (2 * CURVATURE * apart)


def stride(table: TrialTable, leader: int, inside: int, told: bool) -> int:
    """Return the octaves to go beyond the leader, given the learning rate next to it: one octave beyond where these two
    put the best one. 0 if it more probably lies between them.

    If one of them missed the target, they hardly say where. The best one is near if other batch sizes have ``told``
    where to begin, and may be far away otherwise.
    """
    gap = abs(table.at[leader] - table.at[inside]) / OCTAVE
    twice, diverged = min(_LONGEST_STRIDE, round(2 * gap)), math.isinf(table.distance[inside])
    if table.best is None:
        still = not math.isinf(table.distance[leader])
        return max(_FAR, twice) if still else max(1, round(gap) if told else twice)
    rise = float(table.rises(leader)[inside])
    if math.isinf(rise) and told:
        return int(not diverged or gap < _NEXT)
    if math.isinf(rise):
        # what missed the target is worse by an unknown factor; what diverged is near the best one
        return _BELOW_CLIFF * (gap < _BELOW_CLIFF + 0.5) if diverged else max(_BELOW_CLIFF, min(_FAR, round(gap)))
    apart = gap * math.log(2)
    if rise < NEAR:
        return 1
    if rise > STRAIGHT * apart:
        return twice
    away = (_from_middle(rise, apart) - apart / 2) / math.log(2)
    return max(1, min(twice, math.ceil(away + 0.5)))
