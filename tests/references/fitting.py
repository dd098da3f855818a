"""The fits of ``analysis`` by general optimizers over all parameters, one curve at a time."""

from __future__ import annotations

import numpy as np
from scipy.optimize import curve_fit, minimize
from scipy.stats import norm


def fit_by_curve_fit(batch_sizes: np.ndarray, log_steps: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Weighted least squares of ``ln S = ln(a + b/B)``; returns ``(a, b)``."""
    sizes = np.asarray(batch_sizes, dtype=float)

    def model(size: np.ndarray, log_a: float, log_b: float) -> np.ndarray:
        return np.logaddexp(log_a, log_b - np.log(size))

    start = (log_steps.min(), (log_steps + np.log(sizes)).min())
    found, _ = curve_fit(
        model, sizes, log_steps, p0=start, sigma=1 / np.sqrt(weights), xtol=1e-14, ftol=1e-14, gtol=1e-14
    )
    return float(np.exp(found[0])), float(np.exp(found[1]))


def tobit_cost(
    parameters: np.ndarray, sizes: np.ndarray, logs: np.ndarray, missed: np.ndarray, sigma: float, alpha: float = 1.0
) -> float:
    """Negative log likelihood of seeds, one by one, around ``ln S = ln(a + b/B^alpha)``.

    Args:
        parameters: ``ln a, ln b``.
        sizes: batch size of every seed.
        logs: its log steps, or its log bound.
        missed: whether it is a bound.
        sigma: standard deviation of the log steps of one seed.
        alpha: the exponent.
    """
    mean = np.logaddexp(parameters[0], parameters[1] - alpha * np.log(sizes))
    z = (logs - mean) / sigma
    return float(np.where(missed, -norm.logsf(z), 0.5 * z**2).sum())


def fit_by_likelihood(
    sizes: np.ndarray, logs: np.ndarray, missed: np.ndarray, sigma: float, start: tuple[float, float]
) -> tuple[float, float]:
    """Maximise the Tobit likelihood; returns ``(a, b)``."""
    found = minimize(
        tobit_cost,
        np.log(start),
        (sizes, logs, missed, sigma),
        method="Nelder-Mead",
        options={"xatol": 1e-10, "fatol": 1e-12, "maxiter": 10_000, "maxfev": 10_000},
    )
    return float(np.exp(found.x[0])), float(np.exp(found.x[1]))
