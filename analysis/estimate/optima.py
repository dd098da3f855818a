"""The best learning rate of one batch size, between the points of the grid.

It is the vertex of the parabola through the winner (:func:`cbs.trial.lr_choice.best_lr`) and its two neighbours, in
seed-mean ln steps over ln lr, which lies within half a grid step of the winner. If a neighbour ran but did not reach
the target on every seed, it is only known to be worse, and the vertex lies in a range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from analysis.arrays import Array
from analysis.estimate.studies import Study
from cbs.trial.lr_choice import ALIKE, best_lr_many, cliff, standings, vertex

_SHAPE = 1 / (6 * math.sqrt(3))
"""Smallest standard deviation of an optimum, in grid steps. If steps rise up to twice as fast on one side of the
optimum as on the other, the vertex moves by up to 1/6 of a step; this is the deviation of a uniform distribution on
(-1/6, 1/6)."""

_DRAWS = 200

TINY = 1e-300


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """The best learning rate at one batch size.

    Attributes:
        batch_size: examples per step.
        log_lr: ln of the best learning rate; at an edge of the grid, ln of the one tried there.
        edge: -1 if the lowest learning rate wins, 1 if the highest does, so that only a bound is known; otherwise 0.
        step: step of the grid around it, in ln lr.
        seeds: number of seeds.
        seed_variance: variance of ``log_lr`` for one seed; 0 if there is one only.
        grid_variance: variance due to the spacing of the grid.
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
        """Return the interval of ``lr``, ``half`` in ln lr to either side; ``None`` for an unknown end.

        At an edge it is open on the outer side and ends half a grid step inside on the other.
        """
        if self.edge:
            end = math.exp(self.log_lr - self.edge * self.step / 2)
            return (end, None) if self.edge > 0 else (None, end)
        return (None, None) if math.isnan(half) else (math.exp(self.log_lr - half), math.exp(self.log_lr + half))


def optimum(study: Study, rng: np.random.Generator) -> Optimum | None:
    """Find the optimum of one batch size, with its variance over seeds drawn with replacement and the winner chosen
    again; ``None`` if no trial reached the target or the trials do not state their learning rate."""
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
    """Return the largest saving in log steps by a learning rate between the best one and its neighbours.

    A third of it is expected, see :func:`analysis.estimate.fitting.bootstrap.leftover`. If both neighbours reached the
    target on every seed, it is three times the depth of the parabola through the three points. A neighbour that was
    stopped says little about the vertex on the other side. The parabola there is taken as steep as possible: since ``lr
    S`` does not fall with the learning rate, ``|d ln S / d ln lr|`` is at most 1, above as well as below the optimum.
    Towards a neighbour that diverged, steps may continue to fall as they did up to the winner. At an edge of the tried
    range nothing is known, which the verdict reports.
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
    """Return the smallest, the expected and the largest saving by a learning rate between the best one and its
    neighbours.

    The objective is the logarithm of ``study.steps``, without a known largest slope. The savings are the depths below
    the winner of the polynomials through the means of the two, three or four learning rates around it, spread apart by
    their differences, provided that the curvature in ln lr changes by less than :data:`cbs.trial.lr_choice.ALIKE` from
    one to the next; otherwise anything from 0 upwards, with 0 expected. An objective convex in ln lr lies above every
    line through two neighbours outside of the two, so it is no deeper than the point where such lines cross. If there
    is only one learning rate on a side, the saving is that of the parabola through three points, or up to three times
    as much; up to one that diverged or may lie beyond a cliff, the objective may continue to fall as it did up to the
    winner. At an edge nothing is known.
    """
    if study.winner is None or not np.isfinite(study.lrs).all() or study.at_edge(study.winner):
        return 0.0, 0.0, 0.0
    logs, means = _means(study)
    winner = int(study.tried[: study.winner].sum())
    deepest = _lines_cross(logs, means, winner)
    if not np.isfinite(means[max(winner - 2, 0) : winner + 3]).all():
        return 0.0, 0.0, deepest
    if winner < 2 or winner + 2 >= len(logs):
        likely, most = _of_three(logs, means, winner)
        return 0.0, min(likely, deepest), min(most, deepest)
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


def _of_three(logs: Array, means: Array, winner: int) -> tuple[float, float]:
    """Return the depth of the parabola through the winner and its neighbours, and three times that.

    If the upper neighbour may lie beyond a cliff (:func:`cbs.trial.lr_choice.cliff`), it counts as if it rose by
    :data:`cbs.trial.lr_choice.ALIKE` times as much as the lower one at most; and if none beyond it is known, the
    objective may go on falling up to it as it did up to the winner.
    """
    below, above = float(logs[winner] - logs[winner - 1]), float(logs[winner + 1] - logs[winner])
    left, right = (float(means[winner + side] - means[winner]) for side in (-1, 1))
    if not cliff(logs, means, winner):
        depth = vertex(left, right, below, above)[1]
        return depth, 3 * depth
    depth = vertex(left, min(right, ALIKE * left or right), below, above)[1]
    return depth, max(3 * depth, left / below * above if winner + 2 == len(logs) else 0.0)


def _smooth(logs: Array, means: Array, winner: int) -> bool:
    """Return whether the curvatures at the winner and its two neighbours are similar."""
    part = slice(winner - 2, winner + 3)
    slopes = np.diff(means[part]) / np.diff(logs[part])
    bends = np.diff(slopes) / (logs[part][2:] - logs[part][:-2])
    return bool(bends.min() > 0 and bends.max() < ALIKE * bends.min())


def _means(study: Study) -> tuple[Array, Array]:
    """Return ln of the learning rates that were tried, and their means to choose by; infinite where a trial failed."""
    logs = np.log(study.lrs[study.tried])
    failed, means = standings(study.steps[study.tried][None], study.ran[study.tried][None])
    return logs, np.where(failed[0] > failed.min(), np.inf, means[0])


def _lines_cross(logs: Array, means: Array, winner: int) -> float:
    """Return how far below the winner the lines cross, on its left or right, whichever is deeper.

    One line continues the slope from the neighbour behind the winner (vertical if that one failed), the other the slope
    between the two neighbours in front; without a second one in front, the first line ends at the neighbour.
    """
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
    """Return the depth of the parabola through 0 and ``rise`` whose slope at the latter is 1."""
    if 2 * rise >= gap:
        return 0.0
    place = gap * (gap - 2 * rise) / (2 * (gap - rise))
    return place**2 / (2 * (gap - place))


def _vertices(logs: Array, steps: Array, bound: Array, ran: np.ndarray) -> tuple[Array, Array, Array, Array]:
    """Return the range of the vertex, the grid step around it, and the edge it lies at, shape ``[R]`` each.

    At an edge both ends are the learning rate there; NaN if no seed reached the target. ``logs`` are ln of the learning
    rates, shape ``[L]``; the other arguments are as in :class:`Study`, shape ``[R, L, N]``.
    """
    winner, edge, ((below, left, left_most), (above, right, right_most)) = _beside(logs, steps, bound, ran)
    at = np.where(winner < 0, np.nan, logs[winner])
    inside = edge == 0
    low = at + np.where(inside, _vertex(left, right_most, below, above, tie=-1), 0.0)
    high = at + np.where(inside, _vertex(left_most, right, below, above, tie=1), 0.0)
    return low, high, (below + above) / np.where(inside, 2, 1), edge


def _beside(logs: Array, steps: Array, bound: Array, ran: np.ndarray) -> tuple[Array, Array, list[tuple[Array, ...]]]:
    """Return the winner, the edge it lies at, and for its lower and upper neighbour the distance in ln lr and how many
    log steps they are slower, at least and at most; shape ``[R]`` each, arguments as for :func:`_vertices`."""
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
    """Return the vertex of the parabola through 0 and the rises ``left`` at ``-below`` and ``right`` at ``above``.

    If both rises are infinite or both are 0 it may lie anywhere, and the end on the side ``tie`` is returned.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        first, second = left / below, right / above
        place = (above * first - below * second) / (2 * (first + second))
    place = np.where(np.isinf(first), above / 2, np.where(np.isinf(second), -below / 2, place))
    anywhere = (np.isinf(first) & np.isinf(second)) | (first + second == 0)
    return np.asarray(np.where(anywhere, above / 2 if tie > 0 else -below / 2, place))
