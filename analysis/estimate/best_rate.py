r"""The objective at the best learning rate of one condition, run by run.

Around the best learning rate the objective is a parabola in :math:`\ln` lr plus a level for every seed. Its bottom is
what a sweep with ever finer learning rates would have found. Where it lies and how bent it is are drawn on a grid, and
weighed by what the winner (:func:`cbs.trial.lr_choice.best_lr`) and up to two neighbours on either side say: those that
reached the target by their steps, those that were given up by being slower than that. The curvature is known in advance
from all conditions, most from the nearest, within a factor of about 1.6, so that a few runs with one seed suffice. An
average over all places also takes out the luck of the winner, which is the lowest of several noisy numbers.

A neighbour above that diverged, or is far slower than the parabola through the winner and those below it, says nothing
about that parabola but that it ends somewhere before (:mod:`analysis.estimate.wall`).
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
from analysis.estimate.wall import Wall, wall

_NEIGHBOURS = 2

_FARTHER = 8.0
"""How many times as slow, compared with the winner, a second neighbour may be as the first one to be one: a parabola
allows four."""

_ALIKE = 0.5
"""Standard deviation of ln of the curvature of one condition around that of its neighbours."""

_LENGTH = 2.0
"""Distance in ln B over which curvatures are alike."""

_SKEWED = 1 / (6 * math.sqrt(3))
"""Smallest standard deviation of the place of a bottom, in grid steps. If the objective rises up to twice as fast on
one side as on the other, it moves by up to 1/6 of a step: this is that of a uniform distribution on (-1/6, 1/6)."""

_LEAST_NOISE = 1e-4
_CEILING = 0.9
"""Share of its steps that a run may have needed less, above which they are a ceiling and no value."""

_OF_ITS_OWN = 0.7
"""Share of one run's noise that learning rates of the same seed do not have in common, where it is not known."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a bottom may look like.

    Attributes:
        skews: how fast the curvature grows with ln lr, tried: 0 is a parabola.
        skewed: standard deviation of their prior.
        crude: error of the shape at a learning rate, as a share of how much slower it is than the winner.
        unlike: standard deviation of the saving because no bottom has quite this shape, as a share of it: of a
            parabola, a cubic term that makes one side twice as steep as the other moves the depth by about as much.
        steepest: how fast the objective falls with ln lr at most: steps are in proportion to 1/lr where it is small.
    """

    skews: tuple[float, ...] = (0.0,)
    skewed: float = 1.0
    crude: float = 0.15
    unlike: float = 0.3
    steepest: float = 1.0


PARABOLA = Shape()
SKEWED = Shape(skews=(-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0), skewed=1.5, crude=0.06, unlike=0.3, steepest=math.inf)
"""For losses, which are known so well that the parabola's error would be larger than the noise."""


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
        curvature: second derivative of the parabola in ln lr, halved; NaN if unknown.
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


def at_best(studies: Sequence[Study], shape: Shape = PARABOLA) -> list[AtBest]:
    """Return the objective (ln of a study's steps) at the best learning rate of every study, in increasing order of
    batch sizes.

    Where no seed reached the target, the best learning rate is unknown, but it took longer than the one that was given
    up first: the bounds are those of the learning rate whose longest run is the shortest. A diverged run has no bound.
    """
    studies = [_tried(study.along_lr) for study in studies]
    noise, own = _own_noise(studies), np.array([_curvature(study) for study in studies])
    # above the winner, where training is hardly stable, runs of a seed scatter more
    below = _own_noise(studies, above=0)
    walls = [_wall(study, below, shape) for study in studies]
    # that of a parabola that ends between its points is too large
    whole = np.where([wall is None for wall in walls], own, np.nan)
    curvatures = _neighbouring(np.log([study.batch_size for study in studies]), whole if (whole > 0).any() else own)
    rows = zip(studies, curvatures, walls, strict=True)
    return [_one(study, curvature, noise, shape, wall) for study, curvature, wall in rows]


def _one(study: Study, curvature: float, noise: float, shape: Shape, wall: Wall | None) -> AtBest:
    winner = study.winner
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
    logs = np.log(study.lrs)
    if study.at_edge(winner):
        return replace(found, **_edge(logs, winner))
    if not curvature > 0:
        return replace(found, **_unbent(logs, winner))
    bottom = _Bottom(study, winner, curvature, noise, shape, wall)
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
        log_lr=float(logs[winner]) + bottom.place,
        log_lr_variance=bottom.place_variance,
        step=bottom.step,
    )


class _Bottom:
    """The bottom of the parabola around the winner, averaged over where it may lie.

    Attributes:
        place, place_variance: ln of its learning rate over the winner's.
        step: step of the grid around the winner, in ln lr.
        curvature: of the parabola.
        levels: objective of every seed at the winner, by all of its runs, shape ``[N]``; NaN for a seed without any.
        saving, variance: how far it lies below that, and the variance of the difference that all seeds share.
    """

    def __init__(
        self, study: Study, winner: int, curvature: float, noise: float, shape: Shape, wall: Wall | None
    ) -> None:
        places = np.log(study.lrs / study.lrs[winner])
        below, above = -float(places[winner - 1]), float(places[winner + 1])
        bends = curvature * np.exp(_ALIKE * np.linspace(-2.5, 2.5, 11))
        grid = np.meshgrid(np.linspace(-below, above, 81), bends, shape.skews, indexing="ij")
        at, bend, skew = (values.ravel() for values in grid)
        table, apart = (
            np.log(study.steps),
            _means(study) - np.log(study.steps[winner][np.isfinite(study.steps[winner])]).mean(),
        )
        apart[winner] = 0.0  # infinite where a seed did not get there
        rows = _window(apart, winner, noise)
        if wall is not None:
            rows = rows[rows <= winner]
        rises = bend * (_basin(places[:, None] - at, skew) - _basin(-at, skew))  # over the winner, [L, K]
        there = np.isfinite(table[rows])
        certain = there / (noise**2 + (shape.crude * apart[rows, None]) ** 2)
        left = np.where(there, table[rows], 0.0)[..., None] - rises[rows][:, None]
        with np.errstate(invalid="ignore"):
            levels = np.einsum("ln,lnk->nk", certain, left) / certain.sum(axis=0)[:, None]
        chances = -0.5 * np.einsum("ln,lnk->k", certain, np.where(there[..., None], left - levels, 0.0) ** 2)
        chances -= 0.5 * (np.log(bend / curvature) / _ALIKE) ** 2 + 0.5 * (skew / shape.skewed) ** 2
        for row in (winner - 1,) if wall is not None else (winner - 1, winner + 1):
            bounds = _logs(np.where(np.isfinite(study.steps[row]), np.nan, study.bound[row]))
            for seed in np.flatnonzero(np.isfinite(bounds) & there.any(axis=0)):
                over = levels[seed] + rises[row] - bounds[seed]
                chances += log_ndtr(over / np.hypot(math.sqrt(2) * noise, shape.crude * rises[row]))
        weights = np.exp(chances - chances.max())
        weights /= weights.sum()
        depth, more = bend * _basin(-at, skew), np.zeros(len(at))
        if wall is not None and len(shape.skews) > 1:
            # the left of a skewed bottom tells where it lies; it may end anywhere before the next learning rate
            ends = np.linspace(0.05, 0.95, 10)[:, None] * above
            depths = np.where(at > ends, bend * (_basin(-at, skew) - _basin(ends - at, skew)), depth)
            depth, more = depths.mean(axis=0), depths.var(axis=0)
            at, wall = np.minimum(at, ends).mean(axis=0), None
        with np.errstate(invalid="ignore"):
            self.levels = levels @ weights
        values = np.nanmean(levels, axis=0) - depth
        self.place, self.saving, self.curvature = (float(weights @ each) for each in (at, depth, bend))
        self.step = (below + above) / 2
        self.place_variance = max(float(weights @ (at - self.place) ** 2), (_SKEWED * self.step) ** 2)
        self.variance = float(weights @ ((values - weights @ values) ** 2 + more)) + (shape.unlike * self.saving) ** 2
        if wall is not None:
            own = np.log(study.steps[winner])
            self.levels = np.where(np.isfinite(own), own, self.levels)
            self.place, self.saving = wall.place, wall.saving
            self.place_variance = max(wall.place_variance, (_SKEWED * self.step) ** 2)
            self.variance = wall.variance + (shape.unlike * self.saving) ** 2


def _wall(study: Study, noise: float, shape: Shape) -> Wall | None:
    """Return the bottom of a parabola that ended before the learning rate above the winner; ``None`` if it did not."""
    winner = study.winner
    if winner is None or not np.isfinite(study.lrs).all() or not 0 < winner < len(study.lrs) - 1:
        return None
    means, places = _means(study), np.log(study.lrs / study.lrs[winner])
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
    return wall(
        places[rows],
        means[rows],
        seeds,
        noise,
        above=float(places[above]),
        slowest=slowest,
        steepest=shape.steepest,
    )


def _tried(study: Study) -> Study:
    """Return the study without learning rates of which no trial says anything about training."""
    return study.at(study.tried) if study.winner is not None else study


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


def _unbent(logs: Array, winner: int) -> dict[str, Any]:
    """Return the place of the bottom if no curvature is known: anywhere between the middles of the gaps beside it."""
    step = float(logs[winner + 1] - logs[winner - 1]) / 2
    return {
        "log_lr": float(logs[winner - 1] + 2 * logs[winner] + logs[winner + 1]) / 4,
        "step": step,
        "log_lr_variance": step**2 / 12,
    }


def _curvature(study: Study) -> float:
    """Return the curvature through the winner and its two neighbours, over seeds that ran all three; NaN if unknown."""
    winner = study.winner
    if winner is None or not np.isfinite(study.lrs).all() or not 0 < winner < len(study.lrs) - 1:
        return math.nan
    part = slice(winner - 1, winner + 2)
    table, logs = np.log(study.steps[part]), np.log(study.lrs[part])
    both = np.isfinite(table).all(axis=0)
    if not both.any():
        return math.nan
    falls, rises = np.diff(table[:, both].mean(axis=1)) / np.diff(logs)
    return float((rises - falls) / (logs[2] - logs[0]))


def _neighbouring(log_sizes: Array, own: Array) -> Array:
    """Return the geometric mean of the positive curvatures around every batch size, shape ``[M]``; NaN if none is
    known."""
    known = own > 0
    if not known.any():
        return np.full(len(own), np.nan)
    weights = np.exp(-0.5 * ((log_sizes[:, None] - log_sizes[known]) / _LENGTH) ** 2) + 1e-9
    return np.exp((weights @ np.log(own[known])) / weights.sum(axis=1))


def _own_noise(studies: Sequence[Study], above: int = _NEIGHBOURS) -> float:
    """Return the standard deviation of one run's objective without what all learning rates of a seed share, pooled
    over conditions.

    Where no two learning rates have two seeds, it is a share of what the seeds at the winners scatter beyond what they
    have in common at all batch sizes.
    """
    squares = freedom = 0.0
    winners = [study for study in studies if study.winner is not None]
    for study in winners:
        winner = study.winner or 0
        apart = np.log(study.steps[max(winner - _NEIGHBOURS, 0) : winner + above + 1] / study.steps[winner])
        for row in apart:
            both = row[np.isfinite(row)]
            if len(both) > 1 and np.ptp(both) > 0:
                squares += float(((both - both.mean()) ** 2).sum()) / 2
                freedom += len(both) - 1
    if freedom:
        return max(math.sqrt(squares / freedom), _LEAST_NOISE)
    seeds = max((len(study.seeds) for study in winners), default=0)
    table = np.array([np.log(study.steps[study.winner or 0]) for study in winners if len(study.seeds) == seeds])
    if seeds > 1 and len(table) > 1 and np.isfinite(table).all():
        left = table - table.mean(axis=1, keepdims=True) - table.mean(axis=0) + table.mean()
        variance = float((left**2).sum()) / ((len(table) - 1) * (seeds - 1))
        return max(_OF_ITS_OWN * math.sqrt(variance), _LEAST_NOISE)
    return 0.03
