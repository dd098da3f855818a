"""Up to which batch size the loss at a budget is as good as the best one, from the draws of the losses.

The cost of a larger batch at a budget: as loss, and as examples, from the curves of runs or from several budgets.

At the budget E, the larger batch has the loss that the smaller one has after E' examples, each at its best learning
rate. The fraction of the data that it costs is 1 - E'/E, and for the same loss the smaller batch takes (E'/B)/(E/B')
steps for every step of the larger one, which is B'/B if nothing is lost.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.special import ndtri

from analysis.config import AnalysisConfig
from analysis.estimate.comparison import (
    Difference,
    Standing,
    Standings,
    alike,
    correlated,
    difference,
    largest_within,
    shuffled,
    standings,
)
from analysis.estimate.objective import Losses
from analysis.quantities import UNKNOWN, Array, Quantity
from cbs.trial.record import AT_BUDGET
from cbs.trial.store import finite_or_none
from extensions.budget.reading import Spent

MOST_SEEDS = 1000  # Largest number of further seeds that is named: so many are as good as none
_STEP = 0.05  # Spacing in ln B at which curves are compared with their best

# Possible savings of a learning rate in between, in standard deviations of the mean, up to which they are noise
# themselves, which further seeds would reduce.
_NOISY = 3.0

_EDGE = "a best learning rate lies at the edge of the grid"


@dataclass(frozen=True, kw_only=True)
class Excess(Quantity):
    """Difference between the loss at a batch size and the best one of all, in the unit of the metric.

    Attributes:
        standing: how it compares with the margin; unknown, too, if the noise is unknown, or the best learning rate is
            at the edge of the grid.
        more_seeds: number of further seeds at every batch size that should decide it; ``None`` if it is decided, if
            seeds alone do not decide it, or if their scatter is unknown.
    """

    standing: Standing = Standing.UNKNOWN
    more_seeds: int | None = None


@dataclass(frozen=True, kw_only=True)
class Equivalence:
    """Comparison of the batch sizes of one optimizer at one budget.

    Attributes:
        excesses: excess of every batch size, in order.
        best: the batch size with the smallest loss, with the smallest and the largest one that may have it; an end is
            open if that is the smallest or the largest one that was run, because one beyond may be better.
        largest_within: the largest batch size whose loss is at most the margin above the smallest of those that were
            run; no value, or an open end, if this includes the largest batch size; unknown if a loss is a bound.
        largest_equal, smallest_worse: the largest batch size that is shown to be within the margin, and the smallest
            one above the best that is shown not to be; ``None`` if there is none.
    """

    excesses: tuple[Excess, ...] = field(repr=False)
    best: Quantity = UNKNOWN
    largest_within: Quantity = UNKNOWN
    largest_equal: int | None = None
    smallest_worse: int | None = None


def equivalence(losses: Losses, margin: float, confidence: float) -> Equivalence:
    """Compare all batch sizes, in increasing order, with the best of them.

    Those whose loss is a bound, because the best learning rate is at the edge of the grid, are left out of the
    comparisons. Any of them may be better than the best of the others, so that nothing is called equal, no largest size
    is named, and excesses are open above.

    Args:
        losses: the losses at the best learning rates.
        margin: largest excess that counts as equal.
        confidence: two-sided confidence; each kind of error has half of the remaining probability.
    """
    interior, excesses = np.flatnonzero(~losses.edges), [Excess() for _ in losses.sizes]
    bounds = len(interior) < len(losses.sizes)
    if not len(interior):
        return Equivalence(excesses=tuple(excesses))
    sizes, values = losses.sizes[interior], losses.values[interior] - losses.values[interior].min()
    if not len(losses.drawn):
        for at, value in zip(interior, values, strict=True):
            excesses[at] = Excess(float(value))
        best, within = Quantity(float(sizes[values.argmin()])), _largest(losses, margin, confidence).value
        return Equivalence(excesses=tuple(excesses), best=best, largest_within=Quantity(None if bounds else within))
    told = standings(losses.drawn[:, interior], margin, confidence)
    for index, at in enumerate(interior):
        standing, more = told.standings[index], None
        if bounds and standing is Standing.EQUAL:
            standing = Standing.UNKNOWN
        elif standing is Standing.UNKNOWN and not bounds:
            more = _more_seeds(losses, told, interior, index, margin, confidence)
        ends = float(told.low[index]), None if bounds else float(told.high[index])
        excesses[at] = Excess(float(values[index]), ends, standing=standing, more_seeds=more)
    perhaps = np.concatenate([sizes[told.may_be_best], losses.sizes[losses.edges]])
    first, last = float(perhaps.min()), float(perhaps.max())
    equal = [int(losses.sizes[at]) for at in interior if excesses[at].standing is Standing.EQUAL]
    above = zip(sizes[told.best + 1 :], told.standings[told.best + 1 :], strict=True)
    worse = [int(size) for size, each in above if each is Standing.WORSE]
    ends_of_best = (
        # below a batch of one example there is none that may be better
        first if first > losses.sizes.min() or first == 1 else None,
        last if last < losses.sizes.max() else None,
    )
    return Equivalence(
        excesses=tuple(excesses),
        best=Quantity(float(sizes[told.best]), ends_of_best),
        largest_within=UNKNOWN if bounds else _largest(losses, margin, confidence),
        largest_equal=max(equal, default=None),
        smallest_worse=min(worse, default=None),
    )


def _largest(losses: Losses, margin: float, confidence: float) -> Quantity:
    """Return the largest batch size within the margin of the best one that was run.

    The least of several noisy losses is too low, and so is a drawn loss where the draw has its least. The best one is
    therefore drawn by its probability, apart from the loss it is given.
    """
    interior = ~losses.edges
    logs = np.log(losses.sizes[interior])
    if len(logs) < 2:
        return UNKNOWN
    positions = np.unique(np.append(np.arange(float(logs[0]), float(logs[-1]), _STEP), logs))
    curves = losses.at(positions)
    drawn = losses.drawn[:, interior] if len(losses.drawn) else losses.values[None, interior]
    best_of_another = np.roll(drawn.argmin(axis=1), len(drawn) // 2)
    within = largest_within(positions, curves, margin, drawn[np.arange(len(drawn)), best_of_another])
    tail = 0.5 - confidence / 2
    low, value, high = np.quantile(within, [tail, 0.5, 1 - tail], method="nearest")
    value, high = (finite_or_none(float(np.exp(end))) for end in (value, high))
    return Quantity(value, (math.exp(low) if low < positions[-1] else float(losses.sizes[~losses.edges][-1]), high))


def _more_seeds(
    losses: Losses, told: Standings, interior: np.ndarray, index: int, margin: float, confidence: float
) -> int | None:
    """Return how many more seeds should move the limit of an excess that is nearer to the margin to it."""
    pair = interior[[index, told.best]]
    value = float(np.subtract(*losses.values[pair]))
    half = abs(float(told.high[index] if value < margin else told.low[index]) - value)
    wanted, have = abs(margin - value), float(losses.seeds[interior].min())
    # four standard deviations wide, see :func:`analysis.estimate.objective.draw_losses`
    by_rates = ndtri(0.5 + confidence / 2) * math.hypot(*losses.between[pair] / 4)
    noisy = losses.between[pair].max() <= _NOISY * losses.deviation * math.sqrt((1 / losses.seeds[pair]).sum())
    # what the spacing of learning rates leaves open, seeds do not narrow
    rest = 0.0 if noisy else min(by_rates, half) ** 2
    if not half > wanted > math.sqrt(rest):
        return None
    needed = math.ceil(have * ((half**2 - rest) / (wanted**2 - rest)) - have)
    return min(max(needed, 1), MOST_SEEDS)


@dataclass(frozen=True, kw_only=True)
class DifferenceAt(Difference):
    """Loss of one optimizer minus that of the other at a batch size, in the unit of the metric; positive if the other
    is better."""

    batch_size: int


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Comparison of one optimizer with another.

    Attributes:
        at: differences at every batch size at which both were run.
        overtakes: batch size from which on the other one is better although it is not below; interpolated in ln B. No
            value if neither overtakes.
        overtaker: the one that is better at larger batch sizes; empty without a value.
    """

    optimizer: str
    other: str
    at: tuple[DifferenceAt, ...]
    overtakes: Quantity = UNKNOWN
    overtaker: str = ""


def pair(names: tuple[str, str], first: Losses, second: Losses, config: AnalysisConfig) -> Pair:
    """Return the first minus the second where neither loss is a bound, as far paired as a seed does the same to both
    (:func:`analysis.estimate.comparison.alike`)."""
    order = shuffled(first.draws, second.draws, len(second.drawn), [config.seed, 1])
    second = replace(second, drawn=second.drawn[order], draws=second.draws and second.draws.taken(order))
    both = np.intersect1d(first.sizes[~first.edges], second.sizes[~second.edges])
    one, two = np.searchsorted(first.sizes, both), np.searchsorted(second.sizes, both)
    # where one of them has no draws, its noise is unknown, and so is that of the difference
    known, at = len(first.drawn) and len(second.drawn), []
    seeds = [each.draws or each.levels for each in (first, second)]
    together = alike(*seeds) * math.sqrt(math.prod(each.shared if each else 0.0 for each in seeds))
    for size, mine, its in zip(both, one, two, strict=True):
        apart = Difference(float(first.values[mine] - second.values[its]))
        if known:
            of_seeds = math.prod(_share_of_seeds(each, index) for each, index in ((first, mine), (second, its)))
            drawn = first.drawn[:, mine], second.drawn[:, its]
            order = correlated(*drawn, together * math.sqrt(of_seeds), [config.seed, 2, int(size)])
            apart = difference(drawn[0], drawn[1][order], config.confidence)
        at.append(DifferenceAt(**vars(apart), batch_size=int(size)))
    overtakes, rising = _overtakes(at, first, second, config.confidence) if known else (UNKNOWN, False)
    who = "" if overtakes.value is None else names[1] if rising else names[0]
    return Pair(optimizer=names[0], other=names[1], at=tuple(at), overtakes=overtakes, overtaker=who)


def _share_of_seeds(losses: Losses, index: int) -> float:
    """Return the share of the variance of a loss that comes from the noise of runs, not from the learning rates."""
    return min(1.0, losses.deviation**2 / losses.seeds[index] / max(float(losses.drawn[:, index].var()), 1e-300))


def _overtakes(at: list[DifferenceAt], first: Losses, second: Losses, confidence: float) -> tuple[Quantity, bool]:
    """Return where the difference passes 0, with its interval, if it differs significantly from 0 on both sides and in
    sign; and whether it rises."""
    # an open end shows nothing on its side
    told = [each for each in at if (each.interval[0] or -1.0) > 0 or (each.interval[1] or 1.0) < 0]
    signs = np.sign([each.value or 0.0 for each in told])
    changes = np.flatnonzero(np.diff(signs))
    if len(changes) != 1:
        return UNKNOWN, False
    below, above = told[changes[0]], told[changes[0] + 1]
    # as fine as draws of curves over an octave need; between them the crossing is interpolated
    positions = np.linspace(np.log(below.batch_size), np.log(above.batch_size), 64)
    sign = float(signs[changes[0] + 1])
    rows = sign * (first.at(positions) - second.at(positions))
    passed = np.minimum(largest_within(positions, rows, 0.0, np.zeros(len(rows))), positions[-1])
    low, value, high = np.exp(np.quantile(passed, [0.5 - confidence / 2, 0.5, 0.5 + confidence / 2])).tolist()
    return Quantity(value, (low, high)), sign > 0


@dataclass(frozen=True, kw_only=True)
class SizeDoubling:
    """From one batch size to the next larger one.

    Attributes:
        batch_size, larger: the two batch sizes in examples.
        loss: by how much the loss of the larger one is worse, in the unit of the metric; negative if it is better.
        data: fraction of the examples that the larger one costs: with so many fewer, the smaller one is as good;
            negative if the smaller one needs more. No value if no curve shows it.
        steps: steps of the smaller one for every step of the larger one at the same loss; no value if ``data`` has
            none.
        remark: why there is no value; otherwise empty.
    """

    batch_size: int
    larger: int
    loss: Quantity
    data: Quantity = UNKNOWN
    steps: Quantity = UNKNOWN
    remark: str = ""


def doublings(entry: Spent, others: Sequence[Spent], confidence: float) -> tuple[SizeDoubling, ...]:
    """Return the cost of going from every batch size to the next one; ``others`` are the same optimizer at other
    budgets, for runs without curves and decaying learning rates."""
    losses = entry.losses
    curves = list(entry.curves)
    source = "no curve of the runs goes there"
    if not any(len(examples) > 1 for examples, _ in curves):
        curves = [_over_budgets(size, [*others, entry]) for size in losses.sizes]
        source = "no smaller budget of these batch sizes goes there: a second one has to be run"
    costs = []
    for index in range(len(entry.studies) - 1):
        small, large = (entry.studies[index + step].batch_size for step in (0, 1))
        if losses.edges[index : index + 2].any():
            costs.append(SizeDoubling(batch_size=small, larger=large, loss=UNKNOWN, remark=_EDGE))
            continue
        rows = np.concatenate([np.diff(losses.values)[[index]], np.diff(losses.drawn)[:, index]])
        logs = _log_ratios(curves[index], curves[index + 1], entry.budget, rows)
        ratio = Quantity.open_ended(logs, confidence) if np.isfinite(logs[0]) else UNKNOWN
        data = ratio.mapped(lambda log: float(1 - np.exp(log)), falling=True)
        costs.append(
            SizeDoubling(
                batch_size=small,
                larger=large,
                loss=Quantity.of_draws(rows, confidence),
                data=data,
                # E'/B over E/B', where E'/E is 1 less the data it costs
                steps=data.mapped(lambda share: 1 - share, falling=True).times(large / small),
                remark=source if data.value is None else "",
            )
        )
    return tuple(costs)


def _over_budgets(size: float, entries: Sequence[Spent]) -> tuple[Array, Array]:
    """Return the budgets at which a batch size was run, and its losses there."""
    points = {
        entry.budget: float(entry.losses.values[entry.losses.sizes == size][0])
        for entry in entries
        if size in entry.losses.sizes
    }
    budgets = sorted(points)
    return np.array(budgets), np.minimum.accumulate([points[budget] for budget in budgets])


def _log_ratios(small: tuple[Array, Array], large: tuple[Array, Array], budget: float, worse: Array) -> Array:
    """Return ln of E'/E at which the losses are alike, along the curve of the smaller batch where the larger one is
    worse, otherwise reversed along that of the larger one; infinite beyond the curves."""
    logs = np.where(worse >= 0, -np.inf, np.inf)
    for sign, (examples, losses), rows in ((1.0, small, worse >= 0), (-1.0, large, ~(worse >= 0))):
        # whole batches may end a little beyond the budget, by twice what counts as at it
        here = examples <= budget * (1 + 2 * AT_BUDGET)
        examples, losses = examples[here], losses[here]
        if len(examples) > 1:
            at = losses[-1] + np.abs(worse[rows])
            # losses decrease along the curve, and interp wants what increases
            log = np.interp(-at, -losses, np.log(examples)) - np.log(examples[-1])
            logs[rows] = np.where(at > losses[0], -sign * np.inf, sign * log)
    return logs
