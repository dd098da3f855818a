r"""What is assumed of a curve of ln steps against the batch size, before its points are seen.

.. math:: f(x) = c + \ln(1 + e^{-a (x - x_0)}) + d(x), \qquad x = \ln B,

a power law of any level c with a departure d. The exponent :math:`\ln a` has mean 0 and standard deviation
:data:`EXPONENT`; :math:`x_0` may lie anywhere (:data:`PLACE`). The slope :math:`d'` is a Gaussian process with a Matérn
kernel of order 3/2 and the length :data:`LENGTH`; how large it is, is learned: each of :data:`SIZES` counts by its
likelihood. So does a knee that is blunter or sharper than the law's (:data:`OTHERS`), a jump (:data:`JUMPS`) in each
gap between batch sizes, and a kink (:data:`KINKS`) at every place: two straight lines in place of the power law, which
no smooth departure follows. The laws are linearised at their most likely parameters, so that what is left is a mixture
of normal distributions of the slopes in the pieces of a grid.

A Gaussian process with such a mixture of scales is treated in Rasmussen and Williams, "Gaussian Processes for Machine
Learning" (2006), sections 2.7 and 5.4.

What is assumed of a curve of losses against the batch size, before its points are seen: no more than its unit.

.. math:: f(x) = c + b x + d(x), \qquad x = \ln B,

a straight line of any level and slope with a departure d. A loss may be flat and then rise steeply, and where it begins
to rise between two batch sizes is not known. The slope :math:`d'` is therefore rough, an Ornstein-Uhlenbeck process of
the length :data:`LENGTH`, and its size at x is a share of the rises that were measured near by. How large a share is
learned: each of :data:`SHARES` counts by its likelihood, and so does a bend at each of many places.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import leastsq

from analysis.quantities import Array

# Spacing in ln B of the batch sizes at which curves are drawn
STEP = 0.1

# Standard deviations of the priors of ln a and of x_0, around 0 and around the middle of the batch sizes
EXPONENT, PLACE = 0.3, 3.0

LENGTH = 3.0  # Of the departure's slope, in ln B: four doublings apart two slopes have little in common

# Standard deviations of the departure's slope, over the square root of 2, and their prior probabilities. Most curves
# that were measured are power laws within .06; .25 lets a curve of exponent 1 pass for one of .65 or 1.35.
SIZES = (0.005, 0.03, 0.06, 0.12, 0.25)
WEIGHTS = (0.05, 0.45, 0.28, 0.14, 0.08)

SATURATION = math.inf
"""Stands in place of a sharpness for :math:`1 / (1 - e^{-e^{a (x - x_0)}})`: blunt before the knee, sharp behind."""

# Sharpness g of other knees than the law's, :math:`(1 + e^{-a g (x - x_0)})^{1/g}`, and their probabilities; sizes of
# departures beside them, both alike.
OTHERS, BLURRED = {0.7: 0.09, SATURATION: 0.2}, (0.03, 0.12)

# Odds that all runs from some batch size on are faster or slower, because they trained on another footing, and the
# standard deviation of that in ln steps. Higher than such jumps are frequent: noise of 6 % hides one of 20 %.
JUMPS, JUMP = 0.6, 0.25

# Odds that the curve is no power law but two straight lines that meet somewhere, and the means and standard deviations
# of their exponents.
KINKS, BEFORE, AFTER = 0.07, (1.0, 0.3), (0.2, 0.25)

BESIDE = 0.03  # The departure's size beside a jump or a kink

# Standard deviations of the slope over the root mean square of the slopes near by, all alike in advance
SHARES = (0.03, 0.1, 0.3, 0.6, 1.0)

LOSS_LENGTH, NEAR = 2.0, 1.0  # Length of the slope's covariance, and what is near by, in ln B

# Probability that the slope changes at one place, the standard deviation of that change over the slopes near by, and
# the spacing of the places in ln B.
BENDS, BEND, APART = 0.4, 2.0, 0.1

BESIDE_A_BEND = 0.2  # The share of the departure beside a bend: no loss is made of two straight lines

_ANY = 50.0  # Standard deviation of the slope of a line: any is as likely as any other


@dataclass(frozen=True, kw_only=True)
class Slopes:
    """A prior, as normal distributions of the slopes in ``U`` pieces of the grid: ``T`` of them, of which one holds.

    Attributes:
        edges: left ends of the pieces, in ln B, shape ``[U]``.
        base: expected slopes, shape ``[T, U]``.
        derivatives: slopes by one standard deviation of each of ``P`` parameters, shape ``[T, U, P]``.
        kernel, root: covariance of the departure's slopes, of size 1, and its Cholesky factor, shape ``[U, U]``.
        sizes: standard deviation of the departure, shape ``[T]``.
        jumps: slopes by one standard deviation of a jump (or bend), shape ``[T, U]``; 0 where there is none.
        log_weights: ln of the prior probabilities, shape ``[T]``.
        places: where in ln B the curve jumps or has a kink, shape ``[T]``; NaN where it does neither.
        at: the expected parameters, shape ``[P]``, and their standard deviations, ``spread``.
    """

    edges: Array
    base: Array
    derivatives: Array
    kernel: Array
    root: Array
    sizes: Array
    jumps: Array
    log_weights: Array
    places: Array
    at: Array
    spread: Array

    def integrals(self, points: Array) -> Array:
        """Return the weights ``[K, U]`` with which slopes add up to the rise from the left end to ``points``."""
        return np.asarray(STEP * np.clip((points[:, None] - self.edges) / STEP, 0.0, 1.0))


@dataclass(frozen=True, kw_only=True)
class StepsPrior:
    """The prior of ln steps to a target.

    Attributes:
        scale: factor on all standard deviations.
        departs: whether the curve may depart from the power law, or jump.
        hyperbola: whether no other exponent than 1 is allowed, and no departure either.
    """

    scale: float = 1.0
    departs: bool = True
    hyperbola: bool = False

    alike = 0.0
    noise, noise_spread = 0.05, 0.5
    """Median of the prior of one run's standard deviation, and the standard deviation of its logarithm: seeds of one
    recipe scatter by 2 to 15 % of the steps. Three that are alike by luck say little against that."""

    @property
    def spread(self) -> Array:
        """Standard deviations of x_0 and of ln a."""
        # held at 1 by a deviation that may divide
        return self.scale * np.array([PLACE, 1e-6 if self.hyperbola else EXPONENT])

    def slopes(self, edges: Array, log_sizes: Array, means: Array, covariance: Array) -> Slopes:
        """Return the prior linearised at the most likely power law through ``means`` ``[M]``, known up to
        ``covariance``."""
        middles, kernel = edges + STEP / 2, matern(edges, LENGTH)
        held = self.hyperbola or not self.departs
        at = self._likeliest(log_sizes, means, covariance)
        laws = [self._law(middles, *at, 1.0)]
        if held:
            usual = [(0, 1e-6, 1.0)]  # no departure, by a size that may divide
        else:
            usual = [
                (0, size, (1 - sum(OTHERS.values())) * weight) for size, weight in zip(SIZES, WEIGHTS, strict=True)
            ]
            for sharpness, share in OTHERS.items():
                usual += [(len(laws), size, share / len(BLURRED)) for size in BLURRED]
                laws.append(
                    self._law(middles, *self._likeliest(log_sizes, means, covariance, sharpness, at), sharpness)
                )
        # beside fewer than two sizes on either side neither a jump nor a kink can be told from the curve
        gaps = np.empty(0) if held else (log_sizes[1:-2] + log_sizes[2:-1]) / 2
        kinks = edges[(edges > log_sizes[1]) & (edges < log_sizes[-2])] if len(gaps) else np.empty(0)
        odd = len(gaps) + len(kinks)
        jumps = np.zeros((len(usual) + odd, len(edges)))
        jumps[len(usual) + np.arange(len(gaps)), np.searchsorted(edges, gaps) - 1] = self.scale * JUMP / STEP
        before = 1.0 * (edges < kinks[:, None] - STEP / 2)
        lines = np.stack([before * BEFORE[1], (1 - before) * AFTER[1]], axis=2) * self.scale
        of_law = [law for law, *_ in usual] + [0] * len(gaps)
        # the places of a jump share its odds, and those of a kink
        shared = [np.full(len(each), odds / max(len(each), 1)) for each, odds in ((gaps, JUMPS), (kinks, KINKS))]
        chances = np.r_[[weight for *_, weight in usual], *shared]
        return Slopes(
            edges=edges,
            base=np.r_[[laws[k][0] for k in of_law], -before * BEFORE[0] - (1 - before) * AFTER[0]],
            derivatives=np.r_[[laws[k][1] for k in of_law], lines],
            kernel=kernel,
            # rounding may turn its smallest eigenvalues negative
            root=np.asarray(np.linalg.cholesky(kernel + 1e-9 * np.eye(len(kernel))), dtype=float),
            sizes=self.scale * np.r_[[size for _, size, _ in usual], np.full(odd, BESIDE)],
            jumps=jumps,
            log_weights=np.log(chances),
            places=np.r_[np.full(len(usual), np.nan), gaps, kinks],
            at=np.array([at[0], 0.0]),
            spread=self.spread,
        )

    def _law(self, at: Array, place: float, log_exponent: float, sharpness: float) -> tuple[Array, Array]:
        """Return slopes of the law ``[U]``, and by one standard deviation of its parameters ``[U, 2]``."""
        # a forward difference: its error is far below the spread of the parameters
        small, base = 1e-4, _slope(at, place, log_exponent, sharpness)
        by_place = (_slope(at, place + small, log_exponent, sharpness) - base) / small
        by_exponent = (_slope(at, place, log_exponent + small, sharpness) - base) / small
        # linear in ln a from where it is most likely, but with its mean at 0: the prior counts once
        return base - log_exponent * by_exponent, np.stack([by_place, by_exponent], axis=1) * self.spread

    def _likeliest(
        self,
        x: Array,
        values: Array,
        covariance: Array,
        sharpness: float = 1.0,
        near: tuple[float, float] | None = None,
    ) -> tuple[float, float]:
        """Return place and ln exponent of the most likely law, ``near`` others or anywhere."""
        root, middle = np.linalg.inv(np.linalg.cholesky(covariance)), x.mean()
        wide, steep = (float(each) for each in self.spread * np.array([2.5, 1.0]))
        rows = np.zeros((len(x) + 2, 3))
        rows[-2, 2], rows[-1, 1] = 1 / steep, 1 / wide

        def residuals(p: Array) -> Array:
            curve = p[0] + _rise(math.exp(p[2]) * (x - p[1]), sharpness)
            return np.concatenate([root @ (values - curve), [p[2] / steep, (p[1] - middle) / wide]])

        def jacobian(p: Array) -> Array:
            slope = _slope(x, p[1], p[2], sharpness)
            rows[:-2] = -root @ np.stack([np.ones(len(x)), -slope, slope * (x - p[1])], axis=1)
            return rows

        starts = (
            ([values.min(), place, 0.0] for place in (middle, x[0], x[-1])) if near is None else [[values.min(), *near]]
        )
        # MINPACK without what `least_squares` puts around it, which takes longer than the search itself
        tried = (
            leastsq(residuals, start, (), jacobian, full_output=True, maxfev=300, gtol=1e-8, ftol=1e-8, xtol=1e-8)
            for start in starts
        )
        found = min(tried, key=lambda each: float(np.dot(each[2]["fvec"], each[2]["fvec"])))[0]
        return float(found[1]), float(found[2])


def matern(places: Array, length: float) -> Array:
    """Return the covariance of a Matérn process of order 3/2 and variance 2 at ``places``, shape ``[U, U]``."""
    apart = math.sqrt(3) / length * np.abs(places[:, None] - places)
    return 2.0 * (1 + apart) * np.exp(-apart)


def _rise(scaled: Array, sharpness: float) -> Array:
    """Return a law at a (x - x_0): ln steps over the fewest."""
    if sharpness == SATURATION:
        # further up exp(-exp(.)) rounds to 0, which has no logarithm
        return np.asarray(-np.log(-np.expm1(-np.exp(np.clip(scaled, -50, 5)))))
    return np.asarray(np.logaddexp(0, -sharpness * scaled) / sharpness)


def _slope(at: Array, place: float, log_exponent: float, sharpness: float) -> Array:
    exponent = math.exp(log_exponent)
    if sharpness == SATURATION:
        saved = np.exp(np.clip(exponent * (at - place), -30, 5))  # beyond, 0 over 0 below and an overflow above
        return np.asarray(-exponent * saved / np.expm1(saved))
    return np.asarray(-exponent / (1 + np.exp(np.clip(sharpness * exponent * (at - place), -50, 50))))


@dataclass(frozen=True)
class StepsCurve:
    r"""The law :math:`S(B) = S_{min} (1 + (B_{crit}/B)^a)`; parameters are scalars or one per draw, shape ``[R]``.

    At :math:`B_{crit}` a run takes twice the fewest steps, whatever the exponent. With a = 1 this is the hyperbola of
    McCandlish et al. (2018, arXiv 1812.06162), equations 2.11 and 2.12, with :math:`B_{crit} = E_{min}/S_{min}`; with a
    free exponent it is the form of Zhang et al. (2024, arXiv 2410.21676), definition 1. S counts optimizer updates,
    E = B S and B count examples. If a is not 1, examples have no positive finite limit as B goes to 0: ``E_min`` is
    defined for the hyperbola only.

    Attributes:
        log_min_steps: ``ln S_min``, in optimizer updates.
        log_critical: ``ln B_crit``, in examples.
        exponent: the exponent ``a``.
    """

    log_min_steps: Array
    log_critical: Array
    exponent: Array

    def log_steps(self, batch_sizes: Array) -> Array:
        """Return ``ln S`` at ``batch_sizes`` ``[M]``; shape ``[M]`` or ``[R, M]``."""
        level, critical, slope = (
            np.asarray(values)[..., None] for values in (self.log_min_steps, self.log_critical, self.exponent)
        )
        return np.asarray(level + np.logaddexp(0.0, slope * (critical - np.log(batch_sizes))))

    @property
    def min_steps(self) -> Array:
        """``S_min``, in optimizer updates."""
        return np.exp(self.log_min_steps)

    @property
    def critical(self) -> Array:
        """``B_crit``, in examples."""
        return np.exp(self.log_critical)

    @property
    def min_examples(self) -> Array:
        """``E_min`` of a hyperbola (``a = 1``), in examples."""
        return np.exp(self.log_min_steps + self.log_critical)

    def mapped(self, change: Callable[..., Array], *others: StepsCurve) -> StepsCurve:
        """Apply ``change`` to every parameter; it also receives the same parameters of ``others``."""
        every = (self, *others)
        return StepsCurve(*(change(*(getattr(curve, name) for curve in every)) for name in self.__dataclass_fields__))


@dataclass(frozen=True, kw_only=True)
class Line:
    """The prior of a loss in units in which its noise is about .05, or anything from a twentieth to twenty times that.

    Attributes:
        noise: median of the prior of one run's standard deviation.
        noise_spread: standard deviation of its logarithm.
        alike: distance in ln B over which the errors of losses between learning rates are alike.
    """

    noise: float = 0.05
    noise_spread: float = 3.0
    alike: float = 3.0

    def slopes(self, edges: Array, log_sizes: Array, means: Array, covariance: Array) -> Slopes:
        """Return the prior, with the sizes of departures by ``means`` ``[M]``."""
        middles = edges + STEP / 2
        rises, between = np.diff(means) / np.diff(log_sizes), (log_sizes[1:] + log_sizes[:-1]) / 2
        width = max(NEAR, float(np.diff(log_sizes).max()))
        # far from all of them the mean of all counts
        near = np.exp(-0.5 * ((middles[:, None] - between) / width) ** 2) + 1e-9
        sizes = np.sqrt(near @ rises**2 / near.sum(axis=1)) + 1e-6  # losses that are all the same leave a kernel of 0
        kernel = np.outer(sizes, sizes) * np.exp(-np.abs(middles[:, None] - middles) / LOSS_LENGTH)
        places = np.arange(log_sizes[0] + APART / 2, log_sizes[-1], APART)
        bends = (middles > places[:, None]) * (BEND * np.interp(places, middles, sizes))[:, None]
        weights = np.repeat([(1 - BENDS) / len(SHARES), BENDS / len(places)], [len(SHARES), len(places)])
        return Slopes(
            edges=edges,
            base=np.zeros((len(weights), len(edges))),
            derivatives=np.full((len(weights), len(edges), 1), _ANY),
            kernel=kernel,
            # rounding may turn its smallest eigenvalues negative
            root=np.asarray(np.linalg.cholesky(kernel + 1e-9 * np.diag(np.diag(kernel)))),
            sizes=np.append(SHARES, np.full(len(places), BESIDE_A_BEND)),
            jumps=np.concatenate([np.zeros((len(SHARES), len(edges))), bends]),
            log_weights=np.log(weights),
            places=np.append(np.full(len(SHARES), np.nan), places),
            at=np.full(1, np.nan),
            spread=np.zeros(1),
        )
