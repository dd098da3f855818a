r"""The objective at the best learning rate of one condition, run by run.

Around the best learning rate the objective is a basin in :math:`\ln` lr, a parabola or one that is steeper on one side,
plus a level for every seed. Its bottom is what a sweep with ever finer learning rates would have found. Where it lies,
how bent and how skew it is are taken from a grid, and weighed by what the winner
(:func:`cbs.trial.lr_choice.best_lr`) and up to two neighbours on either side say: those that reached the target by
their steps, those that were given up by being slower than that. An average over all places also takes out the luck of
the winner, which is the lowest of several noisy numbers.

Of the curvature every other condition gives a likelihood, most the nearest, and the step of the grid a rough idea, so
that a few runs with one seed suffice. No condition gives a number of its own, which would be too large: through a lucky
winner every parabola is narrow.

A neighbour above that diverged, or is far slower than the parabola through the winner and those below it, says nothing
about the basin but that it ends somewhere before (:mod:`analysis.estimate.wall`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import log_ndtr

from analysis.arrays import Array
from analysis.estimate.studies import Study
from analysis.estimate.wall import Wall, wall_of

_NEIGHBOURS = 2

_FARTHER = 8.0
"""How many times as slow, compared with the winner, a second neighbour may be as the first one to be one: a parabola
allows four."""

_ALIKE = 0.3
"""Standard deviation of ln of the curvature of one condition around that of its neighbours."""

_LENGTH = 2.0
"""Distance in ln B over which curvatures are alike."""

_USUAL, _UNKNOWN = 0.1, 0.8
"""By how much the objective usually rises at one step of the grid from its bottom, and the standard deviation of ln of
that: what is usual in 33 sweeps of small models, and how far sweeps are from each other."""

_BENDS = np.linspace(-3.4, 3.4, 35)
"""ln of the curvatures that are tried over the usual one."""

_PLACES = 49
"""Number of places of the bottom that are tried."""

_SKEWS, _SKEW = np.arange(-3.0, 3.1), 1.2
"""How fast the curvature grows with ln lr, tried: 0 is a parabola. And the standard deviation of that in advance."""

_CRUDE = 0.1
"""Error of the shape at a learning rate, common to all seeds, as a share of how much slower it is than the winner."""

_UNLIKE = 0.2
"""Standard deviation of the saving because no bottom has quite such a shape, as a share of it."""

_SKEWED = 1 / (6 * math.sqrt(3))
"""Smallest standard deviation of the place of a bottom, in grid steps. If the objective rises up to twice as fast on
one side as on the other, it moves by up to 1/6 of a step: this is that of a uniform distribution on (-1/6, 1/6)."""

_LEAST_NOISE, _USUAL_NOISE = 1e-4, 0.04
_FEW = 4.0
"""Degrees of freedom at most of what seeds say of the noise by their winners alone."""

_CEILING = 0.9
"""Share of its steps that a run may have needed less, above which they are a ceiling and no value."""

_OF_ITS_OWN = 0.7
"""Share of one run's noise that learning rates of the same seed do not have in common, where it is not known."""


def _basin(apart: Array, skew: Array) -> Array:
    """Return :math:`2 (e^{s x} - s x - 1)/s^2`, which is x^2 without skew s and has its minimum at 0."""
    turn = np.where(skew == 0, 1.0, skew) * apart
    bent = 2 * (np.expm1(turn) - turn) / np.where(skew == 0, 1.0, skew) ** 2
    return np.asarray(np.where(skew == 0, apart**2, bent))


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
    found = [_with_winner(study.along_lr) for study in studies]
    won = [(study, winner) for study, winner in found if winner is not None]
    inner = {
        at: (study, winner)
        for at, (study, winner) in enumerate(found)
        if winner is not None and np.isfinite(study.lrs).all() and not study.at_edge(winner)
    }
    # above the winner, where training is hardly stable, runs of a seed scatter more
    noises = _own_noise(won), _own_noise(won, above=0)
    bottoms = dict(zip(inner, _bottoms(list(inner.values()), *noises, steepest), strict=True))
    return [_one(study, winner, bottoms.get(at)) for at, (study, winner) in enumerate(found)]


def _with_winner(study: Study) -> tuple[Study, int | None]:
    """Return the study without learning rates of which no trial says anything about training, and its winner."""
    winner = study.winner
    if winner is None or study.tried.all():
        return study, winner
    tried = study.at(study.tried)
    return tried, tried.winner


def _one(study: Study, winner: int | None, bottom: _Bottom | None) -> AtBest:
    if winner is None:
        known = np.isfinite(study.bound)
        longest = np.where(known.any(axis=1), np.where(known, study.bound, -np.inf).max(axis=1), np.inf)
        row = study.bound[int(longest.argmin())]
        nothing = np.full(len(row), np.nan)
        return AtBest(values=nothing, floors=_logs(row), ceilings=nothing, seeds=study.seeds)
    values, late = np.log(study.steps[winner]), study.resolution[winner] / study.steps[winner]
    floors = np.where(np.isfinite(values), np.nan, _logs(study.bound[winner]))
    # of a run that was past the target when first evaluated there is a ceiling alone; between two evaluations the
    # crossing is interpolated, give or take a quarter of the way, or it is the later one of the two
    first = late > _CEILING
    ceilings = np.where(first, values, np.nan)
    gap = np.log1p(-np.where(first, 0.0, np.nan_to_num(late)))
    shift, width = (0.0 * gap, gap / 2) if study.interpolated else (gap / 2, gap)
    blur = float(np.mean(width[np.isfinite(values)] ** 2)) / 12.0
    found = AtBest(
        values=np.where(first, np.nan, values + shift),
        floors=floors,
        ceilings=ceilings,
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
    return replace(
        found,
        values=np.where(np.isfinite(found.values) | whole, levels, np.nan) - bottom.saving,
        floors=found.floors - bottom.saving,
        ceilings=found.ceilings - bottom.saving,
        variance=found.variance + bottom.variance,
        saving=bottom.saving,
        curvature=bottom.curvature,
        log_lr=math.log(study.lrs[winner]) + bottom.place,
        log_lr_variance=bottom.place_variance,
        step=bottom.step,
    )


def _bottoms(studies: Sequence[tuple[Study, int]], noise: float, below: float, steepest: float) -> list[_Bottom]:
    """Return the bottoms of studies with their winners, which have neighbours on both sides, given the noise of a run
    and that up to the winner.

    Before a wall the basin may end anywhere. Where the objective cannot fall faster than ``steepest``, it falls nearly
    straight until there, and the wall knows better where.
    """
    if not studies:
        return []
    steps = [float(np.log(study.lrs[winner + 1] / study.lrs[winner - 1])) / 2 for study, winner in studies]
    bends = _USUAL * np.exp(_BENDS) / float(np.median(steps)) ** 2
    walls, basins = [], []
    for study, winner in studies:
        means = _means(study)
        walls.append(wall_of(study, winner, means, below, steepest))
        basins.append(_Basins(study, winner, means, noise, bends, ended=walls[-1] is not None))
    chances = np.array([np.exp(each.logs - each.logs.max()).sum(axis=0) for each in basins])
    priors = _neighbouring(np.log([study.batch_size for study, _ in studies]), chances)
    bottoms = [_Bottom(each, prior) for each, prior in zip(basins, priors, strict=True)]
    for bottom, wall, (study, winner) in zip(bottoms, walls, studies, strict=True):
        if wall is not None and math.isfinite(steepest):
            bottom.end_at(wall, np.log(study.steps[winner]))
    return bottoms


class _Basins:
    """What the runs of one condition say of every basin on a grid: ``Q`` places and skews, ``K`` bends.

    Attributes:
        bends: the curvatures, shape ``[K]``.
        at: ln of the learning rate of the bottom over the winner's, shape ``[Q]``.
        depth, more: how far the bottom lies below the winner, and the variance of that beside a cliff, per unit of the
            bend and of its square, shape ``[Q]``.
        level, lower: the objective of a seed at the winner is ``level`` less the bend times ``lower``, shapes ``[N]``
            and ``[N, Q]``; NaN for a seed without a run.
        logs: ln of the likelihood, and of the prior of the skew, shape ``[Q, K]``.
        step: step of the grid around the winner, in ln lr.
    """

    def __init__(self, study: Study, winner: int, means: Array, noise: float, bends: Array, *, ended: bool) -> None:
        self.bends, table = bends, np.log(study.steps)
        apart = means - table[winner][np.isfinite(table[winner])].mean()
        apart[winner] = 0.0  # infinite where a seed did not get there
        rows = _window(apart, winner, noise)
        if ended:
            rows = rows[rows <= winner]
        first, last = min(rows[0], winner - 1), max(rows[-1], winner + 1)
        places = np.log(study.lrs[first : last + 1] / study.lrs[winner])
        above = float(places[winner + 1 - first])
        self.step = (above - float(places[winner - 1 - first])) / 2
        tried = np.meshgrid(np.linspace(places[0], places[-1], _PLACES), _SKEWS, indexing="ij")
        self.at, skew = (values.ravel() for values in tried)
        self.depth, self.more = _basin(-self.at, skew), np.zeros(len(self.at))
        rises = _basin(places[:, None] - self.at, skew) - self.depth  # over the winner, by learning rates, [., Q]
        there = np.isfinite(table[rows])
        of_rate, of_seed = np.nonzero(there)
        values, forms = table[rows][there], rises[rows - first][of_rate]
        # runs of a learning rate have the error of the shape in common; one that is hardly slower, because the bottom
        # lies halfway, has as much of it as others as far away
        slower, away = apart[rows], places[rows - first] ** 2
        slower = np.maximum(slower, away * np.mean(slower[away > 0] / away[away > 0])) if len(rows) > 1 else slower
        errors = np.where(of_rate[:, None] == of_rate, (_CRUDE * slower[of_rate]) ** 2, 0.0)
        certain = np.linalg.inv(errors + noise**2 * np.eye(len(values)))
        ran, of_seed = np.unique(of_seed, return_inverse=True)
        seeds = np.eye(len(ran))[of_seed]
        levels = np.linalg.solve(seeds.T @ certain @ seeds, seeds.T @ certain)
        self.level = np.full(table.shape[1], np.nan)
        self.lower = np.full((table.shape[1], len(self.at)), np.nan)
        self.level[ran], self.lower[ran] = levels @ values, levels @ forms
        # the exponent is a parabola in the bend, without the levels, which may be anything
        certain = certain - certain @ seeds @ levels
        slope, bent = (certain @ values) @ forms, ((certain @ forms) * forms).sum(axis=0)
        self.logs = np.outer(slope, bends) - np.outer(bent, bends**2 / 2) - 0.5 * (skew[:, None] / _SKEW) ** 2
        for row in (winner - 1,) if ended else (winner - 1, winner + 1):
            bounds = _logs(np.where(np.isfinite(study.steps[row]), np.nan, study.bound[row]))
            for seed in np.flatnonzero(np.isfinite(bounds) & np.isfinite(self.level)):
                over = self.level[seed] - bounds[seed] + np.outer(rises[row - first] - self.lower[seed], bends)
                crude = _CRUDE * np.outer(rises[row - first], bends)
                self.logs += log_ndtr(over / np.sqrt(2 * noise**2 + crude**2))
        if ended:
            # it may end anywhere before the next learning rate
            limits = np.linspace(0.05, 0.95, 10)[:, None] * above
            depths = np.where(self.at > limits, self.depth - _basin(limits - self.at, skew), self.depth)
            self.depth, self.more = depths.mean(axis=0), depths.var(axis=0)
            self.at = np.minimum(self.at, limits).mean(axis=0)


class _Bottom:
    """The bottom of the basin around the winner, averaged over what it may look like.

    Attributes:
        place, place_variance: ln of its learning rate over the winner's.
        step: step of the grid around the winner, in ln lr.
        curvature: second derivative at the bottom, halved.
        levels: objective of every seed at the winner, by all of its runs, shape ``[N]``; NaN for a seed without any.
        saving, variance: how far it lies below that, and the variance of the difference that all seeds share.
    """

    def __init__(self, basins: _Basins, prior: Array) -> None:
        weights = np.exp(basins.logs - basins.logs.max()) * prior
        weights /= weights.sum()
        bends, of_place = basins.bends, weights.sum(axis=1)
        first, second = weights @ bends, weights @ bends**2
        self.step, self.place = basins.step, float(of_place @ basins.at)
        self.place_variance = max(float(of_place @ (basins.at - self.place) ** 2), (_SKEWED * self.step) ** 2)
        self.curvature = float(np.exp(weights.sum(axis=0) @ np.log(bends)))
        self.levels, self.saving = basins.level - basins.lower @ first, float(first @ basins.depth)
        lower = np.nanmean(basins.lower, axis=0) + basins.depth
        spread = float(second @ (lower**2 + basins.more) - (first @ lower) ** 2)
        self.variance = spread + (_UNLIKE * self.saving) ** 2

    def end_at(self, wall: Wall, winner: Array) -> None:
        """Take the bottom from a wall, and the objective of seeds at the winner ``[N]`` from what they ran."""
        self.levels = np.where(np.isfinite(winner), winner, self.levels)
        self.place, self.saving = wall.place, wall.saving
        self.place_variance = max(wall.place_variance, (_SKEWED * self.step) ** 2)
        self.variance = wall.variance + (_UNLIKE * self.saving) ** 2


def _edge(logs: Array, winner: int) -> dict[str, Any]:
    """Return the place of a best learning rate at an edge."""
    side = 1 if winner == len(logs) - 1 else -1
    step = float(abs(logs[winner - side] - logs[winner])) if len(logs) > 1 else 0.0
    return {"log_lr": float(logs[winner]), "edge": side, "step": step, "log_lr_variance": math.inf}


def _logs(bounds: Array) -> Array:
    return np.log(np.where(bounds > 0, bounds, np.nan))


def _means(study: Study) -> Array:
    """Return the mean over seeds of every learning rate; infinite where a seed that ran did not reach the target."""
    reached = np.isfinite(study.steps)
    whole = reached.any(axis=1) & (reached | ~study.ran).all(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        sums = np.where(reached, np.log(study.steps), 0.0).sum(axis=1) / np.maximum(reached.sum(axis=1), 1)
    return np.where(whole, sums, np.inf)


def _window(apart: Array, winner: int, noise: float) -> np.ndarray:
    """Return the rows of the winner and of its neighbours that reached the target, given how much slower each
    is than the winner."""
    ends = []
    for side in (-1, 1):
        end, farthest = winner, math.inf
        while 0 <= end + side < len(apart) and abs(end + side - winner) <= _NEIGHBOURS and apart[end + side] < farthest:
            end += side
            farthest = _FARTHER * max(apart[end], noise)
        ends.append(end)
    return np.arange(ends[0], ends[1] + 1)


def _neighbouring(log_sizes: Array, chances: Array) -> Array:
    """Return the probability of every bend in every condition by what the others say, shape ``[M, K]``, given the
    likelihood of every bend in each, shape ``[M, K]``.

    Around a level that is common to the neighbours ln of the bends scatters by :data:`_ALIKE`. The farther away a
    condition is, the smaller is the power of its likelihood that counts.
    """
    scatter = np.exp(-0.5 * ((_BENDS[:, None] - _BENDS) / _ALIKE) ** 2)
    scatter /= scatter.sum(axis=0)
    weights = np.exp(-0.5 * ((log_sizes[:, None] - log_sizes) / _LENGTH) ** 2) * (1 - np.eye(len(log_sizes)))
    logs = weights @ np.log(chances @ scatter + 1e-300) - 0.5 * (_BENDS / _UNKNOWN) ** 2
    level = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray((level / level.sum(axis=1, keepdims=True)) @ scatter.T)


def _own_noise(studies: Sequence[tuple[Study, int]], above: int = _NEIGHBOURS) -> float:
    """Return the standard deviation of one run's objective without what all learning rates of a seed share, pooled
    over conditions with their winners.

    What the seeds at the winners scatter, beyond what they have in common at several batch sizes, counts for a few
    degrees of freedom, and alone where no two learning rates have two seeds.
    """
    squares = freedom = 0.0
    for study, winner in studies:
        apart = np.log(study.steps[max(winner - _NEIGHBOURS, 0) : winner + above + 1] / study.steps[winner])
        for row in apart:
            both = row[np.isfinite(row)]
            if len(both) > 1 and np.ptp(both) > 0:
                squares += float(((both - both.mean()) ** 2).sum()) / 2
                freedom += len(both) - 1
    seeds = max((len(study.seeds) for study, _ in studies), default=0)
    table = np.array([np.log(study.steps[winner]) for study, winner in studies if len(study.seeds) == seeds])
    if seeds > 1 and np.isfinite(table).all():
        left = table - table.mean(axis=1, keepdims=True)
        left = left - left.mean(axis=0) if len(left) > 1 else left
        own = max(len(left) - 1, 1) * (seeds - 1)
        share = min(1.0, _FEW / own)
        squares, freedom = squares + share * _OF_ITS_OWN**2 * float((left**2).sum()), freedom + share * own
    return max(math.sqrt(squares / freedom), _LEAST_NOISE) if freedom else _USUAL_NOISE
