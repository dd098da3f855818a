r"""The local critical batch size by paired differences, with an interval.

The excess of a factor k is :math:`e_k = L_k - \min_{k' \le k} L_{k'}`, of expected losses at the end of the window, and
:math:`k^*` is the largest k whose excess is at most a tolerance: between the k that were tried that of a monotone cubic
in ln k through the excesses. Branches of one seed see the same examples, so the noise of a difference is that of
:math:`L_k - L_{k'}` within seeds, which is far less than that of the losses.

A draw moves the means of all k together: :math:`\sum_s g_s r_{sk}/\sqrt{n_k (n_k - 1)}` with the residuals
:math:`r_{sk}` of seed and factor and standard normal :math:`g_s`, times the root of :math:`\nu/\chi^2_\nu`,
:math:`\nu = n_k - 1`. Every difference of two factors then has exactly the t interval of its pairs, which resampling
three to five seeds with replacement falls short of. The best smaller k is kept from draw to draw: chosen anew each time
it would lie too low twice over.
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
"""Points between two factors at which a curve is looked at."""


@dataclass(frozen=True, kw_only=True)
class PairedMeans:
    """Losses of the factors of one checkpoint, up to a constant that all share.

    Attributes:
        factors: that can be compared, ``[K]``.
        means: least squares with an effect of every seed, ``[K]``; of branches that all ran, differences are means of
            paired differences.
        drawn: of the means, ``[R, K]``; no rows where the noise is not known.
        seeds: branches of every factor, ``[K]``.
        variance: of what a seed does to one factor and not to all, ``[K]``; NaN below two seeds.
        borrowed: whether the noise of a factor is that of other checkpoints or factors, ``[K]``.
    """

    factors: Array
    means: Array
    drawn: Array = field(repr=False)
    seeds: Array
    variance: Array
    borrowed: np.ndarray


@dataclass(frozen=True)
class LentNoise:
    """Variance of what a seed does to one factor and not to all, NaN if unknown, and its degrees of freedom."""

    variance: float
    freedom: float


@dataclass(frozen=True, kw_only=True)
class LocalFactor:
    """Where the loss of branches exceeds that of the best smaller one by a tolerance.

    Attributes:
        factor: k*, no value where that lies beyond the factors that were run; an end of its interval likewise.
        drawn: of ln k*, ``[R]``; infinite beyond.
        factors, excess: that could be compared, and their excesses with intervals.
        beyond: ``above`` where the largest factor is within the tolerance, ``below`` where the smallest one alone is;
            else empty.
    """

    factor: Quantity = UNKNOWN
    drawn: Array = field(repr=False)
    factors: Array
    excess: tuple[Quantity, ...]
    beyond: str = ""


def paired_means(
    branches: BranchLosses, draws: int, seed: int, lent: LentNoise | None = None, *, part: int = 0
) -> PairedMeans:
    """The means of the factors that can be compared, and draws of them.

    Args:
        branches: of one checkpoint; some of the factors can be compared.
        draws: how many.
        seed: of the draws; branches of one checkpoint are drawn alike for every window, those of others not.
        lent: noise to be used below two seeds, and of two where it has more degrees of freedom than they have, see
            :func:`noise_to_borrow`.
        part: number of the part of the window: noise that is lent does not say how that of two parts hangs together, so
            each has draws of its own.
    """
    kept = branches.usable
    losses = branches.losses[:, kept]
    there = np.isfinite(losses)
    seeds = there.sum(axis=0).astype(float)
    means, residuals = _two_way(losses, there)
    variance = np.where(seeds > 1, (residuals**2).sum(axis=0) / np.maximum(seeds - 1, 1), np.nan)
    lent = lent or LentNoise(math.nan, 0.0)
    # as many parameters as losses: residuals are 0 whatever the noise is
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
        # comonotone over factors: with seeds alike all differences are divided by the same number
        unlike, alike = np.unique(freedom, return_inverse=True)
        spread = (chi2.ppf(rng.random((draws, 1)), unlike) / unlike)[:, alike]
        drawn = means + normal / np.sqrt(np.maximum(spread, 1e-12))
    return PairedMeans(
        factors=branches.factors[kept], means=means, drawn=drawn, seeds=seeds, variance=variance, borrowed=alone
    )


def noise_to_borrow(checkpoints: list[BranchLosses]) -> LentNoise:
    """Noise for factors that too few seeds ran: the largest variance that any factor had at any checkpoint of the run
    where two seeds or more ran it; NaN where the noise of none is known."""
    largest, freedom = math.nan, 0.0
    for branches in checkpoints:
        if not branches.usable.any():
            continue
        found = paired_means(branches, 0, 0)
        freedom += max(_spare(np.isfinite(branches.losses[:, branches.usable])), 0.0)
        whole = found.variance * len(found.factors) / max(len(found.factors) - 1, 1)  # with what all factors share
        largest = float(np.fmax(largest, np.fmax.reduce(whole)))
    return LentNoise(largest, freedom)


def _spare(there: np.ndarray) -> float:
    """Degrees of freedom that losses, ``[N, K]`` where they are there, leave beside effects of factors and seeds."""
    twice = there.sum(axis=0)
    twice = twice[twice > 1]
    return float(twice.sum() - len(twice) - (twice.max(initial=1) - 1))  # but for what a seed does to all


def _two_way(losses: Array, there: np.ndarray) -> tuple[Array, Array]:
    """Effects of the factors and what is left, 0 where nothing was run; seeds are joined by factors."""
    rows, columns = np.nonzero(there)
    design = np.zeros((len(rows), sum(losses.shape)))
    design[np.arange(len(rows)), rows] = design[np.arange(len(rows)), losses.shape[0] + columns] = 1.0
    values = losses[there]
    centre = float(values.mean())
    effects = np.linalg.lstsq(design, values - centre, rcond=None)[0]
    seeds, means = effects[: losses.shape[0]], effects[losses.shape[0] :]
    # how much of the level is the seeds' and how much the factors' does not show; differences do not depend on it
    left = np.where(there, np.where(there, losses, 0.0) - centre - seeds[:, None] - means, 0.0)
    return centre + means + float(seeds[there.any(axis=1)].mean()), left


def local_factor(
    found: PairedMeans, tolerance: float, confidence: float, diverged: float | None = None, seed: int = 0
) -> LocalFactor:
    """k* at a tolerance above 0, in the unit of the loss.

    Args:
        found: of :func:`paired_means`.
        diverged: the smallest factor above those in ``found`` whose branches diverged: k* is below it, anywhere between
            it and the largest one that did not where that is within the tolerance. ``None`` for none.
        seed: of where it is then.
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
    # the smallest factor has no excess by definition: where all others lost, nothing shows the best smaller one
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
    """Ends of the interval of k* from draws of its logarithm; from ``last`` on, the largest factor's, it is open."""
    if not len(drawn):
        return OPEN
    tail = 0.5 - confidence / 2
    low, high = (float(np.quantile(drawn, q, method="nearest")) for q in (tail, 1 - tail))
    return math.exp(min(low, last)), math.exp(high) if math.isfinite(high) else None


def _last_within(logs: Array, excess: Array, tolerance: float, seed: int) -> Array:
    """The largest ln k at which a curve through rows of excesses ``[R, K]`` is within the tolerance, shape ``[R]``;
    infinity where that is the last one. The first excess of a row is 0.

    How a curve runs between two factors is as well known as a monotone cubic and straight lines agree: every row but
    the first is moved by up to their difference, to either side; by more where the factors next to these two lie
    farther apart than they do, as the cubic then knows less of the bend.
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
    """Where lines through rows of ``above`` ``[R, F]``, which begin at or below 0, are above it for good; infinity
    where they end at or below 0."""
    last = len(at) - 1 - (above[:, ::-1] <= 0).argmax(axis=1)
    after = np.minimum(last + 1, len(at) - 1)
    row = np.arange(len(above))
    rise = above[row, after] - above[row, last]
    share = np.where(rise > 0, -above[row, last] / np.where(rise > 0, rise, 1.0), 0.0)
    return np.where(last == len(at) - 1, np.inf, at[last] + share * (at[after] - at[last]))
