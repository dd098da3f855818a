r"""What further runs would narrow, and which narrow most for their examples.

Every draw of the curve F says what further runs would show and where the least product lies. Some of the draws are
taken as the truth in turn: the runs that they expect are drawn with their noise, every draw counts by the likelihood of
these runs, and the standard deviation of :math:`\ln B_{crit}` that is left, averaged over the truths, is what the runs
are worth. Kinks and bends that only a batch size in between can show are thus foreseen (expected posterior spread,
Chaloner and Verdinelli 1995, "Bayesian Experimental Design: A Review").

The run of a seed s at batch size B observes :math:`y = F(\ln B) + u_s + x_B + e`: of the variance of one run, the share
that runs of a seed have in common belongs to :math:`u_s` (taken as one level for all batch sizes), the rest to e; and
:math:`x_B`, because no learning rate that was run is quite the best, is the same for all seeds. Of a seed that has run
at n batch sizes a share :math:`k = n \sigma_u^2 / (n \sigma_u^2 + \sigma_e^2)` of the mean distance from the curve
there is its level, so its further runs observe the curve relative to that mean, with the rest of :math:`u_s`. Where
runs have been made with a mean :math:`\bar y`, all that is known of :math:`x_B` is a share of :math:`\bar y - F`. Where
other batch sizes said where the best learning rate lies, :math:`x_B` is often larger than all noise; runs at learning
rates on both sides show it, up to a share of its variance.

Batch sizes are added one at a time, where the logarithm of the width falls most per example.
"""

import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular

from analysis.estimate.definitions.least_product import least_place
from analysis.estimate.draws import Draws
from analysis.quantities import Array

GOAL = 0.8  # Expected width of the interval, relative to now, at which no more trials are added

# Runs that the search of the learning rate takes at a new batch size, on its first seed: between others, which say
# where the best one lies; and beyond them, where a bracket takes three and is often moved or halved.
INSIDE, OUTSIDE = 2, 5

# Besides its own examples a step costs as much as this many: batches of one or two save examples, but hardly time
STEP = 1.0

_LEAST = 1e-6  # Smallest variance of what such runs show
_TRUTHS = 128  # Number of draws that are tried as the truth

# Largest number of runs that are added at a time
MOST = 6

# Runs beside the seeds that have run, with which the best learning rate of a batch size gets a worse one on either side
# where others said where it lies: on the first seed, and where it then is another one, it may be repeated on the other
# seeds. And the share of the variance of its error that is left. As seen in simulated sweeps.
BRACKET, LEFT = 1, 0.25

Cell = tuple[int, int | None]
"""Batch size and seed; without a seed, runs at learning rates on both sides of the best one."""


@dataclass(frozen=True)
class Design:
    """What runs would narrow.

    Attributes:
        draws: draws of the curve as it is known now.
        exchange: as in the definition ``least_product``.
    """

    draws: Draws
    exchange: float = 1.0

    @functools.cached_property
    def least(self) -> Array:
        """ln of the batch size of the least product of every draw, shape ``[R]``."""
        return least_place(self.draws, self.exchange)

    @functools.cached_property
    def places(self) -> Array:
        """The same, minus its mean."""
        return np.asarray(self.least - self.least.mean())

    @functools.cached_property
    def _truths(self) -> np.ndarray:
        """Draws that stand for equal shares of all, by their places, shape ``[_TRUTHS]``."""
        return self.places.argsort(kind="stable")[np.linspace(0, len(self.places) - 1, _TRUTHS).round().astype(int)]

    def width(self, cells: Sequence[Cell]) -> float:
        """Return the expected width of the interval of ``ln B_crit`` with these further runs, relative to now."""
        now = float(_spreads(self.places, np.ones((1, len(self.places))))[0])
        if not cells or now <= 0:
            return 1.0
        values, noise = self._observed(cells)
        white = solve_triangular(np.linalg.cholesky(noise), values.T, lower=True).T
        # errors that are the same whatever is asked for
        true = white[self._truths]
        errors = np.random.default_rng(0).standard_normal((len(cells), _TRUTHS)).T
        seen = np.concatenate([true + errors, true - errors])
        weights = seen @ white.T - 0.5 * (white**2).sum(axis=1)
        weights -= weights.max(axis=1, keepdims=True)
        return float(_spreads(self.places, np.exp(weights, out=weights)).mean()) / now

    def _observed(self, cells: Sequence[Cell]) -> tuple[Array, Array]:
        """Return what every draw expects of runs, shape ``[R, K]``, and the covariance of their errors."""
        draws, seeds = self.draws, [seed for _, seed in cells]
        sizes, at = np.unique([size for size, _ in cells], return_inverse=True)
        rates, share = (values[at] for values in self._between_rates(sizes))
        levels = {seed: self._level(seed) for seed in set(seeds)}
        known = np.stack([levels[seed][0] for seed in seeds], axis=1)
        left = np.array([[levels[seed][1] * (seed == other) for other in seeds] for seed in seeds])
        # without a seed x_B is observed, which is the share of the distance from the curve, instead of the rest of it
        runs = np.array([seed is not None for seed in seeds])
        values = (runs - share) * draws.drawn(sizes)[:, at] - known
        own = np.where(runs, (1 - draws.shared) * self._variance, np.maximum(LEFT / (1 - LEFT) * rates, _LEAST))
        noise = self._variance * left + np.diag(own) + (at[:, None] == at) * rates * (1 - share)
        return values - values.mean(axis=0), noise

    def _level(self, seed: int | None) -> tuple[Array, float]:
        """Return what every draw says of the level of a seed, up to what the draws have in common, shape ``[R]``, and
        what is left of its variance, in those of one run; nothing without a seed."""
        draws = self.draws
        if seed is None:
            return np.zeros(draws.count), 0.0
        ran = np.isfinite(draws.table[:, draws.labels.index(seed)]) if seed in draws.labels else np.zeros(0, dtype=bool)
        if not ran.any():
            return np.zeros(draws.count), draws.shared
        share = ran.sum() * draws.shared / (ran.sum() * draws.shared + 1 - draws.shared)
        return share * draws.drawn(draws.batch_sizes[ran]).mean(axis=1), draws.shared * (1 - share)

    @property
    def _variance(self) -> float:
        """Variance of one run."""
        return float(np.mean(self.draws.own**2))

    def _between_rates(self, sizes: Array) -> tuple[Array, Array]:
        """Return the variance of the error that all seeds of a batch size share, and the share that it has in what is
        known of the deviation of their mean from the curve, shape ``[K]`` each."""
        draws = self.draws
        measured = np.maximum(np.diagonal(draws.covariance) - self._variance / draws.seeds, 0.0)
        there = draws.batch_sizes == sizes[:, None]
        rates = np.where(there.any(axis=1), there @ measured, measured.mean())
        own = (1 - draws.shared) * self._variance / np.maximum(there @ draws.seeds, 1)
        return rates, np.where(there.any(axis=1), rates / (rates + own), 0.0)

    def examples(self, batch_size: float) -> float:
        """Return the expected examples to the target at a batch size."""
        return batch_size * math.exp(self.draws.estimate(np.array([batch_size]))[0])

    def bracket(self, batch_size: int) -> int:
        """Return with how many runs the best learning rate of a measured batch size gets a worse one on either side."""
        return BRACKET + int(self.draws.seeds[self.draws.batch_sizes == batch_size].sum())

    def cost(self, cells: Sequence[Cell]) -> float:
        """Return what these runs take, in examples; the learning rate of a new batch size has to be searched, too."""
        runs, there = Counter[int](), self.draws.batch_sizes
        for size, seed in cells:
            runs[size] += self.bracket(size) if seed is None else 1
        for size in {*runs}.difference(there.tolist()):
            runs[size] += (INSIDE if there[0] < size < there[-1] else OUTSIDE) - 1
        return sum(count * self.examples(size) * (1 + STEP / size) for size, count in sorted(runs.items()))

    def most_for_its_cost(
        self,
        following: Mapping[int, Sequence[int]],
        goal: float = GOAL,
        most: int = MOST,
        least: int = 1,
        believed: Sequence[int] = (),
    ) -> list[Cell]:
        """Choose runs, one at a time, where the logarithm of the width falls most per example.

        Args:
            following: the seeds that a batch size gets next, in this order, by batch size.
            goal: expected width, relative to now, at which no more are added.
            most: largest number of runs.
            least: smallest number of runs: workers that would be idle otherwise.
            believed: batch sizes at which learning rates on both sides of the best one can run.
        """
        chosen: list[Cell] = []
        now, spent, taken = 1.0, 0.0, Counter[int]()
        while len(chosen) < most and (now > goal or len(chosen) < least):
            runs = [(size, seeds[taken[size]]) for size, seeds in following.items() if taken[size] < len(seeds)]
            options = {}
            for cell in (*runs, *((size, None) for size in believed if (size, None) not in chosen)):
                cells = [*chosen, cell]
                cost, width = self.cost(cells), self.width(cells)
                options[cell] = math.log(now / max(width, 1e-9)) / (cost - spent), cells, cost, width
            if not options:
                break
            best = max(options, key=lambda cell: options[cell][0])
            _, chosen, spent, now = options[best]
            taken[best[0]] += best[1] is not None
        return chosen


def _spreads(places: Array, weights: Array) -> Array:
    """Return the standard deviation of places ``[R]`` under weights, shape ``[M, R]``, ``[M]``."""
    total = weights.sum(axis=1)
    middle = weights @ places / total
    return np.asarray(np.sqrt(np.maximum(weights @ places**2 / total - middle**2, 0.0)))
