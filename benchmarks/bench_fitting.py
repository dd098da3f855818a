"""The bootstrap of a sweep against one general least-squares fit per resample, side by side. One thread.

Nine batch sizes, three seeds, 1000 resamples; with the smallest batch size out of budget, too. Both sides find the same
minima, which is checked first. ``bootstrap`` is all of ``fit_curve``: it also draws the seeds and chooses the learning
rates again. The other side is given the resamples and the fit of the data to start from; without bounds it is curve_fit
as it comes, and with the exact slope of the model. Maximising the likelihood one by one takes so long that only 50 of
the 1000 are timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from interleaved import measure, table
from scipy.optimize import curve_fit, minimize
from scipy.stats import norm

from analysis.estimate.fitting import Data, Fit, fit_curve, fit_data, widening

SIZES = np.array([2, 4, 8, 16, 32, 64, 128, 256, 512])
LRS = 7
SEEDS = 3
RESAMPLES = 1000
FEW = 50
SAME = 1e-4
"""Largest relative difference of the minima: what the stopping rule of curve_fit (1e-8 in the squares) leaves open."""


def sweep(censored: bool) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Steps to target and bounds per batch size: 8 % seed noise around a hyperbola, seven learning rates."""
    rng = np.random.default_rng(0)
    steps, bounds = [], []
    for size in SIZES:
        logs = np.log(175 + 7381 / size) + 0.1 * np.arange(-3, 4)[:, None] ** 2
        logs = logs + 0.08 * (0.8 * rng.standard_normal((1, SEEDS)) + 0.6 * rng.standard_normal((LRS, SEEDS)))
        budget = np.log(3600.0) if censored and size == SIZES[0] else np.inf
        missed = logs > budget
        steps.append(np.where(missed, np.nan, np.exp(logs)))
        bounds.append(np.where(missed, np.exp(budget), np.nan))
    return steps, bounds


def model(size: np.ndarray, log_a: float, log_b: float) -> np.ndarray:
    return np.logaddexp(log_a, log_b - np.log(size))


def slope(size: np.ndarray, log_a: float, log_b: float) -> np.ndarray:
    share = 1.0 / (1.0 + np.exp(log_a - log_b + np.log(size)))
    return np.stack([1.0 - share, share], axis=1)


def one_by_one(fit: Fit, jac: Callable[..., np.ndarray] | None = None) -> np.ndarray:
    """``ln a, ln b`` of every resample by ``curve_fit``, shape ``[R, 2]``."""
    start = (float(np.log(fit.estimate.min_steps)), float(np.log(fit.estimate.min_examples)))
    sigma = 1.0 / np.sqrt(fit.weights)
    return np.array(
        [curve_fit(model, fit.batch_sizes, row, start, sigma, jac=jac)[0] for row in fit.resampled_log_steps]
    )


def likelihood(fit: Fit) -> np.ndarray:
    """``ln a, ln b`` of the first resamples by maximising the Tobit likelihood with BFGS, shape ``[FEW, 2]``."""
    data, rows, latent, sigma = drawn(fit)
    start = (float(np.log(fit.estimate.min_steps)), float(np.log(fit.estimate.min_examples)))
    found = []
    for row, hidden in zip(rows[:FEW], latent[:FEW], strict=True):

        def cost(parameters: np.ndarray, row: np.ndarray = row, hidden: np.ndarray = hidden) -> float:
            mean = model(data.batch_sizes, *parameters)
            z = (np.minimum(hidden, data.bounds.log_steps) - mean[data.bounds.place]) / sigma
            missed = hidden > data.bounds.log_steps
            squares = data.weights @ ((row - mean) / sigma) ** 2
            return float(0.5 * squares + np.where(missed, -norm.logsf(z), 0.5 * z**2).sum())

        found.append(minimize(cost, start, method="BFGS", options={"gtol": 1e-7}).x)
    return np.array(found)


def drawn(fit: Fit) -> tuple[Data, np.ndarray, np.ndarray, float]:
    """The resamples as ``fit_curve`` makes them: means, bounded seeds, and their standard deviation."""
    if fit.data is None:
        raise ValueError("the fit does not hold its data")
    sigma = widening(len(fit.batch_sizes) - 2 + fit.seed_freedom, 0.95) * fit.deviation
    curve = model(
        fit.data.batch_sizes,
        float(np.log(fit.estimate.min_steps)),
        float(np.log(fit.estimate.min_examples)),
    )
    rows = np.where(fit.data.reached, curve, 0.0) + sigma * fit.draws
    return fit.data, rows, curve[fit.data.bounds.place] + sigma * fit.latent_draws, sigma


def check(fit: Fit, parameters: np.ndarray) -> None:
    """The same minima, wherever both terms of the curve are there."""
    ours = np.stack([fit.resampled.min_steps, fit.resampled.min_examples], axis=1)[: len(parameters)]
    both = (ours > 0).all(axis=1)
    ours = ours[both]
    worst = np.abs(ours / np.exp(parameters[both]) - 1.0).max()
    print(f"same minima in {both.sum()} of {len(both)} resamples: largest relative difference {worst:.1e}")
    assert worst < SAME


def compare(censored: bool) -> None:
    steps, bounds = sweep(censored)

    def bootstrap() -> Fit:
        return fit_curve(SIZES.tolist(), steps, bounds=bounds, resamples=RESAMPLES)

    fit = bootstrap()
    data, rows, latent, sigma = drawn(fit)
    slow: dict[str, Callable[[], np.ndarray]]
    if censored:
        slow = {f"likelihood, {FEW} of them": lambda: likelihood(fit)}
    else:
        slow = {"curve_fit each": lambda: one_by_one(fit), "with exact slope": lambda: one_by_one(fit, slope)}
    print("\nsmallest batch size out of budget" if censored else "all reached")
    for other in slow.values():
        check(fit, other())
    fast: dict[str, Callable[[], object]] = {
        "bootstrap": bootstrap,
        "its fits alone": lambda: fit_data(data, sigma, rows, latent),
    }
    print(table(measure({**fast, **slow}, rounds=7, clock=time.process_time), "bootstrap"))


def main() -> None:
    compare(censored=False)
    compare(censored=True)


if __name__ == "__main__":
    main()
