"""What a curve is fitted to: means over the seeds of the best learning rate, and bounds of those that fell short."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.arrays import Array
from analysis.estimate.curves import Curve
from analysis.estimate.fitting.censoring import Bounds, collect, completed, joined, observed, responses
from analysis.estimate.fitting.least_squares import Exponent, fit_curves
from analysis.estimate.fitting.trials import Trials, winners

_ROUNDS = 40
_CONVERGED = 1e-9


@dataclass(frozen=True)
class Data:
    """What a curve is fitted to.

    Attributes:
        batch_sizes: shape ``[M]``, increasing, with those where only bounds are known.
        log_steps: mean over the seeds that reached the target, shape ``[M]``; 0 where none did.
        weights: number of these seeds, shape ``[M]``.
        bounds: the seeds that did not; ``place`` counts in ``batch_sizes``.
    """

    batch_sizes: Array
    log_steps: Array
    weights: Array
    bounds: Bounds

    @property
    def all_weights(self) -> Array:
        """Number of all seeds, those that did not reach the target included, shape ``[M]``."""
        return self.weights + np.bincount(self.bounds.place, minlength=len(self.weights))

    @property
    def reached(self) -> np.ndarray:
        """Which batch sizes reached the target, shape ``[M]``."""
        return np.asarray(self.weights > 0)

    def completed(
        self, curve: Array, deviation: float, rows: Array | None = None, latent: Array | None = None
    ) -> Array:
        """Log steps with the expectation of every bounded seed averaged in, shape ``[R, M]``; ``rows`` and ``latent``
        as :meth:`fit` takes them."""
        rows = self.log_steps[None] if rows is None else rows
        return completed(curve, rows, self.weights, self.bounds, deviation, latent)

    def without(self, place: int) -> Data:
        """All but one batch size."""
        return self._part(np.arange(len(self.batch_sizes)) != place, self.bounds.place != place)

    def unbounded(self) -> Data:
        """The batch sizes that reached the target, without the bounds."""
        return self._part(self.reached, np.zeros(len(self.bounds), dtype=bool))

    def _part(self, kept: np.ndarray, bounds: np.ndarray) -> Data:
        place = np.cumsum(kept)[self.bounds.place[bounds]] - 1
        left = Bounds(place, self.bounds.log_steps[bounds])
        return Data(self.batch_sizes[kept], self.log_steps[kept], self.weights[kept], left)

    def fit(
        self,
        exponent: Exponent,
        deviation: float,
        rows: Array | None = None,
        latent: Array | None = None,
        *,
        scatter: float | None = None,
        start: Curve | None = None,
    ) -> Curve:
        """The most likely curve, shape ``[R]``.

        Args:
            exponent: what is known of it beforehand.
            deviation: standard deviation of the log steps of one seed.
            rows: log steps of resamples in place of the measured ones, shape ``[R, M]``.
            latent: of the bounded seeds, likewise, see :func:`analysis.estimate.fitting.censoring.completed`.
            scatter: standard deviation that the bounds are weighed with, where that of resamples differs.
            start: a curve near all of them, which spares the grid.
        """
        rows = self.log_steps[None] if rows is None else rows

        def fitted(logs: Array, weights: Array, near: Curve | None) -> Curve:
            reach = self.batch_sizes[self.reached]
            return fit_curves(
                self.batch_sizes, logs, weights, exponent=exponent, deviation=deviation, reach=reach, start=near
            )

        found = fitted(rows, self.weights, start)
        for _ in range(_ROUNDS if len(self.bounds) else 0):
            mean = found.log_steps(self.batch_sizes)
            values, extra = responses(mean, self.bounds, deviation if scatter is None else scatter, latent)
            found = fitted(*joined(rows, self.weights, self.bounds.place, values, extra), found)
            if np.abs(found.log_steps(self.batch_sizes) - mean).max() < _CONVERGED:
                break
        return found


def gather(batch_sizes: Sequence[float], tables: Sequence[Trials]) -> tuple[Data, list[Trials]]:
    """The data of a curve, and the tables of the batch sizes that reached the target."""
    seen = [observed(table.steps, table.bound, row) for table, row in zip(tables, winners(tables), strict=True)]
    used = [index for index, (logs, limits) in enumerate(seen) if len(logs) or len(limits)]
    data = Data(
        np.asarray(batch_sizes, dtype=float)[used],
        np.array([seen[index][0].mean() if len(seen[index][0]) else 0.0 for index in used]),
        np.array([len(seen[index][0]) for index in used], dtype=float),
        collect([seen[index][1] for index in used]),
    )
    return data, [tables[index] for index in used if len(seen[index][0])]
