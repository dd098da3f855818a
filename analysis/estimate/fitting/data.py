r"""The data that a curve is fitted to: at every batch size the means over seeds at the best learning rate, and bounds.

Seeds that did not reach the target are lower bounds on their steps; they enter by a Tobit fit with expectation
maximisation. A seed that ran :math:`b` steps without reaching the target says :math:`\ln S > \ln b`. Leaving it out
would make the curve too low where only the fast seeds reached the target, and ignore batch sizes where none did. With
normal noise of standard deviation :math:`\sigma` around the curve :math:`\mu(B)` its likelihood is :math:`1 - \Phi(z)`,
:math:`z = (\ln b - \mu)/\sigma` (Tobin 1958, "Estimation of relationships for limited dependent variables",
Econometrica 26, 24-36). The expectation step puts :math:`E[\ln S \mid \ln S > \ln b] = \mu + \sigma h(z)` in place of
the seed, with the hazard :math:`h = \varphi/(1 - \Phi)`; the maximisation step is the least-squares fit. Repeating the
two climbs to the maximum of the likelihood, but slowly if a bound has much influence. A censored seed therefore enters
with the curvature of the likelihood, :math:`k = h (h - z)`, as its weight, and the response :math:`\mu + \sigma h/k`:
the fixed point is the same, and is reached in a few rounds.

A bound far below the curve has :math:`h = 0`, hence no weight and no effect.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import erfcx

from analysis.arrays import Array
from analysis.estimate.curves import StepsCurve
from analysis.estimate.fitting.least_squares import Exponent, fit_curves
from cbs.trial.lr_choice import best_lr

LEAST_DEVIATION = 1e-3
"""Smallest standard deviation of ln S: a tenth of a percent, less than steps to target are ever known to."""

_ROUNDS = 40
_CONVERGED = 1e-9


@dataclass(frozen=True)
class Trials:
    """All trials at one batch size, each array of shape ``[learning rates, seeds]``.

    Attributes:
        steps: steps to target; NaN where it was not reached.
        bound: steps run without reaching the target; NaN where there is no such bound.
        ran: whether the trial was run.
        gain: largest saving in log steps that a learning rate between those tried could bring over the best of them.
        savings: ends of the same saving, by the shape of the steps around the best; both 0 if unknown.
    """

    steps: Array
    bound: Array
    ran: np.ndarray
    gain: float = 0.0
    savings: tuple[float, float] = (0.0, 0.0)

    @classmethod
    def of(cls, steps: Array, bound: Array | float = math.nan) -> Trials:
        """Return a table in which every trial was run."""
        steps = np.asarray(steps, dtype=float)
        return cls(steps, np.broadcast_to(bound, steps.shape), np.ones(steps.shape, dtype=bool))

    @functools.cached_property
    def winner(self) -> int | None:
        """Row of the best learning rate, see :func:`cbs.trial.lr_choice.best_lr`."""
        return best_lr(self.steps, self.ran)

    def without(self, seed: int) -> Trials:
        """Return the table as if a seed (a column) had never been run."""
        kept = np.arange(self.steps.shape[1]) != seed
        return replace(self, steps=self.steps[:, kept], bound=self.bound[:, kept], ran=self.ran[:, kept])


def observed(trials: Trials) -> tuple[Array, Array]:
    """Return log steps of the seeds that reached the target at the best learning rate of one batch size, and log bounds
    of those that did not, each of shape ``[at most seeds]``.

    If no trial reached the target, the best learning rate is unknown, but it took longer than the learning rate that
    was given up first. The bounds are then those of the learning rate whose longest run is the shortest: every other
    one ran longer than that on some seed, so the steps of the best one exceed these bounds, whichever it is. A diverged
    trial has no bound, because it does not say how long another learning rate takes.
    """
    table, bound, winner = trials.steps, trials.bound, trials.winner
    if winner is None:
        known = np.isfinite(bound)
        longest = np.where(known.any(axis=1), np.where(known, bound, -np.inf).max(axis=1), np.inf)
        winner = int(longest.argmin())
    hit = np.isfinite(table[winner])
    missed = ~hit & np.isfinite(bound[winner]) & (bound[winner] > 0)
    return np.log(table[winner][hit]), np.log(bound[winner][missed])


def hazard(z: Array) -> Array:
    """Return the hazard of the standard normal distribution: its density divided by its upper tail probability."""
    return math.sqrt(2.0 / math.pi) / erfcx(z / math.sqrt(2.0))


@dataclass(frozen=True)
class Data:
    """The data that a curve is fitted to, for ``M`` batch sizes and ``J`` seeds that did not reach the target.

    Attributes:
        batch_sizes: batch sizes, including those with bounds only, shape ``[M]``, increasing.
        log_steps: mean log steps of the seeds that reached the target, shape ``[M]``; 0 where none did.
        weights: number of these seeds, shape ``[M]``.
        place: index of the batch size of every seed that did not reach the target, shape ``[J]``.
        bounds: natural log of the steps it ran without reaching the target, shape ``[J]``.
    """

    batch_sizes: Array
    log_steps: Array
    weights: Array
    place: np.ndarray
    bounds: Array

    @property
    def all_weights(self) -> Array:
        """Number of all seeds, including those that did not reach the target, shape ``[M]``."""
        return self.weights + np.bincount(self.place, minlength=len(self.weights))

    @property
    def reached(self) -> np.ndarray:
        """Mask of the batch sizes that reached the target, shape ``[M]``."""
        return np.asarray(self.weights > 0)

    def without(self, place: int) -> Data:
        """Return the data without one batch size."""
        return self._part(np.arange(len(self.batch_sizes)) != place, self.place != place)

    def unbounded(self) -> Data:
        """Return the batch sizes that reached the target, without bounds."""
        return self._part(self.reached, np.zeros(len(self.bounds), dtype=bool))

    def _part(self, kept: np.ndarray, bounds: np.ndarray) -> Data:
        sizes, steps, weights = (values[kept] for values in (self.batch_sizes, self.log_steps, self.weights))
        return Data(sizes, steps, weights, np.cumsum(kept)[self.place[bounds]] - 1, self.bounds[bounds])

    def completed(self, mean: Array, deviation: float, rows: Array | None = None, latent: Array | None = None) -> Array:
        """Return log steps with the expected values of all bounded seeds averaged in, shape ``[R, M]``.

        Args:
            mean: log steps of the fitted curve, shape ``[R, M]``.
            deviation: standard deviation of the log steps of one seed.
            rows: resampled log steps to use instead of the measured ones, shape ``[R, M]``; arbitrary where no seed
                reached the target.
            latent: resampled log steps of the bounded seeds, shape ``[R, J]``; a seed whose value is below its bound
                reached the target in that resample. ``None`` for the measured data.
        """
        rows = self.log_steps[None] if rows is None else rows
        if not len(self.bounds):
            return rows
        at, sigma = mean[:, self.place], max(deviation, LEAST_DEVIATION)
        expected = at + sigma * hazard((self.bounds - at) / sigma)
        if latent is not None:
            expected = np.where(latent <= self.bounds, latent, expected)
        return self._joined(rows, expected, np.ones_like(expected))[0]

    def _responses(self, mean: Array, deviation: float, latent: Array | None) -> tuple[Array, Array]:
        """Return response and weight of every bounded seed in the next least-squares fit, each of shape ``[R, J]``."""
        at, sigma = mean[:, self.place], max(deviation, LEAST_DEVIATION)
        z = (self.bounds - at) / sigma
        rate = hazard(z)
        weight = np.clip(rate * (rate - z), 0.0, 1.0)
        response = at + sigma * rate / np.where(weight > 0, weight, np.inf)
        if latent is None:
            return response, weight
        reached = latent <= self.bounds
        return np.where(reached, latent, response), np.where(reached, 1.0, weight)

    def _joined(self, rows: Array, values: Array, extra: Array) -> tuple[Array, Array]:
        """Return means per batch size of ``rows`` and of ``values`` weighted by ``extra``, and their total weights,
        both of shape ``[R, M]``."""
        total, sums = np.repeat(self.weights[None], len(rows), axis=0), rows * self.weights
        for seed, index in enumerate(self.place):
            total[:, index] += extra[:, seed]
            sums[:, index] += extra[:, seed] * values[:, seed]
        return np.where(total > 0, sums / np.where(total > 0, total, 1.0), 0.0), total

    def fit(
        self,
        exponent: Exponent,
        deviation: float,
        rows: Array | None = None,
        latent: Array | None = None,
        *,
        scatter: float | None = None,
        start: StepsCurve | None = None,
        knee: float = 1.0,
    ) -> StepsCurve:
        """Return the most likely curve, shape ``[R]``.

        Args:
            exponent, start, knee: as for :func:`analysis.estimate.fitting.least_squares.fit_curves`.
            deviation, rows, latent: as for :meth:`completed`.
            scatter: standard deviation used for the bounds, if that of resamples differs from ``deviation``.
        """
        rows = self.log_steps[None] if rows is None else rows

        def fitted(logs: Array, weights: Array, near: StepsCurve | None) -> StepsCurve:
            reach = self.batch_sizes[self.reached]
            return fit_curves(
                self.batch_sizes,
                logs,
                weights,
                exponent=exponent,
                deviation=deviation,
                reach=reach,
                start=near,
                knee=knee,
            )

        curve = fitted(rows, self.weights, start)
        for _ in range(_ROUNDS if len(self.bounds) else 0):
            mean = curve.log_steps(self.batch_sizes)
            values, extra = self._responses(mean, deviation if scatter is None else scatter, latent)
            curve = fitted(*self._joined(rows, values, extra), curve)
            if np.abs(curve.log_steps(self.batch_sizes) - mean).max() < _CONVERGED:
                break
        return curve


def gather(batch_sizes: Sequence[float], tables: Sequence[Trials]) -> tuple[Data, list[Trials]]:
    """Return the data of a curve, and the tables of the batch sizes that reached the target."""
    seen = [(size, table, *observed(table)) for size, table in zip(batch_sizes, tables, strict=True)]
    used = [(size, table, logs, bounds) for size, table, logs, bounds in seen if len(logs) or len(bounds)]
    sizes, _, steps, bounds = zip(*used, strict=True)
    data = Data(
        np.array(sizes, dtype=float),
        np.array([logs.mean() if len(logs) else 0.0 for logs in steps]),
        np.array([len(logs) for logs in steps], dtype=float),
        np.repeat(np.arange(len(used)), [len(each) for each in bounds]),
        np.concatenate(bounds),
    )
    return data, [table for _, table, logs, _ in used if len(logs)]
