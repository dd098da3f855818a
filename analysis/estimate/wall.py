"""The best learning rate below the limit of stability, which no parabola knows of.

Above the best learning rate training may end at once: it diverges, or is hardly stable. If a run at the next learning
rate is far slower than the parabola through the winner and those below it, that parabola ended somewhere before. What
is saved is then what it falls until there, and on the left it may be nearly straight: steps are in proportion to 1/lr.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from analysis.arrays import Array
from analysis.estimate.studies import Study

_SLOWER = 3.0
"""By how many standard deviations a run has to be slower than the parabola says, beside as much as that rises
on either side, for it to have ended."""

_FASTER = 1.2
"""How many times the steepest fall may be exceeded."""

_SAFE = 0.25
"""Probability that the best learning rate lies below the one that is stated: past the end there is no training, and
before it training is only slower."""

_DRAWS = 400


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
