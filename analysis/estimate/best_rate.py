r"""The objective at the best learning rate of one condition, run by run.

Around the best learning rate the objective is a basin in :math:`\ln` lr (:mod:`analysis.estimate.basin`) plus a level
for every seed. Its bottom is what a sweep with ever finer learning rates would have found; the winner
(:func:`cbs.trial.lr_choice.best_lr`) and its neighbours say where it lies.

Of the curvature every other condition gives a likelihood, most the nearest, and the step of the grid a rough idea, so
that a few runs with one seed suffice. No condition gives a number of its own, which would be too large: through a lucky
winner every parabola is narrow.

A neighbour above that diverged, or is far slower than the parabola through the winner and those below it, says nothing
about the basin but that it ends somewhere before (:mod:`analysis.estimate.basin`).

Best learning rates of neighbouring conditions lie near a line over ln B (:mod:`cbs.trial.lr_choice`). Where the winner
is the lowest or the highest learning rate of its condition, perhaps the only one, but near this line, the line is
believed: from curvature and distance follows how much lower the bottom lies.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.estimate.basin import NEIGHBOURS, Basins, Bottom, logs_of, means_of, wall_of
from analysis.estimate.studies import Study
from analysis.quantities import Array, pooled
from cbs.trial.lr_choice import Expected, expected

_ALIKE = 0.3  # Standard deviation of ln of the curvature of one condition around that of its neighbours
_LENGTH = 2.0  # Distance in ln B over which curvatures are alike

# By how much the objective usually rises at one step of the grid from its bottom, and the standard deviation of ln of
# that: what is usual in 33 sweeps of small models, and how far sweeps are from each other.
_USUAL, _UNKNOWN = 0.1, 0.8

_BENDS = np.linspace(-3.4, 3.4, 35)  # ln of the curvatures that are tried over the usual one

# Standard deviation of ln of the best learning rate, and how much lower the objective is there than at the winner, up
# to which other conditions are believed where it lies.
BELIEVED, FAR = 0.8, 0.15

# The winner has to lie within so many standard deviations of there, beside half a factor of 2 by which learning rates
# may be apart.
_AGREES, _ROUNDED = 1.5, 0.35

_ANYWHERE = 2.0  # Standard deviation of ln of the best learning rate around the winner if nothing else is known

_LEAST_NOISE, _USUAL_NOISE = 1e-4, 0.04  # In ln steps; the latter where nothing tells it
_FEW = 4.0  # Degrees of freedom at most of what seeds say of the noise by their winners alone

# Share of one run's noise that learning rates of the same seed do not have in common, where it is not known
_OF_ITS_OWN = 0.7


@dataclass(frozen=True, kw_only=True)
class AtBest:
    """The objective at the best learning rate of one condition.

    Attributes:
        values: of every seed, shape ``[N]``; NaN where only a bound is known, or nothing.
        floors: what the objective of such a seed is at least, shape ``[N]``; NaN without such a bound.
        ceilings: what it is at most, shape ``[N]``, of runs that were past the target when first evaluated.
        seeds: numbers of the seeds, shape ``[N]``; by default 0 to N - 1.
        variance: of the error that all seeds share, because the best learning rate lies between those that were run.
        saving: how much lower the objective is than at the best learning rate that was run.
        log_lr: ln of the best learning rate; NaN where trials do not state it. At an edge of the grid, that of the one
            tried there.
        log_lr_variance: its variance, by noise, by neighbours that are only known to be worse, and because no bottom is
            quite a parabola.
        edge: -1 if the lowest learning rate wins, 1 if the highest does, so that only a bound is known; otherwise 0.
        believed: whether other conditions say where the best learning rate lies beside an edge; the values are those
            there.
        step: the step of the grid around it, in ln lr.
        curvature: second derivative at the bottom in ln lr, halved; NaN at an edge.
    """

    values: Array
    floors: Array
    ceilings: Array
    seeds: np.ndarray | None = None
    variance: float = 0.0
    saving: float = 0.0
    log_lr: float = math.nan
    log_lr_variance: float = math.nan
    edge: int = 0
    believed: bool = False
    step: float = math.nan
    curvature: float = math.nan

    @property
    def labels(self) -> np.ndarray:
        """Numbers of the seeds, shape ``[N]``."""
        return np.arange(len(self.values)) if self.seeds is None else self.seeds


def at_best(studies: Sequence[Study], steepest: float = 1.0) -> list[AtBest]:
    """Return the objective (ln of a study's steps) at the best learning rate of every study, in increasing order of
    batch sizes.

    ``steepest`` is how fast the objective falls with ln lr at most: steps are in proportion to 1/lr where it is small.
    A loss has no such limit; infinite.

    Where no seed reached the target, the best learning rate is unknown, but it took longer than the one that was given
    up first: the bounds are those of the learning rate whose longest run is the shortest. A diverged run has no bound.
    """
    found, unranked = [_with_winner(study.along_lr) for study in studies], [study.unranked for study in studies]
    won = {at: (study, winner) for at, (study, winner) in enumerate(found) if winner is not None and not study.bounded}
    named = {at: (study, winner) for at, (study, winner) in won.items() if np.isfinite(study.lrs).all()}
    inner = {at: (study, winner) for at, (study, winner) in named.items() if not study.at_edge(winner)}
    # above the winner, where training is hardly stable, runs of a seed scatter more
    noises = _own_noise(list(won.values())), _own_noise(list(won.values()), above=0)
    bottoms, basins = _bottoms(list(inner.values()), *noises, steepest)
    known = dict(zip(inner, bottoms, strict=True))
    if inner:
        line = _Line(named, known, basins, noises[0])
        edges = {at: line.bottom(at, *named[at]) for at in named if at not in inner}
        known |= {at: bottom for at, bottom in edges.items() if bottom is not None}
    return [
        _at_most(study, winner, unranked[at])
        if winner is not None and (unranked[at] or at not in won)
        else _one(study, winner, known.get(at), at in inner)
        for at, (study, winner) in enumerate(found)
    ]


def _with_winner(study: Study) -> tuple[Study, int | None]:
    """Return the study without learning rates of which no trial says anything about training, and its winner."""
    winner = study.winner
    if winner is None or study.tried.all():
        return study, winner
    tried = study.at(study.tried)
    return tried, tried.winner


def _at_most(study: Study, winner: int, unranked: bool) -> AtBest:
    """Return the bounds where runs at the best learning rate, or at one that may be it, were past the target when first
    evaluated: no learning rate is slower than the best."""
    steps = study.steps[winner]
    earliest = logs_of(np.where(np.isfinite(steps), steps - study.resolution[winner], study.bound[winner]))
    nothing = np.full(len(steps), np.nan)
    found = AtBest(values=nothing, floors=nothing if unranked else earliest, ceilings=logs_of(steps), seeds=study.seeds)
    if unranked or not np.isfinite(study.lrs).all():
        return found
    if study.at_edge(winner):
        return replace(found, **_edge(np.log(study.lrs), winner))
    step = math.log(study.lrs[winner + 1] / study.lrs[winner - 1]) / 2
    return replace(found, log_lr=math.log(study.lrs[winner]), log_lr_variance=step**2 / 4, step=step)


def _one(study: Study, winner: int | None, bottom: Bottom | None, inside: bool) -> AtBest:
    if winner is None:
        known = np.isfinite(study.bound)
        longest = np.where(known.any(axis=1), np.where(known, study.bound, -np.inf).max(axis=1), np.inf)
        row = study.bound[int(longest.argmin())]
        nothing = np.full(len(row), np.nan)
        return AtBest(values=nothing, floors=logs_of(row), ceilings=nothing, seeds=study.seeds)
    values, late = np.log(study.steps[winner]), study.resolution[winner] / study.steps[winner]
    first = study.past[winner]
    # of a run that was past the target when first evaluated there is a ceiling alone; between two evaluations the
    # crossing is interpolated, give or take a quarter of the way, or it is the later one of the two
    gap = np.log1p(-np.where(first, 0.0, np.nan_to_num(late)))
    shift, width = (0.0 * gap, gap / 2) if study.interpolated else (gap / 2, gap)
    blur = float(np.mean(width[np.isfinite(values)] ** 2)) / 12.0  # the variance of a uniform error of that width
    found = AtBest(
        values=np.where(first, np.nan, values + shift),
        floors=np.where(np.isfinite(values), np.nan, logs_of(study.bound[winner])),
        ceilings=np.where(first, values, np.nan),
        seeds=study.seeds,
        variance=blur,
    )
    if not np.isfinite(study.lrs).all():
        return found
    if bottom is None:
        return replace(found, **_edge(np.log(study.lrs), winner))
    # a seed without a run at the winner has a level still; one that is blurred, or has a bound alone, keeps its own
    whole = np.isnan(found.values) & np.isnan(found.floors) & np.isnan(found.ceilings)
    levels = bottom.levels + np.nan_to_num(found.values - values)
    found = replace(
        found,
        values=np.where(np.isfinite(found.values) | whole, levels, np.nan) - bottom.saving,
        floors=found.floors - bottom.saving,
        variance=found.variance + bottom.variance,
        saving=bottom.saving,
        curvature=bottom.curvature,
    )
    if not inside:
        return replace(found, **_edge(np.log(study.lrs), winner), believed=True)
    return replace(
        found,
        log_lr=math.log(study.lrs[winner]) + bottom.place,
        log_lr_variance=bottom.place_variance,
        step=bottom.step,
    )


def _bottoms(
    studies: Sequence[tuple[Study, int]], noise: float, below: float, steepest: float
) -> tuple[list[Bottom], list[Basins]]:
    """Return the bottoms of studies with their winners, which have neighbours on both sides, and what they were taken
    from, given the noise of a run and that up to the winner.

    Before a wall the basin may end anywhere. Where the objective cannot fall faster than ``steepest``, it falls nearly
    straight until there, and the wall knows better where.
    """
    if not studies:
        return [], []
    steps = [float(np.log(study.lrs[winner + 1] / study.lrs[winner - 1])) / 2 for study, winner in studies]
    bends = _USUAL * np.exp(_BENDS) / float(np.median(steps)) ** 2
    walls, basins = [], []
    for study, winner in studies:
        means = means_of(study)
        walls.append(wall_of(study, winner, means, below, steepest))
        basins.append(Basins(study, winner, means, noise, bends, ended=walls[-1] is not None))
    priors = _neighbouring(np.log([study.batch_size for study, _ in studies]), [each.chances for each in basins])
    bottoms = [Bottom(each, prior) for each, prior in zip(basins, priors, strict=True)]
    for bottom, wall, (study, winner) in zip(bottoms, walls, studies, strict=True):
        if wall is not None and math.isfinite(steepest):
            bottom.end_at(wall, np.log(study.steps[winner]))
    return bottoms, basins


class _Line:
    """Where conditions put the best learning rates of others: near a line over ln B.

    Args:
        named: studies with their winners, whose trials state their learning rates, by their place.
        bottoms: those of studies with neighbours on both sides.
        basins: what these were taken from.
        noise: standard deviation of one run.
    """

    def __init__(
        self,
        named: Mapping[int, tuple[Study, int]],
        bottoms: Mapping[int, Bottom],
        basins: Sequence[Basins],
        noise: float,
    ) -> None:
        self.basins, self.noise = basins, noise
        self.points: dict[int, tuple[float, float, float]] = {}
        for at, (study, winner) in named.items():
            bottom, here = bottoms.get(at), math.log(study.lrs[winner])
            if bottom is None and np.isfinite(study.steps).any(axis=1).sum() > 1:
                bottom = self._bottom(study, winner, Expected(here, _ANYWHERE))
            if bottom is not None:
                self.points[at] = math.log(study.batch_size), here + bottom.place, bottom.place_variance
        missed = []
        for at in bottoms if len(bottoms) > 1 else ():
            size, log_lr, variance = self.points[at]
            if (told := self._expected(at, size)) is not None:
                missed.append((log_lr - told.log_lr) ** 2 / (told.deviation**2 + variance))
        self.worse = math.sqrt(max(1.0, float(np.mean(missed)))) if missed else 1.0

    def _expected(self, at: int, log_size: float) -> Expected | None:
        """Return where the other conditions put the best learning rate of one; ``None`` if they say nothing."""
        others = [point for index, point in self.points.items() if index != at]
        return expected(log_size, *zip(*others, strict=True)) if others else None

    def bottom(self, at: int, study: Study, winner: int) -> Bottom | None:
        """Return the bottom of a study whose winner is the lowest or the highest learning rate; ``None`` if it is not
        known well enough where, or a run beside it did not train."""
        told = self._expected(at, math.log(study.batch_size))
        stopped = study.ran & ~np.isfinite(study.steps) & ~np.isfinite(study.bound)
        if told is None or stopped.any():
            return None
        told = Expected(told.log_lr, self.worse * told.deviation)
        if abs(told.log_lr - math.log(study.lrs[winner])) > _AGREES * told.deviation + _ROUNDED:
            return None
        bottom = self._bottom(study, winner, told)
        return bottom if bottom.place_variance <= BELIEVED**2 and bottom.saving <= FAR else None

    def _bottom(self, study: Study, winner: int, told: Expected) -> Bottom:
        basins = Basins(study, winner, means_of(study), self.noise, self.basins[0].bends, expected=told)
        sizes = np.r_[[each.log_size for each in self.basins], math.log(study.batch_size)]
        return Bottom(basins, _neighbouring(sizes, [*(each.chances for each in self.basins), basins.chances])[-1])


def _edge(logs: Array, winner: int) -> dict[str, Any]:
    """Return the place of a best learning rate at an edge."""
    side = 1 if winner == len(logs) - 1 else -1
    step = float(abs(logs[winner - side] - logs[winner])) if len(logs) > 1 else 0.0
    return {"log_lr": float(logs[winner]), "edge": side, "step": step, "log_lr_variance": math.inf}


def _neighbouring(log_sizes: Array, chances: Sequence[Array]) -> Array:
    """Return the probability of every bend in every condition by what the others say, shape ``[M, K]``, given the
    likelihood of every bend in each, shape ``[K]``.

    Around a level that is common to the neighbours ln of the bends scatters by :data:`_ALIKE`. The farther away a
    condition is, the smaller is the power of its likelihood that counts.
    """
    scatter = np.exp(-0.5 * ((_BENDS[:, None] - _BENDS) / _ALIKE) ** 2)
    scatter /= scatter.sum(axis=0)
    weights = np.exp(-0.5 * ((log_sizes[:, None] - log_sizes) / _LENGTH) ** 2) * (1 - np.eye(len(log_sizes)))
    # a chance may round to 0, which has no logarithm
    logs = weights @ np.log(np.array(chances) @ scatter + 1e-300) - 0.5 * (_BENDS / _UNKNOWN) ** 2
    level = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray((level / level.sum(axis=1, keepdims=True)) @ scatter.T)


def _own_noise(studies: Sequence[tuple[Study, int]], above: int = NEIGHBOURS) -> float:
    """Return the standard deviation of one run's objective without what all learning rates of a seed share, pooled
    over conditions with their winners.

    What the seeds at the winners scatter, beyond what they have in common at several batch sizes, counts for a few
    degrees of freedom, and alone where no two learning rates have two seeds.
    """
    apart = (
        row[np.isfinite(row)]
        for study, winner in studies
        for row in np.log(study.steps[max(winner - NEIGHBOURS, 0) : winner + above + 1] / study.steps[winner])
    )
    # the difference of two runs has twice the variance of one
    doubled, contrasts = pooled(row for row in apart if len(row) > 1 and np.ptp(row) > 0)
    squares, freedom = doubled / 2, float(contrasts)
    seeds = max((len(study.seeds) for study, _ in studies), default=0)
    table = np.array([np.log(study.steps[winner]) for study, winner in studies if len(study.seeds) == seeds])
    if seeds > 1 and np.isfinite(table).all():
        left = table - table.mean(axis=1, keepdims=True)
        left = left - left.mean(axis=0) if len(left) > 1 else left
        own = max(len(left) - 1, 1) * (seeds - 1)
        share = min(1.0, _FEW / own)
        squares, freedom = squares + share * _OF_ITS_OWN**2 * float((left**2).sum()), freedom + share * own
    return max(math.sqrt(squares / freedom), _LEAST_NOISE) if freedom else _USUAL_NOISE
