r"""Posterior draws of the curve of an objective against the batch size: every answer is a function of them.

The objective (ln of the steps to a target, at the best learning rate) of seed s is taken as :math:`y_s(B) = f(\ln B) +
u_s(B)`. Of the curve f a prior is assumed (:mod:`analysis.estimate.prior`), of what seeds share a covariance
(:mod:`analysis.estimate.seeds`); every combination of their sizes and of the size of the noise counts by its
likelihood. Draws are made by Matheron's rule (Wilson et al. 2020, arXiv:2002.09309, equation 9): draw curve and noise
from the prior, and add to the curve what the data say of the difference. Bounds, of runs that did not get to the target
or were past it when first evaluated, then choose among the draws by their probability.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from analysis.estimate.best_rate import AtBest
from analysis.estimate.prior import STEP, Line, Slopes, StepsCurve, StepsPrior
from analysis.estimate.seeds import SeedModels, by_bounds, seed_models
from analysis.quantities import Array

BEYOND = 1.0  # How far beyond the measured batch sizes curves are drawn, in ln B: an answer out there is an open end

_LEVEL = 50.0  # Standard deviation of the level in ln steps: any level is as likely as any other
_LEAST = 1e-3  # Standard deviation of a condition that is always there: steps are never known better
_NEGLIGIBLE = 1e-3  # Models of seeds and noise with less of the largest weight are left out

# Draws of which one is kept where bounds choose among them: without more, a few would stand for all. The larger pool
# serves where those of the smaller one that count are fewer than this share of what is kept.
_POOLS, _ALIKE = (8, 32), 0.25


class Break(NamedTuple):
    """A sudden change of the curve between two batch sizes.

    Attributes:
        kind: ``jump`` of the steps, or ``kink`` of their slope, whichever is likelier.
        below, above: the batch sizes.
        chance: probability that there is one, anywhere.
    """

    kind: str
    below: float
    above: float
    chance: float


@dataclass(frozen=True, kw_only=True)
class Draws:
    """Draws of the curve of one optimizer.

    Attributes:
        batch_sizes: batch sizes with a value, shape ``[M]``, increasing.
        log_steps: the objective there, the seeds' mean, shape ``[M]``.
        log_sizes: ln of the batch sizes at which curves are drawn, shape ``[G]``.
        mean: the expected curve, shape ``[G]``.
        curves: the draws, shape ``[R, G]``.
        law: parameters of the power law, of every draw, shape ``[R]``: S_min and B_crit are asymptotes, extrapolated.
            Where the curve may depart from it, the two share what was measured.
            NaN if the prior is a straight line.
        deviation: standard deviation of one run's objective, expected.
        own: the same, of every draw, shape ``[R]``.
        shared: expected share of its variance that runs of a seed have in common.
        freedom: degrees of freedom of the contrasts between seeds; 0 with one seed.
        seeds: number of seeds with a value, shape ``[M]``.
        table, labels: the objective of every seed, shape ``[M, N]``, NaN where there is none, and their numbers.
        covariance: expected covariance of ``log_steps`` around the curve, shape ``[M, M]``.
        sudden: the likeliest jump or kink; ``None`` with fewer than four batch sizes.
        residual_rms: root mean square of ``log_steps`` around the expected curve.
    """

    batch_sizes: Array
    log_steps: Array
    log_sizes: Array = field(repr=False)
    mean: Array = field(repr=False)
    curves: Array = field(repr=False)
    law: StepsCurve = field(repr=False)
    deviation: float
    own: Array = field(repr=False)
    shared: float
    freedom: int
    seeds: Array
    table: Array = field(repr=False)
    labels: tuple[int, ...] = field(repr=False)
    covariance: Array = field(repr=False)
    sudden: Break | None = None

    @property
    def count(self) -> int:
        """Number of draws."""
        return len(self.curves)

    @property
    def residual_rms(self) -> float:
        apart = self.log_steps - self.estimate(self.batch_sizes)
        return math.sqrt(float(np.mean((apart - apart.mean()) ** 2)))

    def estimate(self, batch_sizes: Array) -> Array:
        """Return the expected objective at batch sizes ``[K]``, shape ``[K]``."""
        return at_sizes(self.log_sizes, self.mean[None], batch_sizes)[0]

    def drawn(self, batch_sizes: Array) -> Array:
        """Return the draws of the objective at batch sizes ``[K]``, shape ``[R, K]``."""
        return at_sizes(self.log_sizes, self.curves, batch_sizes)

    def taken(self, rows: np.ndarray) -> Draws:
        """Return some of the draws."""
        law = self.law.mapped(lambda values: values[rows])
        return replace(self, curves=self.curves[rows], law=law, own=self.own[rows])

    def rescaled(self, zero: float, unit: float) -> Draws:
        """Return the draws of an objective that is ``zero`` plus ``unit`` times this one."""
        return replace(
            self,
            log_steps=zero + unit * self.log_steps,
            mean=zero + unit * self.mean,
            curves=zero + unit * self.curves,
            deviation=unit * self.deviation,
            own=unit * self.own,
            covariance=unit**2 * self.covariance,
            table=zero + unit * self.table,
        )

    def mixed(self, other: Draws) -> Draws:
        """Return the draws with every second one from ``other``, which has the same batch sizes to draw at."""
        turn = np.arange(self.count) % 2 == 0

        def either(mine: Array, its: Array) -> Array:
            return np.where(turn.reshape(-1, *[1] * (mine.ndim - 1)), mine, its)

        return replace(
            self,
            curves=either(self.curves, other.curves),
            law=self.law.mapped(either, other.law),
            own=either(self.own, other.own),
        )


def draw(
    batch_sizes: Sequence[float],
    found: Sequence[AtBest],
    count: int,
    seed: int,
    prior: StepsPrior | Line | None = None,
    *,
    name: str = "",
) -> Draws:
    """Return draws of the curve through the objective at batch sizes, in increasing order; at least two have values.

    The same seed gives the same draws, and nearly the same for nearly the same data. Draws of another ``name``, such as
    another optimizer's, have with the same seed only that in common which runs of a seed share.
    """
    prior, rng = prior or StepsPrior(), np.random.default_rng([seed, zlib.crc32(name.encode())])
    every = np.log(np.asarray(batch_sizes, dtype=float))
    table, labels = _table(found)
    here = np.isfinite(table).any(axis=1)
    x, extra = every[here], _by_rates(every, found, prior.alike)[np.ix_(here, here)]
    models = seed_models(x, table[here], labels)
    sigma, likelihood = _noises(models, prior.noise, prior.noise_spread)
    most = np.unravel_index(likelihood.argmax(), likelihood.shape)
    # curves go on beyond both ends, where their least product may lie
    grid = np.asarray(every[0] - BEYOND + STEP * np.arange(math.ceil((every[-1] - every[0] + 2 * BEYOND) / STEP) + 1))
    likeliest = models.covariances[most[0]] * sigma[most] ** 2 + extra
    slopes = prior.slopes(grid[:-1], x, models.means[most[0]], likeliest)
    mixture = _Mixture(slopes, x, models, extra)
    weights, model, sigma = mixture.weights(sigma, likelihood)
    bounded = any(np.isfinite([each.floors, each.ceilings]).any() for each in found)
    for pool in _POOLS if bounded else (1,):
        tried = pool * count
        # systematic sampling: every draw stands for an equal share of the mixture
        kind, pair = np.unravel_index(_sampled(weights.ravel(), rng.permutation(tried), rng), weights.shape)
        own = sigma[pair]
        curves, parameters = mixture.draw(kind, model[pair], own, grid, seed, rng)
        if not bounded:
            break
        chances = by_bounds(at_sizes(grid, curves, np.exp(every)), own, found)
        if chances.sum() ** 2 >= _ALIKE * count * (chances**2).sum():
            break
    if bounded:
        rows = _sampled(chances / chances.sum(), np.arange(count), rng)
        curves, parameters, own = curves[rows], parameters[rows], own[rows]
    x_0, exponent = parameters[:, 0], np.exp(parameters[:, -1])
    # the level of the law is such that it passes through the middle of the drawn curve
    middle = float(x.mean())
    through = at_sizes(grid, curves, np.exp([middle]))[:, 0]
    with np.errstate(invalid="ignore"):
        fall = np.logaddexp(0.0, -exponent * (middle - x_0))
    by_pair = weights.sum(axis=0)
    return Draws(
        batch_sizes=np.asarray(batch_sizes, dtype=float)[here],
        log_steps=by_pair @ models.means[model],
        log_sizes=grid,
        mean=curves.mean(axis=0),
        curves=curves,
        law=StepsCurve(through - fall, x_0, exponent),
        deviation=float(np.sqrt(by_pair @ sigma**2)),
        own=own,
        shared=float(by_pair @ models.shares[model]),
        freedom=models.freedom,
        seeds=np.isfinite(table[here]).sum(axis=1).astype(float),
        table=table[here],
        labels=tuple(labels),
        covariance=np.einsum("p,pmn->mn", by_pair * sigma**2, models.covariances[model]) + extra,
        sudden=_sudden(slopes, weights.sum(axis=1), x),
    )


def _sampled(weights: Array, turns: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return indices that have each of these weights ``[K]`` as its share, in the order of ``turns``, a permutation."""
    places = (turns + rng.uniform()) / len(turns)
    return np.minimum(np.searchsorted(np.cumsum(weights), places), len(weights) - 1)


def _sudden(slopes: Slopes, chances: Array, log_sizes: Array) -> Break | None:
    """Return the likeliest sudden change, given the probabilities of all kinds of curves ``[T]``."""
    jumps, odd = slopes.jumps.any(axis=1), np.isfinite(slopes.places)
    if not odd.any():
        return None
    kind, which = max(("jump", jumps), ("kink", odd & ~jumps), key=lambda each: float(chances[each[1]].sum()))
    place = slopes.places[np.where(which, chances, -1.0).argmax()]
    # a kink at a batch size shows in the gaps on both sides of it
    other = log_sizes[np.abs(log_sizes - place) >= STEP]
    below, above = np.r_[log_sizes[0], other[other < place]].max(), np.r_[log_sizes[-1], other[other > place]].min()
    ends = np.exp([below, above]).round(9)  # exp(ln 6) is not quite 6
    return Break(kind, float(ends[0]), float(ends[1]), float(chances[which].sum()))


class Levels(NamedTuple):
    """Draws of conditions that no curve joins: ``drawn``, shape ``[R, M]``, and the rest as in :class:`Draws`. All of a
    run counts as shared by the runs of its seed: of a single condition nobody can tell."""

    batch_sizes: Array
    drawn: Array
    own: Array
    table: Array
    labels: tuple[int, ...]
    shared: float = 1.0


def draw_levels(
    batch_sizes: Sequence[float],
    found: Sequence[AtBest],
    count: int,
    seed: int,
    prior: StepsPrior | Line,
    *,
    name: str = "",
) -> Levels:
    """Return draws of the objective of conditions that no curve joins. Every condition has a value, and one of them
    several. ``seed`` and ``name`` are as for :func:`draw`."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    sizes, extra = np.asarray(batch_sizes, dtype=float), np.array([each.variance for each in found]) + _LEAST**2
    table, labels = _table(found)
    models = seed_models(np.log(sizes), table, labels)
    sigma, likelihood = _noises(models, prior.noise, prior.noise_spread)
    weights = np.exp(likelihood - likelihood.max()).ravel()
    model, noise = np.unravel_index(rng.choice(weights.size, count, p=weights / weights.sum()), sigma.shape)
    own, between = sigma[model, noise], np.sqrt(extra) * rng.standard_normal((count, len(extra)))
    drawn = models.means[model] + own[:, None] * models.errors(model, seed, rng) + between
    return Levels(sizes, drawn, own, table, tuple(labels))


class _Mixture:
    """All combinations of a kind of curve (``T``), a model of seeds (``J``) and a size of the noise, and what they say
    of the conditions' means."""

    def __init__(self, slopes: Slopes, log_sizes: Array, models: SeedModels, extra: Array) -> None:
        self.slopes, self.models, self.extra = slopes, models, extra
        self.at = slopes.integrals(log_sizes)
        self.basis = self.at @ slopes.derivatives
        self.across = self.at @ slopes.kernel
        self.jumps = slopes.jumps @ self.at.T
        # any level is as likely as any other; large numbers are taken out first, for the sake of rounding
        self.kinds = (
            self.basis @ self.basis.transpose(0, 2, 1)
            + _LEVEL**2
            + slopes.sizes[:, None, None] ** 2 * (self.across @ self.at.T)
            + self.jumps[:, :, None] * self.jumps[:, None, :]
            + extra
        )
        left = models.means - (slopes.base @ self.at.T)[:, None]
        self.offset = left.mean(axis=2)
        self.left = left - self.offset[:, :, None]

    def weights(self, sigma: Array, likelihood: Array) -> tuple[Array, np.ndarray, Array]:
        """Return the posterior weights ``[T, P]`` of the pairs of a model of seeds and a noise that are not negligible,
        and these, shape ``[P]`` each."""
        model, noise = (each.ravel() for each in np.broadcast_arrays(np.arange(len(sigma))[:, None], sigma))
        prior = likelihood.ravel()
        odd = np.isfinite(self.slopes.places)
        usual, odd = np.flatnonzero(~odd), np.flatnonzero(odd)
        logs = self._likelihoods(usual, model, noise) + prior
        total = np.exp(logs - logs.max()).sum(axis=0)
        kept = np.flatnonzero(total > _NEGLIGIBLE * total.max())
        model, noise, prior = model[kept], noise[kept], prior[kept]
        whole = np.full((len(self.kinds), len(kept)), -np.inf)
        whole[usual] = logs[:, kept]
        # what is odd is tried with the likeliest pair first, and with the others where it counts
        likeliest = [int(total[kept].argmax())]
        first = (self._likelihoods(odd, model[likeliest], noise[likeliest]) + prior[likeliest])[:, 0]
        odd = odd[first > whole[usual].max() + math.log(_NEGLIGIBLE)]
        whole[odd] = self._likelihoods(odd, model, noise) + prior
        weights = np.exp(whole - whole.max())
        return weights / weights.sum(), model, noise

    def _likelihoods(self, kinds: np.ndarray, model: np.ndarray, sigma: Array) -> Array:
        """Return ln of likelihood and prior of some kinds with every pair, shape ``[kinds, P]``."""
        noise = sigma[:, None, None] ** 2 * self.models.covariances[model]
        root = np.linalg.cholesky(self.kinds[kinds][:, None] + noise)
        white = np.linalg.solve(root, self.left[kinds][:, model, :, None])[..., 0]
        logs = -0.5 * (white**2).sum(axis=-1) - np.log(np.diagonal(root, axis1=-2, axis2=-1)).sum(axis=-1)
        return np.asarray(logs + self.slopes.log_weights[kinds][:, None])

    def draw(
        self, kind: np.ndarray, model: np.ndarray, sigma: Array, grid: Array, key: int, rng: np.random.Generator
    ) -> tuple[Array, Array]:
        """Return curves ``[R, G]``, and the parameters ``[R, P]`` of their laws, one for each of these combinations."""
        slopes, count = self.slopes, len(kind)
        sizes, jumps, basis = slopes.sizes[kind][:, None], self.jumps[kind], self.basis[kind]
        parameters = rng.standard_normal((count, slopes.derivatives.shape[2]))
        departures = sizes * (rng.standard_normal((count, len(slopes.edges))) @ slopes.root.T)
        jumped = rng.standard_normal((count, 1))
        levels = _LEVEL * rng.standard_normal(count)
        errors = sigma[:, None] * self.models.errors(model, key, rng)
        errors = errors + rng.standard_normal((count, len(self.extra))) @ np.linalg.cholesky(self.extra).T
        measured = np.einsum("rp,rmp->rm", parameters, basis) + departures @ self.at.T + jumped * jumps
        apart = self.left[kind, model] - (measured + levels[:, None] + errors)
        covariance = self.kinds[kind] + sigma[:, None, None] ** 2 * self.models.covariances[model]
        gap = np.linalg.solve(covariance, apart[..., None])[..., 0]
        parameters = parameters + np.einsum("rm,rmp->rp", gap, basis)
        jumped = jumped + (gap * jumps).sum(axis=1)[:, None]
        drawn = departures + sizes**2 * (gap @ self.across)
        for each in np.unique(kind):
            rows = kind == each
            drawn[rows] += slopes.base[each] + parameters[rows] @ slopes.derivatives[each].T
            drawn[rows] += jumped[rows] * slopes.jumps[each]
        levels = levels + _LEVEL**2 * gap.sum(axis=1) + self.offset[kind, model]
        return levels[:, None] + drawn @ slopes.integrals(grid).T, slopes.at + parameters * slopes.spread


def _by_rates(log_sizes: Array, found: Sequence[AtBest], alike: float) -> Array:
    """Return the covariance of the errors that all seeds of a condition share, shape ``[M, M]``: neighbouring batch
    sizes, to the distance ``alike`` in ln B, are run at learning rates that miss the best ones by as much."""
    deviations = np.sqrt([each.variance for each in found])
    # a length of 0 leaves each error to its condition
    apart = np.abs(log_sizes[:, None] - log_sizes) / max(alike, 1e-9)
    return np.outer(deviations, deviations) * np.exp(-apart) + _LEAST**2 * np.eye(len(found))


def _table(found: Sequence[AtBest]) -> tuple[Array, list[int]]:
    """Return the objective of every condition and seed, shape ``[M, N]``, NaN where there is none, and the numbers of
    the seeds."""
    labels = sorted({int(label) for each in found for label in each.labels})
    table = np.full((len(found), len(labels)), np.nan)
    for row, each in zip(table, found, strict=True):
        row[np.searchsorted(labels, each.labels)] = each.values
    return table, labels


def _noises(models: SeedModels, usual: float, spread_of_usual: float) -> tuple[Array, Array]:
    """Return standard deviations of one run to try with every seed model, and ln of their likelihood by the contrasts
    between seeds and of their prior, whose median is ``usual`` up to ``spread_of_usual`` in ln, shape ``[J, Q]``
    each."""
    if models.freedom:
        # ln of a deviation from n contrasts is known to 1 / sqrt(2 n); 2.6 of these on either side hold 99 %
        spread = min(1.2, 2.6 / math.sqrt(2 * models.freedom))
        middle = np.sqrt(models.squares / models.freedom)
        # seeds may agree to the last digit
        logs = np.log(np.maximum(middle, 1e-4))[:, None] + np.linspace(-spread, spread, 9)
    else:
        # without contrasts only the prior says what noise is likely, so all that runs have is tried
        logs = np.broadcast_to(np.linspace(math.log(_LEAST), math.log(0.4), 13), (len(models.means), 13))
    gaps = logs[:, 1:2] - logs[:, :1]
    likelihood = (
        -models.freedom * logs - 0.5 * models.squares[:, None] * np.exp(-2 * logs) + models.log_weights[:, None]
    )
    return np.exp(logs), likelihood - 0.5 * ((logs - math.log(usual)) / spread_of_usual) ** 2 + np.log(gaps)


def at_sizes(log_sizes: Array, curves: Array, batch_sizes: Array) -> Array:
    """Return curves ``[R, G]``, drawn at an even grid, at batch sizes ``[K]``, shape ``[R, K]``; beyond the grid they
    go on straight in log-log."""
    at = (np.log(np.asarray(batch_sizes, dtype=float)) - log_sizes[0]) / STEP
    before = np.clip(np.floor(at).astype(int), 0, len(log_sizes) - 2)
    return curves[:, before] + (at - before) * (curves[:, before + 1] - curves[:, before])
