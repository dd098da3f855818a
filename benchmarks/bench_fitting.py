"""The bootstrap of a sweep against one general least-squares fit per resample, side by side. One thread.

Nine batch sizes, three seeds, 1000 resamples; with the smallest batch size out of budget, too. Both sides find the same
minima, which is checked first. ``bootstrap`` is all of ``fit_curve``: it draws the seeds, chooses the learning rates
again, and refits every resample twice, with the exponent as it is believed to lie and as the hyperbola. The other side
is given the resamples, the belief and the fit of the data to start from, and fits the curve with its exponent: without
bounds by curve_fit as it comes, and with the exact slope of the model. Maximising the likelihood one by one takes so
long that only 50 of the 1000 are timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from interleaved import measure, table
from scipy.optimize import curve_fit, minimize
from scipy.stats import norm

from analysis.config import AnalysisConfig
from analysis.estimate.fitting import Fit, fit_curve
from analysis.estimate.fitting.data import Trials
from analysis.estimate.fitting.exponent import ALONE
from analysis.estimate.fitting.least_squares import Exponent

SIZES = np.array([2, 4, 8, 16, 32, 64, 128, 256, 512])
LRS = 7
SEEDS = 3
RESAMPLES = 1000
FEW = 50
SAME = 1e-4
"""Largest relative difference of the minima: what the stopping rule of curve_fit (1e-8 in the squares) leaves open."""


def sweep(censored: bool) -> list[Trials]:
    """Trials per batch size: 8 % seed noise around a hyperbola, seven learning rates."""
    rng = np.random.default_rng(0)
    found = []
    for size in SIZES:
        logs = np.log(175 + 7381 / size) + 0.1 * np.arange(-3, 4)[:, None] ** 2
        logs = logs + 0.08 * (0.8 * rng.standard_normal((1, SEEDS)) + 0.6 * rng.standard_normal((LRS, SEEDS)))
        budget = np.log(3600.0) if censored and size == SIZES[0] else np.inf
        missed = logs > budget
        found.append(Trials.of(np.where(missed, np.nan, np.exp(logs)), np.where(missed, np.exp(budget), np.nan)))
    return found


def model(sizes: np.ndarray, level: float, log_critical: float, log_exponent: float) -> np.ndarray:
    """Log steps at the batch sizes, and the log exponent, which the belief observes."""
    curve = level + np.logaddexp(0.0, np.exp(log_exponent) * (log_critical - np.log(sizes)))
    return np.append(curve, log_exponent)


def slope(sizes: np.ndarray, level: float, log_critical: float, log_exponent: float) -> np.ndarray:
    distance, exponent = log_critical - np.log(sizes), np.exp(log_exponent)
    rise = exponent / (1.0 + np.exp(-exponent * distance))
    curve = np.stack([np.ones(len(sizes)), rise, rise * distance], axis=1)
    return np.append(curve, [[0.0, 0.0, 1.0]], axis=0)


@dataclass(frozen=True)
class Resamples:
    """Log steps, those of the bounded seeds, and an observation of the log exponent each, around the curve of a fit."""

    fit: Fit
    rows: np.ndarray
    latent: np.ndarray
    exponent: Exponent

    @classmethod
    def of(cls, fit: Fit) -> Resamples:
        rng, curve = np.random.default_rng(1), fit.estimate.log_steps(fit.data.batch_sizes)
        noise = rng.standard_normal((RESAMPLES, len(curve))) / np.sqrt(np.maximum(fit.data.weights, 1.0))
        rows = np.where(fit.data.reached, curve + fit.deviation * noise, 0.0)
        latent = curve[fit.data.place]
        latent = latent + fit.deviation * rng.standard_normal((RESAMPLES, len(latent)))
        return cls(fit, rows, latent, ALONE.draws(RESAMPLES, rng))

    @property
    def start(self) -> np.ndarray:
        curve = self.fit.estimate
        return np.array([curve.log_min_steps, curve.log_critical, np.log(curve.exponent)], dtype=float)

    def together(self) -> np.ndarray:
        """``ln S_min, ln B_crit, ln a`` of every resample by the fit under test, shape ``[R, 3]``."""
        fit = self.fit
        found = fit.data.fit(self.exponent, fit.deviation, self.rows, self.latent, start=fit.estimate)
        return np.stack([found.log_min_steps, found.log_critical, np.log(found.exponent)], axis=1)

    def one_by_one(self, jac: Callable[..., np.ndarray] | None = None) -> np.ndarray:
        """Likewise by ``curve_fit``."""
        data, beliefs = self.fit.data, np.asarray(self.exponent.log_mean)
        spreads = np.sqrt(np.asarray(self.exponent.variance))
        found = []
        for row, mean, spread in zip(self.rows, beliefs, spreads, strict=True):
            sigma = np.append(self.fit.deviation / np.sqrt(data.weights), spread)
            found.append(curve_fit(model, data.batch_sizes, np.append(row, mean), self.start, sigma, jac=jac)[0])
        return np.array(found)

    def likelihood(self) -> np.ndarray:
        """Likewise of the first resamples by maximising the Tobit likelihood with BFGS, shape ``[FEW, 3]``."""
        data, sigma = self.fit.data, self.fit.deviation
        beliefs, variances = np.asarray(self.exponent.log_mean), np.asarray(self.exponent.variance)
        found = []
        for index in range(FEW):

            def cost(parameters: np.ndarray, index: int = index) -> float:
                mean = model(data.batch_sizes, *parameters)[:-1]
                hidden = self.latent[index]
                z = (np.minimum(hidden, data.bounds) - mean[data.place]) / sigma
                missed = hidden > data.bounds
                squares = data.weights @ ((self.rows[index] - mean) / sigma) ** 2
                squares += (parameters[2] - beliefs[index]) ** 2 / variances[index]
                return float(0.5 * squares + np.where(missed, -norm.logsf(z), 0.5 * z**2).sum())

            found.append(minimize(cost, self.start, method="BFGS", options={"gtol": 1e-7}).x)
        return np.array(found)


def check(ours: np.ndarray, parameters: np.ndarray) -> None:
    """The same minima."""
    worst = np.abs(np.exp(ours[: len(parameters)] - parameters) - 1.0).max()
    print(f"same minima in {len(parameters)} resamples: largest relative difference {worst:.1e}")
    assert worst < SAME


def compare(censored: bool) -> None:
    tables = sweep(censored)

    def bootstrap() -> Fit:
        return fit_curve(SIZES.tolist(), tables, config=AnalysisConfig(resamples=RESAMPLES))

    resamples = Resamples.of(bootstrap())
    slow: dict[str, Callable[[], np.ndarray]]
    if censored:
        slow = {f"likelihood, {FEW} of them": resamples.likelihood}
    else:
        slow = {"curve_fit each": resamples.one_by_one, "with exact slope": lambda: resamples.one_by_one(slope)}
    print("\nsmallest batch size out of budget" if censored else "all reached")
    for other in slow.values():
        check(resamples.together(), other())
    fast: dict[str, Callable[[], object]] = {"bootstrap": bootstrap, "one of its two refits": resamples.together}
    print(table(measure({**fast, **slow}, rounds=7, clock=time.process_time), "bootstrap"))


def main() -> None:
    compare(censored=False)
    compare(censored=True)


if __name__ == "__main__":
    main()
