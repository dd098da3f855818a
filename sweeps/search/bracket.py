r"""Decide which trials a study needs next, as a pure function of the trials it already has.

"Steps" here are costs of any kind, compared in log steps; see :mod:`sweeps.search.objective`.

On the first seed the search moves outwards, each time a little beyond where the last two learning rates put the best
one, until that has a worse one on either side, however far away. It then narrows this bracket to a factor of 2. Beyond
a side that is worse by less than the noise it tries one more, unless other batch sizes put the best learning rate well
inside. It goes on halving the bracket as long as a finer learning rate could still gain :attr:`Rules.gain`. The other
seeds run at the winner, unless they have run beside it, and at every learning rate that can still be the best one:
:math:`E[\max(0, -D)]`, the expected loss from not choosing it, exceeds :attr:`Rules.loss`. :math:`D` is the log of its
steps over those of the winner. It is taken as normal around the mean difference over the seeds that both have run (so
that the effect of the data order cancels), or around the difference of their means, whichever gives the larger expected
loss.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from cbs.trial.lr_choice import Expected, cliff, vertex
from sweeps.search.objective import Objective, StepsToTarget
from sweeps.search.trial_table import CURVATURE, FARTHEST, OCTAVE, Lattice, Seen, TrialTable, stride, two_rates

# Log steps that a finer learning rate has to be able to gain to be tried before the other seeds have run
MUCH = 0.05

# The same threshold where neither neighbour diverged. It is higher because a neighbour that was pruned may be slow by
# chance, while next to a learning rate that diverged the steps keep falling up to the limit of stability.
DIP = 0.10

# Fraction of the standard deviation of one trial; a smaller gain could not be seen in a single trial
NOTICED = 1.0

# A learning rate is worse beyond the noise if it is by so many standard deviations of the difference of two trials
CLOSES = 1.0

# Other batch sizes put the best learning rate inside a bracket if its end is more than so many standard deviations
# beyond where they predict it.
SURE = 1.0

# Width in positions to which the gap up to a diverged learning rate is closed where no lower learning rate reached the
# target: if the steps keep falling up to the limit of stability, the learning rates that reach the target within the
# budget may span less than a factor of 2.
WINDOW = OCTAVE // 4

# Expected loss that is accepted without another seed, in standard errors of the mean over all seeds
MISSED = 1.0

# Expected gain on the learning rate beside it, in the same unit, up to which the winner gets no further seed
GAINED = 2.0

FEW = 3  # Seeds that the winner has in any case: as many as a first comparison needs


@dataclass(frozen=True)
class TrialRequest:
    """A trial to run, and the reason for it."""

    lr: float
    seed: int
    why: str


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Rules for when a study needs no further trials.

    Attributes:
        resolution: smallest ratio between two learning rates of a bracket.
        gain: log steps; a finer learning rate is tried only if it could gain more than this.
        loss: log steps; a learning rate gets no further seed if the expected loss from not choosing it is at most this.
        prune_factor: pruning factor of the sweep.
        objective: describes costs in words.
        expected: where other batch sizes put the best learning rate; ``None`` if none was searched before.
        believes: whether that may do in place of learning rates on either side.
    """

    resolution: float = 1.04
    gain: float = 0.02
    loss: float = 0.01
    prune_factor: float | None = 1.3
    objective: Objective = field(default_factory=StepsToTarget)
    expected: Expected | None = None
    believes: bool = False

    def believed(self, log_lr: float, known: Expected | None, deviation: float, seeds: int) -> bool:
        """Return whether a learning rate is as good as the best one by what is ``known`` of it: whether it is slower by
        no more than the noise of the mean over the seeds, given the standard deviation of one trial."""
        if not self.believes or known is None:
            return False
        away = known.deviation**2 + (known.log_lr - log_lr) ** 2
        return CURVATURE * away <= max(self.loss, MISSED * deviation / math.sqrt(seeds))

    @property
    def finest(self) -> int:
        """Smallest allowed distance between two learning rates, in positions of the lattice."""
        # a resolution that is a whole number of positions must not round up
        return max(1, math.ceil(OCTAVE * math.log2(self.resolution) - 1e-9))


def needed(seen: Seen, seeds: Sequence[int], lattice: Lattice, rules: Rules) -> list[TrialRequest]:
    """Return the trials to run next; an empty list if the study is done. Call again once all of them have finished.

    Args:
        seen: outcomes of finished trials, with at least one trial of the first seed.
        seeds: seeds of the study; the bracket is found on the first.
        lattice: learning rates of the optimizer.
        rules: rules for when to stop.
    """
    if not any(outcome.tells for outcome in seen.values()):
        return []
    table = TrialTable(seen, seeds, lattice, rules.prune_factor)
    # from coarse to fine, and the first seed before the others: what an earlier stage finds may move the winner
    for stage in (_outwards, _closer, _beyond_noise, _much_finer, _winner_seeds, _finer, _contenders):
        asks = [ask for ask in stage(table, seeds, lattice, rules) if (ask.lr, ask.seed) not in seen]
        if asks:
            return asks
    return []


def bracketed(seen: Seen, seeds: Sequence[int], lattice: Lattice, rules: Rules) -> bool:
    """Return whether the winner has a worse learning rate within a factor of 2 on either side, and one that is worse
    beyond the noise."""
    table, stages = TrialTable(seen, seeds, lattice, rules.prune_factor), (_outwards, _closer, _beyond_noise)
    return table.best is not None and not any(stage(table, seeds, lattice, rules) for stage in stages)


def optimum(seen: Seen, seeds: Sequence[int], lattice: Lattice, rules: Rules) -> tuple[float, float] | None:
    """Return ln of the best learning rate, interpolated between those that were tried, and its variance.

    If no trial reached the target, the learning rate that came nearest is taken. ``None`` if no trial is informative.
    """
    if not any(math.isfinite(end.cost) or math.isfinite(end.distance) for end in seen.values()):
        return None
    table = TrialTable(seen, seeds, lattice, rules.prune_factor)
    best = table.best
    if best is None:
        # where the target is missed, no more is known than a factor of e
        return math.log(table.lrs[table.leader()]), 1.0
    if (told := two_rates(table)) is not None and len(table.lrs) == 2:
        return told.log_lr, told.deviation**2
    at = math.log(table.lrs[best])
    if best in (0, len(table.lrs) - 1):
        return at, 1.0
    below, above = (math.log(table.lrs[best + side] / table.lrs[best]) for side in (-1, 1))
    rises = table.rises(best)
    # one that was stopped is worse by at least the factor at which trials are stopped
    known = [
        rise if math.isfinite(rise) else 2 * math.log(rules.prune_factor or 2.0) for rise in rises[[best - 1, best + 1]]
    ]
    position, _ = vertex(known[0], known[1], -below, above)
    return at + position, (0.15 * (above - below)) ** 2


def _outwards(table: TrialTable, seeds: Sequence[int], lattice: Lattice, rules: Rules) -> list[TrialRequest]:
    """Request a trial beyond the leader if the leader is the lowest or the highest learning rate tried."""
    leader, last = table.leader(), len(table.lrs) - 1
    asks: list[TrialRequest] = []
    here, known = math.log(table.lrs[leader]), _known(table, rules)
    if table.best is not None and rules.believed(here, known, table.seed_deviation(), len(seeds)):
        return asks
    # of a single learning rate the side on which other batch sizes put the best one tells most
    only = 0 if known is None or not rules.believes or last else known.side(here)
    for side, at_end in ((-1, leader == 0), (1, leader == last)):
        if not at_end or side == -only:
            continue
        here = table.at[leader]
        octaves = 1 if last == 0 else stride(table, leader, leader - side, rules.expected is not None)
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


def _known(table: TrialTable, rules: Rules) -> Expected | None:
    """Return what other batch sizes and two learning rates here say of the best one; ``None`` without others."""
    told, seen = rules.expected, two_rates(table)
    if told is None or seen is None:
        return told
    weights = told.deviation**-2, seen.deviation**-2  # two independent estimates count by their precision
    mean = (weights[0] * told.log_lr + weights[1] * seen.log_lr) / sum(weights)
    return Expected(mean, sum(weights) ** -0.5)


def _closer(table: TrialTable, seeds: Sequence[int], lattice: Lattice, rules: Rules) -> list[TrialRequest]:
    """Request trials that halve the gaps next to the leader that are wider than a factor of 2.

    If no trial reached the target, the gap to a higher learning rate that diverged is closed further, down to
    :data:`WINDOW`.
    """
    leader, asks, diverged = table.leader(), [], np.isinf(table.distance)
    for beside in (leader - 1, leader + 1):
        if not 0 <= beside < len(table.lrs):
            continue
        gap = table.at[beside] - table.at[leader]
        below_cliff = table.best is None and beside > leader and diverged[beside] and not diverged[leader]
        widest = WINDOW if below_cliff else OCTAVE
        if abs(gap) > widest + 1:
            # one that missed the target or was pruned is far from the best one, by how much is not known
            lost = table.best is not None and not diverged[beside] and math.isinf(table.rises(leader)[beside])
            step = widest if lost else max(1, round(abs(gap) / widest / 2)) * widest
            position = round(table.at[leader] + math.copysign(step, gap))
            why = "no lower learning rate reached the target" if below_cliff else "more than a factor of 2"
            asks.append(TrialRequest(lattice.lr(position), seeds[0], f"between {_ends(table, leader, beside)}: {why}"))
    return asks


def _beyond_noise(table: TrialTable, seeds: Sequence[int], lattice: Lattice, rules: Rules) -> list[TrialRequest]:
    """Request a trial beyond a side on which no learning rate is worse than the winner beyond the noise."""
    best, last = table.best, len(table.lrs) - 1
    if best in (None, 0, last):
        return []
    together = np.maximum((np.isfinite(table.costs) & np.isfinite(table.costs[best])).sum(axis=1), 1)
    # means over the seeds that both have, so the noise is that of a difference
    worse = table.rises(best) > CLOSES * table.seed_deviation() * np.sqrt(2 / together)
    asks = []
    for side, end, beside in ((-1, 0, worse[:best]), (1, last, worse[best + 1 :])):
        if beside.any():
            continue
        told = rules.expected
        if told is not None and side * (math.log(table.lrs[end]) - told.log_lr) > SURE * told.deviation:
            continue
        position = round(table.at[end]) + side * OCTAVE
        if abs(position) <= FARTHEST:
            word = "lower" if side < 0 else "higher"
            why = f"no {word} learning rate is worse than {table.lrs[best]:.4g} by more than the noise"
            asks.append(TrialRequest(lattice.lr(position), seeds[0], why))
    return asks


def _much_finer(table: TrialTable, seeds: Sequence[int], lattice: Lattice, rules: Rules) -> list[TrialRequest]:
    """Request a finer learning rate whose gain would be so large that the other seeds would have to move to it."""
    best = table.best
    if best is None or best in (0, len(table.lrs) - 1):
        return []
    cliff = np.isinf(table.distance[[best - 1, best + 1]]).any()
    return _middle(table, seeds, lattice, rules, max(rules.gain, MUCH if cliff else DIP))


def _finer(table: TrialTable, seeds: Sequence[int], lattice: Lattice, rules: Rules) -> list[TrialRequest]:
    """Request a finer learning rate if it could gain more than the noise of one trial."""
    return _middle(table, seeds, lattice, rules, max(rules.gain, NOTICED * table.seed_deviation()))


def _middle(
    table: TrialTable, seeds: Sequence[int], lattice: Lattice, rules: Rules, least: float
) -> list[TrialRequest]:
    """Request the middle of the gap next to the winner in which most could be gained, if that is more than
    ``least``."""
    best = table.best
    if best is None or best in (0, len(table.lrs) - 1):
        return []
    gaps = [abs(table.at[best + side] - table.at[best]) for side in (-1, 1)]
    rises = table.rises(best)
    left, right = float(rises[best - 1]), float(rises[best + 1])
    gains = possible_gains(left, right, gaps[0], gaps[1], cliff(table.at, rises, best), rules.prune_factor)
    for place in sorted((0, 1), key=lambda place: -gains[place]):
        side, half = (-1, 1)[place], gaps[place] / 2
        if gains[place] > least and half >= rules.finest:
            position = round(table.at[best] + side * half)
            why = f"between {_ends(table, best, best + side)}: up to {rules.objective.gained(gains[place])}"
            return [TrialRequest(lattice.lr(position), seeds[0], why)]
    return []


def possible_gains(
    left: float, right: float, below: float, above: float, beyond: bool, prune_factor: float | None
) -> tuple[float, float]:
    """Return the log steps that learning rates half way to the lower and to the upper neighbour of the best could gain.

    The gain follows from the parabola through the three points. Towards a neighbour that missed the target (its rise is
    infinite) or lies beyond a cliff, it is at least what the slope between the other neighbour and the winner implies;
    if both missed it, it follows from the least curvature that this implies.

    Args:
        left, right: log steps of the lower and the upper neighbour relative to those of the winner.
        below, above: distances of the two neighbours from the winner, in the same unit.
        beyond: whether the upper neighbour may lie beyond a cliff, see :func:`cbs.trial.lr_choice.cliff`.
        prune_factor: pruning factor of the sweep.
    """
    least = math.log(prune_factor or 2.0)
    if math.isinf(left) and math.isinf(right):
        return least / 4, least / 4
    first = left if math.isfinite(left) else max(least, right)
    second = right if math.isfinite(right) else max(least, left)
    position, gain = vertex(first, second, below, above)
    lower, upper = (gain, 0.0) if position < 0 else (0.0, gain)
    if math.isinf(left):
        lower = max(lower, right / above * below / 2)
    if beyond:
        upper = max(upper, left / below * above / 2)
    return lower, upper


def _winner_seeds(table: TrialTable, seeds: Sequence[int], lattice: Lattice, rules: Rules) -> list[TrialRequest]:
    """Request seeds that the winner lacks: all that have no run beside it, and up to :data:`FEW`. Of the others it gets
    as many again each time, as long as it may still gain much on the learning rate beside it.

    If the best learning rate lies between two, now one of them wins and now the other, and a run at either says as
    much. If all seeds were repeated whenever the winner changes, a sweep of many seeds would run all of them twice.
    """
    best = table.best
    if best is None:
        return []
    beside = [row for row in (best - 1, best + 1) if 0 <= row < len(table.lrs)]
    ran, reached = table.ran[best], np.isfinite(table.costs[beside])
    missing = np.flatnonzero(~ran)
    asked = missing[~reached[:, missing].any(axis=0)]
    if not len(asked) and ran.sum() < FEW:
        asked = missing[: FEW - ran.sum()]
    elif not len(asked) and len(missing):
        apart = _apart(table, best, beside[int(reached.sum(axis=1).argmax())])
        deviation = table.seed_deviation()
        # without a seed that both have a cost for, the other one was pruned
        if not len(apart) or _loss(apart, deviation) > GAINED * deviation / math.sqrt(len(seeds)):
            asked = missing[: ran.sum()]
    return [TrialRequest(table.lrs[best], seeds[each], "the best so far, on another seed") for each in asked]


def _contenders(table: TrialTable, seeds: Sequence[int], lattice: Lattice, rules: Rules) -> list[TrialRequest]:
    """Request further seeds of learning rates that can still be best, doubling the number of seeds each time."""
    best = table.best
    if best is None:
        return []
    rises, deviation, logs = table.rises(best), table.seed_deviation(), np.log(table.costs)
    asks = []
    for row in np.flatnonzero(np.isfinite(rises) & ~table.ran.all(axis=1)):
        apart = _apart(table, int(row), best)
        if row == best or not len(apart):
            continue
        spread = math.sqrt(1 / np.isfinite(logs[row]).sum() + 1 / np.isfinite(logs[best]).sum())
        means = expected_loss(float(np.nanmean(logs[row]) - np.nanmean(logs[best])), deviation * spread)
        loss = max(_loss(apart, deviation), means)
        if loss > max(rules.loss, MISSED * deviation / math.sqrt(len(seeds))):
            missing = [seed for seed, ran in zip(seeds, table.ran[row], strict=True) if not ran]
            why = f"{rules.objective.apart(apart.mean())} of the best on {len(apart)} seeds: it can still be best"
            asks += [TrialRequest(table.lrs[row], seed, why) for seed in missing[: int(table.ran[row].sum())]]
    return asks


def _apart(table: TrialTable, row: int, other: int) -> np.ndarray:
    """Return log steps of a learning rate over those of another, of every seed for which both have them."""
    apart = np.log(table.costs[row]) - np.log(table.costs[other])
    return np.asarray(apart[np.isfinite(apart)])


def _loss(apart: np.ndarray, deviation: float) -> float:
    """Return the expected loss from not choosing a learning rate, given log steps over those of another seed by seed,
    and the standard deviation of one trial."""
    return expected_loss(float(apart.mean()), deviation * math.sqrt(2 / len(apart)))


def expected_loss(mean: float, deviation: float) -> float:
    """Return the expectation of ``max(0, -D)`` for a normal ``D`` with this mean and standard deviation."""
    z = mean / deviation
    density, below = math.exp(-z * z / 2) / math.sqrt(2 * math.pi), math.erfc(z / math.sqrt(2)) / 2
    return deviation * density - mean * below


def _ends(table: TrialTable, row: int, other: int) -> str:
    low, high = sorted((table.lrs[row], table.lrs[other]))
    return f"{low:.4g} and {high:.4g}"
