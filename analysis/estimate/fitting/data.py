r"""What a curve is fitted to: the trials at every batch size, of these the means over seeds at the best learning rate.

Seeds that did not reach the target are lower bounds on their steps: a Tobit fit by expectation and maximisation. A seed
that ran :math:`b` steps without reaching the target says :math:`\ln S > \ln b`. Leaving it out makes the curve too low
where only the fast seeds got there, and blind where none did. With normal noise of standard deviation :math:`\sigma`
around the curve :math:`\mu(B)` its likelihood is :math:`1 - \Phi(z)`, :math:`z = (\ln b - \mu)/\sigma` (Tobin 1958,
"Estimation of relationships for limited dependent variables", Econometrica 26, 24-36). Expectation puts
:math:`E[\ln S \mid \ln S > \ln b] = \mu + \sigma h(z)` in place of the seed, with the hazard
:math:`h = \varphi/(1 - \Phi)`; maximisation is the least-squares fit. Repeating the two climbs to the maximum of the
likelihood, but slowly where a bound decides much, so a censored seed enters with the weight :math:`k = h (h - z)` that
the likelihood curves with, and the response :math:`\mu + \sigma h/k`: the same fixed point, reached in a few rounds.

A bound far below the curve has :math:`h = 0`, no weight, and changes nothing.
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
"""Least standard deviation of ln S: a tenth of a percent, finer than steps to target are ever known."""

_ROUNDS = 40
_CONVERGED = 1e-9


@dataclass(frozen=True)
class Trials:
    """Every trial at one batch size, shape ``[learning rates, seeds]`` each.

    Attributes:
        steps: steps to target; NaN where it was not reached.
        bound: steps run without reaching it; NaN where that means nothing.
        ran: whether the trial was run.
        gain: the most log steps that a learning rate in between could save on the best of these.
    """

    steps: Array
    bound: Array
    ran: np.ndarray
    gain: float = 0.0

    @classmethod
    def of(cls, steps: Array, bound: Array | float = math.nan) -> Trials:
        """A table in which every trial was run."""
        steps = np.asarray(steps, dtype=float)
        return cls(steps, np.broadcast_to(bound, steps.shape), np.ones(steps.shape, dtype=bool))

    @functools.cached_property
    def winner(self) -> int | None:
        """Row of the best learning rate, see :func:`cbs.trial.lr_choice.best_lr`."""
        return best_lr(self.steps, self.ran)

    def without(self, seed: int) -> Trials:
        """The table as if a seed (a column) had never been run."""
        kept = np.arange(self.steps.shape[1]) != seed
        return replace(self, steps=self.steps[:, kept], bound=self.bound[:, kept], ran=self.ran[:, kept])


def observed(trials: Trials) -> tuple[Array, Array]:
    """What one batch size says about its best learning rate: log steps of the seeds that reached the target, and log
    bounds of those that did not, shape ``[at most seeds]`` each.

    Where some trial reached the target, both are those of the winning learning rate. Where none did, the winner is
    unknown, and what is known of it is that it took longer than the learning rate that was given up first: the bounds
    are those of the learning rate whose longest run is shortest. Every other one ran longer than that on some seed, so
    whichever is the best one, its steps exceed them. A diverged trial has no bound: it does not say how long another
    learning rate takes.
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
    """Density of the normal distribution over its upper tail."""
    return math.sqrt(2.0 / math.pi) / erfcx(z / math.sqrt(2.0))


@dataclass(frozen=True)
class Data:
    """What a curve is fitted to.

    Attributes:
        batch_sizes: shape ``[M]``, increasing, with those where only bounds are known.
        log_steps: mean over the seeds that reached the target, shape ``[M]``; 0 where none did.
        weights: number of these seeds, shape ``[M]``.
        place: index of the batch size of every seed that did not, shape ``[J]``.
        bounds: natural log of the steps it ran without reaching the target, shape ``[J]``.
    """

    batch_sizes: Array
    log_steps: Array
    weights: Array
    place: np.ndarray
    bounds: Array

    @property
    def all_weights(self) -> Array:
        """Number of all seeds, those that did not reach the target included, shape ``[M]``."""
        return self.weights + np.bincount(self.place, minlength=len(self.weights))

    @property
    def reached(self) -> np.ndarray:
        """Which batch sizes reached the target, shape ``[M]``."""
        return np.asarray(self.weights > 0)

    def without(self, place: int) -> Data:
        """All but one batch size."""
        return self._part(np.arange(len(self.batch_sizes)) != place, self.place != place)

    def unbounded(self) -> Data:
        """The batch sizes that reached the target, without the bounds."""
        return self._part(self.reached, np.zeros(len(self.bounds), dtype=bool))

    def _part(self, kept: np.ndarray, bounds: np.ndarray) -> Data:
        sizes, steps, weights = (values[kept] for values in (self.batch_sizes, self.log_steps, self.weights))
        return Data(sizes, steps, weights, np.cumsum(kept)[self.place[bounds]] - 1, self.bounds[bounds])

    def completed(self, mean: Array, deviation: float, rows: Array | None = None, latent: Array | None = None) -> Array:
        """Log steps with the expectation of every bounded seed averaged in, shape ``[R, M]``.

        Args:
            mean: log steps of the fitted curve, shape ``[R, M]``.
            deviation: of the log steps of one seed.
            rows: log steps of resamples in place of the measured ones, shape ``[R, M]``; any number where no seed
                reached the target.
            latent: log steps of the bounded seeds, shape ``[R, J]``, in resamples: a seed below its bound reached the
                target there. In the data, where none did, absent.
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
        """What every bounded seed enters the next least-squares fit with, and its weight; shape ``[R, J]`` each."""
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
        """Means per batch size of ``rows`` and of ``values`` with the weights ``extra``, and their weights, both
        ``[R, M]``."""
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
        """The most likely curve, shape ``[R]``.

        Args:
            exponent, start, knee: as of :func:`analysis.estimate.fitting.least_squares.fit_curves`.
            deviation, rows, latent: as of :meth:`completed`.
            scatter: standard deviation that the bounds are weighed with, where that of resamples differs.
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
    """The data of a curve, and the tables of the batch sizes that reached the target."""
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
