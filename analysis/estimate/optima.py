"""The best learning rate of one batch size, between the points of the grid.

It is the vertex of the parabola through the winner (:func:`cbs.trial.lr_choice.best_lr`) and its two neighbours, in
seed-mean ln steps over ln lr, which lies within half a grid step of the winner. A neighbour that ran and did not reach
the target on every seed is only known to be worse; then the vertex lies between two ends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from analysis.arrays import Array
from analysis.estimate.studies import Study
from cbs.trial.lr_choice import best_lr_many, standings, vertex

_SHAPE = 1 / (6 * math.sqrt(3))
"""Standard deviation, in grid steps, that no optimum is known better than. Steps that rise up to twice as fast on one
side of the optimum as on the other move the vertex by up to 1/6 of a step; that is uniform on (-1/6, 1/6)."""

_DRAWS = 200

TINY = 1e-300

_ALIKE = 8.0
"""Ratio of curvatures in ln lr up to which polynomials through neighbours tell what lies between."""


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """The best learning rate at one batch size.

    Attributes:
        batch_size: examples per step.
        log_lr: ln of it; at an edge of the grid of the one tried there.
        edge: -1 where the lowest learning rate wins, 1 where the highest does: only a bound is known. Else 0.
        step: of the grid around it, in ln lr.
        seeds: number of seeds.
        seed_variance: variance of ``log_lr`` with one seed; 0 where there is one.
        grid_variance: variance that the grid leaves open.
    """

    batch_size: int
    log_lr: float
    edge: int
    step: float
    seeds: int
    seed_variance: float
    grid_variance: float

    @property
    def lr(self) -> float:
        return math.exp(self.log_lr)

    def interval(self, half: float) -> tuple[float | None, float | None]:
        """``lr`` less and plus ``half`` in ln lr; ``None`` where that is not known. At an edge it is open on the far
        side and ends half a grid step inside on the other."""
        if self.edge:
            end = math.exp(self.log_lr - self.edge * self.step / 2)
            return (end, None) if self.edge > 0 else (None, end)
        return (None, None) if math.isnan(half) else (math.exp(self.log_lr - half), math.exp(self.log_lr + half))


def optimum(study: Study, rng: np.random.Generator) -> Optimum | None:
    """The optimum of one batch size, with the variance of seeds drawn with replacement, the winner chosen again;
    ``None`` where no trial reached the target or the trials do not name their learning rate."""
    if study.winner is None or not np.isfinite(study.lrs).all():
        return None
    seeds = len(study.seeds)
    draws = np.vstack([np.arange(seeds), rng.integers(seeds, size=(_DRAWS if seeds > 1 else 0, seeds))])
    drawn = [table[study.tried][:, draws].swapaxes(0, 1) for table in (study.steps, study.bound, study.ran)]
    low, high, step, edge = _vertices(np.log(study.lrs[study.tried]), *drawn)
    middle = (low + high) / 2
    return Optimum(
        batch_size=study.batch_size,
        log_lr=float(middle[0]),
        edge=int(edge[0]),
        step=float(step[0]),
        seeds=seeds,
        seed_variance=float(np.nanvar(middle[1:])) * seeds**2 / (seeds - 1) if seeds > 1 else 0.0,
        grid_variance=float((high[0] - low[0]) ** 2 / 12 + (_SHAPE * step[0]) ** 2),
    )


def gain(study: Study) -> float:
    """The most log steps that a learning rate between the best one and its neighbours could save; a third of that is
    expected, see :func:`analysis.estimate.fitting.bootstrap.leftover`.

    Where both neighbours reached the target on every seed, three times the depth of the parabola through the three. A
    neighbour that was stopped says little of the vertex on the other side; the parabola there is as steep as it can
    be, since ``lr S`` does not fall with the learning rate: ``|d ln S / d ln lr|`` is 1 at most, above the optimum as
    below it. Towards one that diverged steps may fall on as they did up to the winner. At an edge of what was tried
    nothing is known, which the verdict says.
    """
    if study.winner is None or not np.isfinite(study.lrs).all():
        return 0.0
    rows = study.tried
    steps, bound, ran = (table[rows][None] for table in (study.steps, study.bound, study.ran))
    (winner,), (edge,), sides = _beside(np.log(study.lrs[rows]), steps, bound, ran)
    if edge:
        return 0.0
    gaps, least, most = (np.array(values)[:, 0] for values in zip(*sides, strict=True))
    diverged = (ran & ~np.isfinite(steps) & ~np.isfinite(bound))[0, [winner - 1, winner + 1]].any(axis=1)
    if np.isfinite(most).all():
        return 3 * vertex(*least, *gaps)[1]
    vertices = [0.0 if diverged.any() else vertex(*least, *gaps)[1]]
    for side, other in ((0, 1), (1, 0)):
        if diverged[side]:
            vertices.append(min(1.0, most[other] / gaps[other]) * gaps[side])
        elif np.isinf(most[other]):
            vertices.append(_steepest(least[side], gaps[side]))
    return float(max(vertices))


def savings(study: Study) -> tuple[float, float, float]:
    """The least that a learning rate between the best one and its neighbours could save, what is expected, and the
    most, of an objective that is the logarithm of ``study.steps`` and of which no steepest slope is known.

    They are the depths below the winner of the polynomials through the means of the two, three or four learning rates
    around it, moved apart by their distance, where the curvature in ln lr changes by less than :data:`_ALIKE` from one
    to the next, and else anything from nothing, which is then expected. An objective convex in ln lr lies above every
    line through two neighbours outside of the two, so it is no deeper than where these cross. With one learning rate
    alone on a side it is the parabola through three, or up to three times as deep. Next to a learning rate
    that diverged it may fall on as it did up to the winner. At an edge nothing is known.
    """
    if study.winner is None or not np.isfinite(study.lrs).all() or study.at_edge(study.winner):
        return 0.0, 0.0, 0.0
    logs, means = _means(study)
    winner = int(study.tried[: study.winner].sum())
    deepest = _lines_cross(logs, means, winner)
    if not np.isfinite(means[max(winner - 2, 0) : winner + 3]).all():
        return 0.0, 0.0, deepest
    if winner < 2 or winner + 2 >= len(logs):
        depth = _depth_of_three(logs, means, winner)
        return 0.0, min(depth, deepest), min(3 * depth, deepest)
    if not _smooth(logs, means, winner):
        return 0.0, 0.0, deepest
    places = np.linspace(logs[winner - 1], logs[winner + 1], 201) - logs[winner]
    depths = []
    for below, above in ((1, 1), (2, 1), (1, 2), (2, 2)):
        part = slice(winner - below, winner + above + 1)
        powers = np.polyfit(logs[part] - logs[winner], means[part] - means[winner], below + above)
        depths.append(-float(np.polyval(powers, places).min()))
    low, high = min(depths), max(depths)
    low, expected, high = (min(max(each, 0.0), deepest) for each in (2 * low - high, (low + high) / 2, 2 * high - low))
    return low, expected, high


def _depth_of_three(logs: Array, means: Array, winner: int) -> float:
    """Of the parabola through the winner and its neighbours; of a neighbour that rises more than :data:`_ALIKE` times
    as much as the other, as if it rose so much."""
    gaps = [abs(logs[winner + side] - logs[winner]) for side in (-1, 1)]
    rises = [float(means[winner + side] - means[winner]) for side in (-1, 1)]
    most = _ALIKE * min(rises)
    return vertex(*(min(rise, most) if most > 0 else rise for rise in rises), *gaps)[1]


def _smooth(logs: Array, means: Array, winner: int) -> bool:
    """Whether the curvatures at the winner and its two neighbours are alike."""
    part = slice(winner - 2, winner + 3)
    slopes = np.diff(means[part]) / np.diff(logs[part])
    bends = np.diff(slopes) / (logs[part][2:] - logs[part][:-2])
    return bool(bends.min() > 0 and bends.max() < _ALIKE * bends.min())


def _means(study: Study) -> tuple[Array, Array]:
    """ln of the learning rates that were tried, and what they are chosen by; infinite where a trial failed."""
    logs = np.log(study.lrs[study.tried])
    failed, means = standings(study.steps[study.tried][None], study.ran[study.tried][None])
    return logs, np.where(failed[0] > failed.min(), np.inf, means[0])


def _lines_cross(logs: Array, means: Array, winner: int) -> float:
    """How far below the winner the lines cross, on its left and on its right: down from the winner as steeply as up to
    the neighbour behind it, like a wall where that one failed, and down from the neighbour in front as steeply as up to
    the next one; without a next one, down from the winner as far as to the neighbour."""
    deepest = 0.0
    for side in (-1, 1):
        near, far, behind = winner + side, winner + 2 * side, winner - side
        gap = abs(logs[near] - logs[winner])
        falls = (means[behind] - means[winner]) / abs(logs[behind] - logs[winner])
        if 0 <= far < len(logs) and np.isfinite(means[[near, far]]).all():
            rises = (means[far] - means[near]) / abs(logs[far] - logs[near])
            below = rises * gap - (means[near] - means[winner])
            depth = below if math.isinf(falls) else falls * min(below / max(rises + falls, TINY), gap)
        else:
            depth = 0.0 if math.isinf(falls) else falls * gap
        deepest = max(deepest, float(depth))
    return deepest


def _steepest(rise: float, gap: float) -> float:
    """Depth of the parabola through 0 and a rise that has the slope 1 there."""
    if 2 * rise >= gap:
        return 0.0
    place = gap * (gap - 2 * rise) / (2 * (gap - rise))
    return place**2 / (2 * (gap - place))


def _vertices(logs: Array, steps: Array, bound: Array, ran: np.ndarray) -> tuple[Array, Array, Array, Array]:
    """Ends between which the vertex lies, the grid step around it, and the edge it lies at, shape ``[R]`` each. At an
    edge both ends are the learning rate there. NaN where no seed reached the target. Arguments are ln of the learning
    rates, shape ``[L]``, and what :class:`Study` has of each, shape ``[R, L, N]``."""
    winner, edge, ((below, left, left_most), (above, right, right_most)) = _beside(logs, steps, bound, ran)
    at = np.where(winner < 0, np.nan, logs[winner])
    inside = edge == 0
    low = at + np.where(inside, _vertex(left, right_most, below, above, tie=-1), 0.0)
    high = at + np.where(inside, _vertex(left_most, right, below, above, tie=1), 0.0)
    return low, high, (below + above) / np.where(inside, 2, 1), edge


def _beside(logs: Array, steps: Array, bound: Array, ran: np.ndarray) -> tuple[Array, Array, list[tuple[Array, ...]]]:
    """The winner, the edge it lies at, and of the neighbours below and above it the distance in ln lr and by how many
    log steps they are slower, at least and at most; shape ``[R]`` each, arguments as of :func:`_vertices`."""
    winner = best_lr_many(steps, ran)
    rows, last = np.arange(len(steps)), len(logs) - 1
    here = np.log(steps[rows, winner])
    sides: list[tuple[Array, ...]] = []
    for side in (-1, 1):
        beside = np.clip(winner + side, 0, last)
        rise = np.log(steps[rows, beside]) - here
        exact = (np.isfinite(rise) | ~np.isfinite(here) | ~ran[rows, beside]).all(axis=1)
        rise = np.where(np.isfinite(rise), rise, np.log(bound[rows, beside]) - here)
        known = np.isfinite(rise)
        mean = np.where(known, rise, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
        least = np.maximum(mean, 0.0)
        most = np.where(exact & known.any(axis=1), least, np.inf)
        sides.append((np.abs(logs[beside] - logs[winner]), least, most))
    return winner, np.where(winner == last, 1, np.where(winner == 0, -1, 0)), sides


def _vertex(left: Array, right: Array, below: Array, above: Array, *, tie: int) -> Array:
    """Vertex of the parabola through 0 and the rises ``left`` at ``-below`` and ``right`` at ``above``. Where both are
    infinite or none rises it may lie anywhere, and the end on the side ``tie`` is taken."""
    with np.errstate(divide="ignore", invalid="ignore"):
        first, second = left / below, right / above
        place = (above * first - below * second) / (2 * (first + second))
    place = np.where(np.isinf(first), above / 2, np.where(np.isinf(second), -below / 2, place))
    anywhere = (np.isinf(first) & np.isinf(second)) | (first + second == 0)
    return np.asarray(np.where(anywhere, above / 2 if tie > 0 else -below / 2, place))
