r"""Basins around the best learning rate of one condition: every one on a grid, weighed by what the runs say of it.

A basin is a parabola in :math:`\ln` lr, or steeper on one side. Where its bottom lies, how bent and how skew it is are
taken from a grid, and weighed by what the winner and up to two neighbours on either side say: those that reached the
target by their steps, those that were given up by being slower than that. An average over all places also takes out the
luck of the winner, which is the lowest of several noisy numbers.

The best learning rate below the limit of stability, which no parabola knows of.

Above the best learning rate training may end at once: it diverges, or is hardly stable. If a run at the next learning
rate is far slower than the parabola through the winner and those below it, that parabola ended somewhere before. What
is saved is then what it falls until there, and on the left it may be nearly straight: steps are in proportion to 1/lr.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import log_ndtr

from analysis.estimate.studies import Study
from analysis.quantities import Array
from cbs.trial.lr_choice import Expected

NEIGHBOURS = 2  # Learning rates on either side of the winner that say where its basin lies

# How many times as slow, compared with the winner, a second neighbour may be as the first one to be one: a parabola
# allows four.
_FARTHER = 8.0

_PLACES = 49  # Number of places of the bottom that are tried

# How fast the curvature grows with ln lr, tried: 0 is a parabola. And the standard deviation of that in advance.
_SKEWS, _SKEW = np.arange(-3.0, 3.1), 1.2

# Standard deviations to either side within which the bottom is looked for where other conditions say where it lies
_WITHIN = 3.0

# Error of the shape at a learning rate, common to all seeds, as a share of how much slower it is than the winner
_CRUDE = 0.1

_UNLIKE = 0.2  # Standard deviation of the saving because no bottom has quite such a shape, as a share of it

# Smallest standard deviation of the place of a bottom, in grid steps. If the objective rises up to twice as fast on
# one side as on the other, it moves by up to 1/6 of a step: this is that of a uniform distribution on (-1/6, 1/6).
_SKEWED = 1 / (6 * math.sqrt(3))

# By how many standard deviations a run has to be slower than the parabola says, beside as much as that rises
# on either side, for it to have ended.
_SLOWER = 3.0

_FASTER = 1.2  # How many times the steepest fall may be exceeded

# Probability that the best learning rate lies below the one that is stated: past the end there is no training, and
# before it training is only slower.
_SAFE = 0.25

_DRAWS = 400  # Draws of where a wall stands


def _basin(apart: Array, skew: Array) -> Array:
    """Return :math:`2 (e^{s x} - s x - 1)/s^2`, which is x^2 without skew s and has its minimum at 0."""
    turn = np.where(skew == 0, 1.0, skew) * apart
    bent = 2 * (np.expm1(turn) - turn) / np.where(skew == 0, 1.0, skew) ** 2
    return np.asarray(np.where(skew == 0, apart**2, bent))


class Basins:
    """What the runs of one condition say of every basin on a grid: ``Q`` places and skews, ``K`` bends.

    Attributes:
        log_size: ln of the batch size.
        bends: the curvatures, shape ``[K]``.
        at: ln of the learning rate of the bottom over the winner's, shape ``[Q]``.
        depth, more: how far the bottom lies below the winner, and the variance of that beside a cliff, per unit of the
            bend and of its square, shape ``[Q]``.
        level, lower: the objective of a seed at the winner is ``level`` less the bend times ``lower``, shapes ``[N]``
            and ``[N, Q]``; NaN for a seed without a run.
        logs: ln of the likelihood, and of the prior of the skew, shape ``[Q, K]``.
        step: step of the grid around the winner, in ln lr.

    Where the winner is the lowest or the highest learning rate, ``expected`` says where other conditions put the best
    one.
    """

    def __init__(
        self,
        study: Study,
        winner: int,
        means: Array,
        noise: float,
        bends: Array,
        *,
        ended: bool = False,
        expected: Expected | None = None,
    ) -> None:
        self.log_size, self.bends, table = math.log(study.batch_size), bends, np.log(study.steps)
        apart = means - table[winner][np.isfinite(table[winner])].mean()
        apart[winner] = 0.0  # infinite where a seed did not get there
        rows = _window(apart, winner, noise)
        if ended:
            rows = rows[rows <= winner]
        sides = [row for row in (winner - 1, winner + 1) if 0 <= row < len(study.lrs)]
        first, last = min([*rows, *sides]), max([*rows, *sides])
        places = np.log(study.lrs[first : last + 1] / study.lrs[winner])
        self.step = math.fsum(abs(places[row - first]) for row in sides) / max(len(sides), 1)
        low, high = float(places[0]), float(places[-1])
        if expected is not None:
            told = expected.log_lr - math.log(study.lrs[winner])
            low, high = told - _WITHIN * expected.deviation, told + _WITHIN * expected.deviation
        tried = np.meshgrid(np.linspace(low, high, _PLACES), _SKEWS, indexing="ij")
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
        if expected is not None:
            self.logs -= 0.5 * ((self.at - told) / expected.deviation)[:, None] ** 2
        for row in sides[:1] if ended else sides:
            bounds = logs_of(np.where(np.isfinite(study.steps[row]), np.nan, study.bound[row]))
            for seed in np.flatnonzero(np.isfinite(bounds) & np.isfinite(self.level)):
                over = self.level[seed] - bounds[seed] + np.outer(rises[row - first] - self.lower[seed], bends)
                crude = _CRUDE * np.outer(rises[row - first], bends)
                self.logs += log_ndtr(over / np.sqrt(2 * noise**2 + crude**2))
        if ended:
            # it may end anywhere before the next learning rate
            limits = np.linspace(0.05, 0.95, 10)[:, None] * places[winner + 1 - first]
            depths = np.where(self.at > limits, self.depth - _basin(limits - self.at, skew), self.depth)
            self.depth, self.more = depths.mean(axis=0), depths.var(axis=0)
            self.at = np.minimum(self.at, limits).mean(axis=0)

    @property
    def chances(self) -> Array:
        """Likelihood of every bend, up to a factor, shape ``[K]``."""
        return np.asarray(np.exp(self.logs - self.logs.max()).sum(axis=0))


class Bottom:
    """The bottom of the basin around the winner, averaged over what it may look like.

    Attributes:
        place, place_variance: ln of its learning rate over the winner's.
        step: step of the grid around the winner, in ln lr.
        curvature: second derivative at the bottom, halved.
        levels: objective of every seed at the winner, by all of its runs, shape ``[N]``; NaN for a seed without any.
        saving, variance: how far it lies below that, and the variance of the difference that all seeds share.
    """

    def __init__(self, basins: Basins, prior: Array) -> None:
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


def means_of(study: Study) -> Array:
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
        while 0 <= end + side < len(apart) and abs(end + side - winner) <= NEIGHBOURS and apart[end + side] < farthest:
            end += side
            farthest = _FARTHER * max(apart[end], noise)
        ends.append(end)
    return np.arange(ends[0], ends[1] + 1)


def logs_of(bounds: Array) -> Array:
    """Return ln of bounds; NaN where there is none."""
    return np.log(np.where(bounds > 0, bounds, np.nan))


class Wall(NamedTuple):
    """The bottom of a parabola that ends before the next learning rate: ln of its learning rate over the winner's and
    the variance of that, and how far it lies below the winner and the variance of that."""

    place: float
    place_variance: float
    saving: float
    variance: float


def wall(
    logs: Array,
    means: Array,
    seeds: Array,
    noise: float,
    *,
    above: float,
    slowest: float,
    steepest: float,
) -> Wall | None:
    """Return the bottom where the parabola ended; ``None`` if the next learning rate is about as slow as it says.

    The parabola is drawn by the noise of its points, with any curvature that is possible if there are only two, and so
    is its end, anywhere before the next learning rate.

    Args:
        logs: ln of two or three learning rates over the winner's, of which the last is the winner, increasing.
        means: objective there.
        seeds: number of runs in each.
        noise: standard deviation of one run.
        above: ln of the next learning rate over the winner's.
        slowest: objective of its slowest run, or what it is at least; infinite where it diverged, and minus infinity
            where nothing is known.
        steepest: how fast the objective falls with ln lr at most.
    """
    if slowest == -math.inf:
        return None
    rng = np.random.default_rng(0)
    deviations = noise / np.sqrt(seeds)
    *far, beside, here = means[:, None] + deviations[:, None] * rng.standard_normal((len(means), _DRAWS))
    below = -float(logs[-2])
    falls = (beside - here) / below
    if far:
        apart = float(logs[-2] - logs[-3])
        bends = ((far[-1] - beside) / apart - falls) / (below + apart)
        expected = here - (falls - bends * below) * above + bends * above**2
        rises = float(means[-2] - means[-1]) + max(float(expected.mean() - means[-1]), 0.0)
        ended = slowest > expected.mean() + rises + _SLOWER * math.hypot(expected.std(), noise)
    else:
        # one that falls faster than it can in theory follows another law
        steepest = steepest if falls.mean() < _FASTER * steepest else math.inf
        bends = rng.uniform(size=_DRAWS) * np.clip(np.minimum(falls, steepest - falls), 0.0, None) / below
        # a parabola through all three points would be so steep at the lowest
        steep = falls + below / (below + above) * (falls + (slowest - here) / above)
        ended = slowest == math.inf or steep.mean() > steepest + _SLOWER * (steep.std() + noise / (below + above))
    if not ended:
        return None
    slopes = falls - bends * below  # downwards, at the winner
    with np.errstate(divide="ignore", invalid="ignore"):
        bottoms = np.where(bends > 0, slopes / (2 * bends), np.where(slopes > 0, math.inf, 0.0))
    at = np.clip(np.minimum(bottoms, above * rng.uniform(size=_DRAWS)), -below, None)
    saved = slopes * at - bends * at**2
    place = float(np.quantile(at, _SAFE))
    return Wall(place, float(((at - place) ** 2).mean()), float(saved.mean()), float(saved.var()))


def wall_of(study: Study, winner: int, means: Array, noise: float, steepest: float) -> Wall | None:
    """Return the :func:`wall` above the winner of a study, which has neighbours on both sides, given the mean objective
    of every learning rate ``[L]``, infinite where a seed did not get there; ``None`` if there is none."""
    places = np.log(study.lrs / study.lrs[winner])
    rows = np.arange(max(winner - 2, 0), winner + 1)
    rows = rows[1:] if len(rows) > 2 and not np.isfinite(means[rows[0]]) else rows
    if not np.isfinite(means[rows]).all():
        return None
    seeds, above = np.isfinite(study.steps[rows]).sum(axis=1), winner + 1
    # one run that cannot train there shows the limit, and not one that is fast
    known = np.where(np.isfinite(study.steps[above]), study.steps[above], study.bound[above])
    # a run that was given up trained, so that it is a bound of the parabola
    known = known[study.ran[above] & (study.status[above] != "PRUNED")]
    slowest = float(np.log(np.where(np.isfinite(known), known, np.inf)).max(initial=-math.inf))
    return wall(places[rows], means[rows], seeds, noise, above=float(places[above]), slowest=slowest, steepest=steepest)
