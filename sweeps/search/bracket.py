r"""Which trials a study needs next, from those it has: a pure function.

"Steps" are costs in general, in log steps: see :mod:`sweeps.search.objective`.

On the first seed the best learning rate gets a worse one on either side, however far, in strides that grow; then the
bracket is closed to a factor of 2, and halved for as long as a finer learning rate could still gain :attr:`Rules.gain`.
The other seeds run at the winner, and at whatever else can still be best: where
:math:`E[\max(0, -D)]`, the loss expected from passing it by, exceeds :attr:`Rules.loss`. :math:`D` is the log of
its steps over those of the winner, normal around the mean difference over the seeds both have run, in which the data
order cancels, or around that of their means, whichever leaves more to lose.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from cbs.trial.lr_choice import best_lr_many, censored, standings, vertex
from sweeps.search.lattice import FARTHEST, OCTAVE, Lattice
from sweeps.search.objective import Objective, StepsToTarget

SEED_DEVIATION, SEED_WEIGHT = 0.05, 3.0
"""Standard deviation of ln S between two trials that differ in the seed, learning rate and seed effects aside, a
prior, and the degrees of freedom this counts for."""

MUCH = 0.05
"""Log steps that are worth a finer learning rate before other seeds have run."""

DIP = 0.10
"""The same where neither neighbour diverged: one that was given up may be slow by noise, while beside a cliff the
steps fall up to it."""

NOTICED = 1.0
"""Of the deviation of one trial: what less would be gained is not seen in one."""

NEAR = math.log(1.3)
"""Log steps that the last stride brought where the best learning rate is near."""

ALIKE = 3
"""Digits of the share of the distance to the target by which trials that missed it are told apart."""

WINDOW = OCTAVE // 4
"""Positions to which the gap to a diverged learning rate is closed where no lower one reached the target: within a
budget, steps that fall up to the edge of stability may leave less than a factor of 2 below it."""

MISSED = 1.0
"""Expected loss that is let pass, in standard errors of the mean over all seeds."""

_LONGEST_STRIDE = 16


@dataclass(frozen=True)
class TrialOutcome:
    """How a trial ended.

    Attributes:
        cost: what the search minimises, the steps to target unless trials train to a budget; NaN where there is none.
        distance: to the target at the end, as a share of that at the start; infinite where it diverged, 0 where there
            is a cost.
        tells: whether it ended as training went, not as a machine did.
    """

    cost: float
    distance: float
    tells: bool = True


@dataclass(frozen=True)
class TrialRequest:
    """A trial to run, and why."""

    lr: float
    seed: int
    why: str


@dataclass(frozen=True, kw_only=True)
class Rules:
    """When a study is known well enough.

    Attributes:
        resolution: smallest ratio between two learning rates of a bracket.
        gain: log steps that a finer learning rate may still gain.
        loss: log steps expected to be lost by giving a learning rate no further seed.
        prune_factor: as in the sweep.
        objective: says in words what costs are.
    """

    resolution: float = 1.04
    gain: float = 0.02
    loss: float = 0.01
    prune_factor: float | None = 1.3
    objective: Objective = field(default_factory=StepsToTarget)

    @property
    def finest(self) -> int:
        """Least positions between two learning rates."""
        return max(1, math.ceil(OCTAVE * math.log2(self.resolution) - 1e-9))


Seen = dict[tuple[float, int], TrialOutcome]
"""Outcome of every trial by learning rate and seed."""


class TrialTable:
    """The trials of a study as arrays.

    Attributes:
        lrs: increasing, length ``L``.
        at: their positions, shape ``[L]``.
        costs: after the pruning rule, shape ``[L, N]``; NaN where there is none.
        ran: shape ``[L, N]``.
        distance: mean over the trials of a learning rate, shape ``[L]``.
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

    @property
    def best(self) -> int | None:
        """Row of the winner; ``None`` where nothing reached the target."""
        row = int(best_lr_many(self.costs[None], self.ran[None])[0])
        return None if row < 0 else row

    def leader(self) -> int:
        """The winner; where nothing reached the target the one that ended nearest to it, of equally near ones the
        highest, since the lower a learning rate the less it moves; where everything diverged the lowest."""
        best = self.best
        if best is not None:
            return best
        if not np.isfinite(self.distance).any():
            return 0
        near = np.round(self.distance, ALIKE)
        return int(np.flatnonzero(near == near.min())[-1])

    def rises(self, row: int) -> np.ndarray:
        """Log steps over those of a row, shape ``[L]``; infinite where a larger share missed the target."""
        failed, mean = (part[0] for part in standings(self.costs[None], self.ran[None]))
        return np.where(failed <= failed[row] + 1e-9, np.maximum(mean - mean[row], 0.0), np.inf)

    def seed_deviation(self) -> float:
        """Standard deviation of the log steps of one trial around learning rate and seed, drawn towards
        :data:`SEED_DEVIATION`; around the learning rates alone where only these can be told."""
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
    """Sum of squares around learning rate and seed, by alternating means until they stay."""
    rows, columns = np.zeros(logs.shape[0]), np.zeros(logs.shape[1])
    for _ in range(50):
        rest = np.where(there, logs - columns, 0.0).sum(axis=1) / np.maximum(there.sum(axis=1), 1)
        settled = np.abs(rest - rows).max() < 1e-9
        rows = rest
        columns = np.where(there, logs - rows[:, None], 0.0).sum(axis=0) / np.maximum(there.sum(axis=0), 1)
        if settled:
            break
    return float((np.where(there, logs - rows[:, None] - columns, 0.0) ** 2).sum())


def needed(seen: Seen, seeds: Sequence[int], lattice: Lattice, rules: Rules) -> list[TrialRequest]:
    """The trials to run next; none when the study is done. All of them are to be there before it is asked again.

    Args:
        seen: what there is, with at least one trial of the first seed.
        seeds: the first is the one that brackets.
        lattice: learning rates of the optimizer.
        rules: when to stop.
    """
    if not any(outcome.tells for outcome in seen.values()):
        return []
    table = TrialTable(seen, seeds, lattice, rules.prune_factor)
    for stage in (_outwards, _closer, _much_finer, _winner_seeds, _finer, _contenders):
        asks = [ask for ask in stage(table, seeds, lattice, rules) if (ask.lr, ask.seed) not in seen]
        if asks:
            return asks
    return []


def bracketed(seen: Seen, seeds: Sequence[int], lattice: Lattice, rules: Rules) -> bool:
    """Whether there is a winner with a worse learning rate within a factor of 2 on either side."""
    table = TrialTable(seen, seeds, lattice, rules.prune_factor)
    return table.best is not None and not any(stage(table, seeds, lattice, rules) for stage in (_outwards, _closer))


def optimum(seen: Seen, seeds: Sequence[int], lattice: Lattice, rules: Rules) -> tuple[float, float] | None:
    """Ln of the best learning rate, between those that were tried, and its variance; where nothing reached the target
    of the one that came nearest. ``None`` where no trial tells anything."""
    if not any(math.isfinite(end.cost) or math.isfinite(end.distance) for end in seen.values()):
        return None
    table = TrialTable(seen, seeds, lattice, rules.prune_factor)
    best = table.best
    if best is None:
        return math.log(table.lrs[table.leader()]), 1.0
    at = math.log(table.lrs[best])
    if best in (0, len(table.lrs) - 1):
        return at, 1.0
    below, above = (math.log(table.lrs[best + side] / table.lrs[best]) for side in (-1, 1))
    rises = table.rises(best)
    known = [
        rise if math.isfinite(rise) else 2 * math.log(rules.prune_factor or 2.0) for rise in rises[[best - 1, best + 1]]
    ]
    place, _ = vertex(known[0], known[1], -below, above)
    return at + place, (0.15 * (above - below)) ** 2


def _outwards(table: TrialTable, seeds: Sequence[int], lattice: Lattice, rules: Rules) -> list[TrialRequest]:
    """Beyond the leader where it is the lowest or the highest of what was tried."""
    leader, last = table.leader(), len(table.lrs) - 1
    asks = []
    for side, at_end in ((-1, leader == 0), (1, leader == last)):
        if not at_end:
            continue
        here = table.at[leader]
        octaves = 1 if last == 0 else _stride(table, leader, leader - side)
        position = round(here) + side * octaves * OCTAVE
        position = max(-FARTHEST, min(FARTHEST, position))
        if side * (position - here) >= 1:
            word = "lowest" if side < 0 else "highest"
            asks.append(
                TrialRequest(
                    lattice.lr(position), seeds[0], f"the best so far, {table.lrs[leader]:.4g}, is the {word} tried"
                )
            )
    return asks


def _stride(table: TrialTable, leader: int, inside: int) -> int:
    """Octaves to go beyond the leader: twice the last stride while that brings much."""
    gap = abs(table.at[leader] - table.at[inside]) / OCTAVE
    near = table.best is not None and table.rises(leader)[inside] < NEAR
    return 1 if near else max(1, min(_LONGEST_STRIDE, round(2 * gap)))


def _closer(table: TrialTable, seeds: Sequence[int], lattice: Lattice, rules: Rules) -> list[TrialRequest]:
    """Halves of the gaps beside the leader that are wider than a factor of 2; where nothing reached the target, also of
    that to a higher learning rate that diverged, down to :data:`WINDOW`."""
    leader, asks, diverged = table.leader(), [], np.isinf(table.distance)
    for beside in (leader - 1, leader + 1):
        if not 0 <= beside < len(table.lrs):
            continue
        gap = table.at[beside] - table.at[leader]
        below_cliff = table.best is None and beside > leader and diverged[beside] and not diverged[leader]
        widest = WINDOW if below_cliff else OCTAVE
        if abs(gap) > widest + 1:
            step = max(1, round(abs(gap) / widest / 2)) * widest
            position = round(table.at[leader] + math.copysign(step, gap))
            why = "nothing reached the target below" if below_cliff else "more than a factor of 2"
            asks.append(TrialRequest(lattice.lr(position), seeds[0], f"between {_ends(table, leader, beside)}: {why}"))
    return asks


def _much_finer(table: TrialTable, seeds: Sequence[int], lattice: Lattice, rules: Rules) -> list[TrialRequest]:
    """Finer learning rates by which the other seeds should not have to move."""
    best = table.best
    if best is None or best in (0, len(table.lrs) - 1):
        return []
    cliff = np.isinf(table.distance[[best - 1, best + 1]]).any()
    return _middle(table, seeds, lattice, rules, max(rules.gain, MUCH if cliff else DIP))


def _finer(table: TrialTable, seeds: Sequence[int], lattice: Lattice, rules: Rules) -> list[TrialRequest]:
    """Finer learning rates, as far as one trial can tell them from the winner."""
    return _middle(table, seeds, lattice, rules, max(rules.gain, NOTICED * table.seed_deviation()))


def _middle(
    table: TrialTable, seeds: Sequence[int], lattice: Lattice, rules: Rules, least: float
) -> list[TrialRequest]:
    """The middle of the gap beside the winner in which most could be gained, where that is more than ``least``."""
    best = table.best
    if best is None or best in (0, len(table.lrs) - 1):
        return []
    gaps = [abs(table.at[best + side] - table.at[best]) for side in (-1, 1)]
    rises = table.rises(best)
    gains = possible_gains(float(rises[best - 1]), float(rises[best + 1]), gaps[0], gaps[1], rules.prune_factor)
    for place in sorted((0, 1), key=lambda place: -gains[place]):
        side, half = (-1, 1)[place], gaps[place] / 2
        if gains[place] > least and half >= rules.finest:
            position = round(table.at[best] + side * half)
            why = f"between {_ends(table, best, best + side)}: up to {rules.objective.gained(gains[place])}"
            return [TrialRequest(lattice.lr(position), seeds[0], why)]
    return []


def possible_gains(
    left: float, right: float, below: float, above: float, prune_factor: float | None
) -> tuple[float, float]:
    """Log steps that a learning rate half way to the lower and to the upper neighbour of the best one could gain.

    By the parabola through the three; beside a neighbour that missed the target (its rise is infinite) by the slope
    that leads up to the winner, and where both did by the least curvature that this takes.

    Args:
        left, right: log steps of the neighbours over those of the winner.
        below, above: distances of the neighbours, in one unit.
        prune_factor: as in the sweep.
    """
    least = math.log(prune_factor or 2.0)
    if math.isinf(left) and math.isinf(right):
        return least / 4, least / 4
    first = left if math.isfinite(left) else max(least, right)
    second = right if math.isfinite(right) else max(least, left)
    place, gain = vertex(first, second, below, above)
    lower, upper = (gain, 0.0) if place < 0 else (0.0, gain)
    if math.isinf(left):
        lower = max(lower, right / above * below / 2)
    if math.isinf(right):
        upper = max(upper, left / below * above / 2)
    return lower, upper


def _winner_seeds(table: TrialTable, seeds: Sequence[int], lattice: Lattice, rules: Rules) -> list[TrialRequest]:
    """All seeds of the winner."""
    best = table.best
    if best is None:
        return []
    missing = [seed for seed, ran in zip(seeds, table.ran[best], strict=True) if not ran]
    return [TrialRequest(table.lrs[best], seed, "the best so far, on every seed") for seed in missing]


def _contenders(table: TrialTable, seeds: Sequence[int], lattice: Lattice, rules: Rules) -> list[TrialRequest]:
    """Further seeds, twice as many each time, of learning rates that can still be best."""
    best = table.best
    if best is None:
        return []
    rises, deviation, logs = table.rises(best), table.seed_deviation(), np.log(table.costs)
    asks = []
    for row in np.flatnonzero(np.isfinite(rises) & ~table.ran.all(axis=1)):
        apart = (logs[row] - logs[best])[np.isfinite(logs[row] - logs[best])]
        if row == best or not len(apart):
            continue
        loss = expected_loss(float(apart.mean()), deviation * math.sqrt(2 / len(apart)))
        spread = math.sqrt(1 / np.isfinite(logs[row]).sum() + 1 / np.isfinite(logs[best]).sum())
        loss = max(loss, expected_loss(float(np.nanmean(logs[row]) - np.nanmean(logs[best])), deviation * spread))
        if loss > max(rules.loss, MISSED * deviation / math.sqrt(len(seeds))):
            missing = [seed for seed, ran in zip(seeds, table.ran[row], strict=True) if not ran]
            why = f"{rules.objective.apart(apart.mean())} of the best on {len(apart)} seeds: it can still be best"
            asks += [TrialRequest(table.lrs[row], seed, why) for seed in missing[: int(table.ran[row].sum())]]
    return asks


def expected_loss(mean: float, deviation: float) -> float:
    """Expectation of ``max(0, -D)`` for ``D`` normal."""
    z = mean / deviation
    density, below = math.exp(-z * z / 2) / math.sqrt(2 * math.pi), math.erfc(z / math.sqrt(2)) / 2
    return deviation * density - mean * below


def _ends(table: TrialTable, row: int, other: int) -> str:
    low, high = sorted((table.lrs[row], table.lrs[other]))
    return f"{low:.4g} and {high:.4g}"
