r"""The local critical batch size from paired differences, with an interval.

The excess of a factor k is :math:`e_k = L_k - \min_{k' \le k} L_{k'}`, where L is the expected loss at the end of the
window, and :math:`k^*` is the largest k whose excess is at most a tolerance; between the factors that were run, a
monotone cubic in ln k interpolates the excess. Branches of one seed see the same examples, so the difference
:math:`L_k - L_{k'}` within a seed has far less noise than the losses themselves.

A draw moves the means of all k together, by :math:`\sum_s g_s r_{sk}/\sqrt{n_k (n_k - 1)}` with the residuals
:math:`r_{sk}` of seed s and factor k and standard normal :math:`g_s`, times the square root of :math:`\nu/\chi^2_\nu`,
:math:`\nu = n_k - 1`. Every difference of two factors then has exactly the t interval of its pairs, whereas resampling
three to five seeds with replacement gives a narrower one. The best smaller k is the same in all draws: choosing it anew
in each would bias its loss downwards twice.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.stats import chi2

from analysis.arrays import OPEN, UNKNOWN, Array, Interval, Quantity
from analysis.estimate.branches.losses import BranchLosses

_BETWEEN = 24
"""Number of points from one factor to the next at which the interpolated curve is evaluated."""


@dataclass(frozen=True, kw_only=True)
class PairedMeans:
    """Mean losses of the factors of one checkpoint, up to a common constant.

    Attributes:
        factors: factors that can be compared, ``[K]``.
        means: least-squares means with an effect of every seed, ``[K]``; if every seed ran every factor, their
            differences are the means of the paired differences.
        drawn: draws of the means, ``[R, K]``; no rows if the noise is unknown.
        seeds: number of branches of every factor, ``[K]``.
        variance: variance of the interaction of seed and factor, ``[K]``; NaN with fewer than two seeds.
        borrowed: whether the noise of a factor is taken from other checkpoints or factors, ``[K]``.
    """

    factors: Array
    means: Array
    drawn: Array = field(repr=False)
    seeds: Array
    variance: Array
    borrowed: np.ndarray


@dataclass(frozen=True)
class LentNoise:
    """Variance of the interaction of seed and factor, NaN if unknown, and its degrees of freedom."""

    variance: float
    freedom: float


@dataclass(frozen=True, kw_only=True)
class LocalFactor:
    """The factor k* from which on the excess loss of branches is above the tolerance.

    Attributes:
        factor: k*; no value if it lies beyond the factors that were run, and an end of its interval is open likewise.
        drawn: draws of ln k*, ``[R]``; infinite beyond the largest factor.
        factors: factors that can be compared, ``[K]``.
        excess: their excess losses.
        beyond: ``above`` if the largest factor is within the tolerance, ``below`` if only the smallest one is;
            otherwise empty.
    """

    factor: Quantity = UNKNOWN
    drawn: Array = field(repr=False)
    factors: Array
    excess: tuple[Quantity, ...]
    beyond: str = ""


def paired_means(
    branches: BranchLosses, draws: int, seed: int, lent: LentNoise | None = None, *, part: int = 0
) -> PairedMeans:
    """Estimate the mean losses of the factors that can be compared, and draw from their distribution.

    Args:
        branches: losses of one checkpoint, with at least one usable factor.
        draws: number of draws.
        seed: seed of the draws; the same for the whole and the half window of a checkpoint, so that their draws are
            paired, and different for different checkpoints.
        lent: noise for factors with one seed, or with two if it has more than one degree of freedom, and for all if no
            residual has any, see :func:`noise_to_borrow`.
        part: 0 for the whole window, another number for a part of it. Lent noise does not show how the noise of two
            windows is correlated, so its draws are independent.
    """
    kept = branches.usable
    losses = branches.losses[:, kept]
    there = np.isfinite(losses)
    seeds = there.sum(axis=0).astype(float)
    means, residuals = _two_way(losses, there)
    variance = np.where(seeds > 1, (residuals**2).sum(axis=0) / np.maximum(seeds - 1, 1), np.nan)
    lent = lent or LentNoise(math.nan, 0.0)
    # with as many parameters as losses, the residuals are 0 whatever the noise is
    saturated = len(means) > 1 and _spare(there) <= 0
    variance = np.where(saturated, np.nan, variance)
    alone = (seeds < 2) | ((seeds < 3) & (lent.freedom > 1)) | saturated
    other = np.where(alone, lent.variance, 0.0)
    drawn = np.empty((0, len(means)))
    if not np.isnan(other).any():
        rng = np.random.default_rng(seed)
        freedom = np.where(alone, max(lent.freedom, 1.0), seeds - 1)
        own = np.where(alone, 0.0, residuals / np.sqrt(seeds * np.maximum(seeds - 1, 1)))
        normal = rng.standard_normal((draws, len(losses))) @ own
        borrowed = rng.standard_normal((draws, len(means)))
        if part:
            borrowed = np.random.default_rng([seed, part]).standard_normal(borrowed.shape)
        normal += borrowed * np.sqrt(other / seeds)
        # one quantile for all factors: if their numbers of seeds are equal, all are divided by the same number
        unlike, alike = np.unique(freedom, return_inverse=True)
        spread = (chi2.ppf(rng.random((draws, 1)), unlike) / unlike)[:, alike]
        drawn = means + normal / np.sqrt(np.maximum(spread, 1e-12))
    return PairedMeans(
        factors=branches.factors[kept], means=means, drawn=drawn, seeds=seeds, variance=variance, borrowed=alone
    )


def noise_to_borrow(checkpoints: list[BranchLosses]) -> LentNoise:
    """Return the noise for factors that too few seeds ran: the largest variance of any factor at any checkpoint of the
    run, among those that two or more seeds ran; NaN if there are none."""
    largest, freedom = math.nan, 0.0
    for branches in checkpoints:
        if not branches.usable.any():
            continue
        found = paired_means(branches, 0, 0)
        freedom += max(_spare(np.isfinite(branches.losses[:, branches.usable])), 0.0)
        whole = found.variance * len(found.factors) / max(len(found.factors) - 1, 1)  # effects of seeds took 1/K
        largest = float(np.fmax(largest, np.fmax.reduce(whole)))
    return LentNoise(largest, freedom)


def _spare(there: np.ndarray) -> float:
    """Return the degrees of freedom that the losses marked in ``there`` ``[N, K]`` leave beside the effects of factors
    and seeds."""
    twice = there.sum(axis=0)
    twice = twice[twice > 1]
    return float(twice.sum() - len(twice) - (twice.max(initial=1) - 1))  # the last term is for the effects of seeds


def _two_way(losses: Array, there: np.ndarray) -> tuple[Array, Array]:
    """Return the effects of the factors, ``[K]``, and the residuals, ``[N, K]``, of a least-squares fit with effects of
    seeds and factors; a residual is 0 where no branch was run. The factors must share seeds."""
    rows, columns = np.nonzero(there)
    design = np.zeros((len(rows), sum(losses.shape)))
    design[np.arange(len(rows)), rows] = design[np.arange(len(rows)), losses.shape[0] + columns] = 1.0
    values = losses[there]
    centre = float(values.mean())
    effects = np.linalg.lstsq(design, values - centre, rcond=None)[0]
    seeds, means = effects[: losses.shape[0]], effects[losses.shape[0] :]
    # how the common level splits into seeds and factors is not determined; differences do not depend on it
    left = np.where(there, np.where(there, losses, 0.0) - centre - seeds[:, None] - means, 0.0)
    return centre + means + float(seeds[there.any(axis=1)].mean()), left


def local_factor(
    found: PairedMeans, tolerance: float, confidence: float, diverged: float | None = None, seed: int = 0
) -> LocalFactor:
    """Estimate k*, the largest factor whose excess loss is at most the tolerance.

    Args:
        found: result of :func:`paired_means`.
        tolerance: tolerance above 0, in the unit of the loss.
        confidence: level of the intervals.
        diverged: smallest factor above those in ``found`` at which a branch diverged; ``None`` if there is none. If the
            largest factor in ``found`` is within the tolerance, k* is drawn between the two.
        seed: seed of these draws.
    """
    factors, means, drawn = found.factors, found.means, found.drawn
    best = np.array([int(means[: place + 1].argmin()) for place in range(len(means))])
    rows = np.vstack([means[None], drawn])
    excess = rows - rows[:, best]
    quantities = tuple(Quantity.drawn(excess[:, place], confidence) for place in range(len(factors)))
    logs = np.log(factors)
    crossed = _last_within(logs, excess, tolerance, seed)
    if diverged is not None and diverged > factors[-1]:
        place = np.random.default_rng([seed, 1]).uniform(size=len(rows))
        place[0] = 0.5
        between = logs[-1] + place * (math.log(diverged) - logs[-1])
        crossed = np.where(np.isposinf(crossed), between, crossed)
    # the smallest factor has excess 0 by definition: if all others lost, even smaller factors could be better
    below = len(logs) == 1 or bool(crossed[0] < logs[1])
    beyond = "above" if np.isposinf(crossed[0]) else "below" if below else ""
    value = None if beyond else math.exp(crossed[0])
    ends = _ends(crossed[1:], confidence, float(logs[-1]))
    if beyond == "below":
        ends = (None, ends[1])
    return LocalFactor(
        factor=Quantity(value, ends), drawn=crossed[1:], factors=factors, excess=quantities, beyond=beyond
    )


def _ends(drawn: Array, confidence: float, last: float) -> Interval:
    """Return the interval of k* from draws of its logarithm: its lower end is at most the largest factor, whose
    logarithm is ``last``; its upper end is open if the draw there is infinite."""
    if not len(drawn):
        return OPEN
    tail = 0.5 - confidence / 2
    low, high = (float(np.quantile(drawn, q, method="nearest")) for q in (tail, 1 - tail))
    return math.exp(min(low, last)), math.exp(high) if math.isfinite(high) else None


def _last_within(logs: Array, excess: Array, tolerance: float, seed: int) -> Array:
    """Return for every row of excesses the largest ln k at which a curve through them is within the tolerance, ``[R]``;
    infinity if that is the last factor.

    The difference between a monotone cubic and straight lines is taken as the uncertainty of the curve between two
    factors: every row but the first is moved by up to this difference, to either side. It is moved by more if the
    neighbouring factors lie farther apart than these two, as the cubic is then less certain. The first excess of every
    row must be 0.
    """
    if len(logs) == 1:
        return np.full(len(excess), np.inf)
    pieces = [np.linspace(*ends, _BETWEEN, endpoint=False) for ends in itertools.pairwise(logs)]
    fine = np.append(np.concatenate(pieces), logs[-1])
    smooth = _crossed(fine, PchipInterpolator(logs, excess, axis=1)(fine) - tolerance)
    straight = _crossed(logs, excess - tolerance)
    apart = np.random.default_rng([seed, 2]).uniform(-1, 1, len(excess))
    apart[0] = 0.0
    both = np.isfinite(smooth) & np.isfinite(straight)
    after = int(np.clip(np.searchsorted(logs, smooth[0]), 1, len(logs) - 1))
    gaps = np.diff(logs)
    apart *= max(1.0, float(gaps[max(after - 2, 0) : after + 1].max() / gaps[after - 1]))
    moved = smooth + apart * (np.where(both, straight, 0.0) - np.where(both, smooth, 0.0))
    return np.asarray(np.where(both, moved, smooth))


def _crossed(at: Array, above: Array) -> Array:
    """Return where lines through every row of ``above`` ``[R, F]`` at ``at`` ``[F]`` rise above 0 for the last time,
    ``[R]``; infinity for a row that ends at or below 0. Every row must begin at or below 0."""
    last = len(at) - 1 - (above[:, ::-1] <= 0).argmax(axis=1)
    after = np.minimum(last + 1, len(at) - 1)
    row = np.arange(len(above))
    rise = above[row, after] - above[row, last]
    share = np.where(rise > 0, -above[row, last] / np.where(rise > 0, rise, 1.0), 0.0)
    return np.where(last == len(at) - 1, np.inf, at[last] + share * (at[after] - at[last]))
