"""The fits of ``analysis`` by general optimizers over all parameters, one curve at a time."""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import curve_fit, least_squares, minimize
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


def cost_with_prior(
    parameters: np.ndarray, sizes: np.ndarray, log_steps: np.ndarray, weights: np.ndarray, pull: float, mean: float
) -> float:
    """Weighted squares of ``ln S = ln S_min + ln(1 + (B_crit/B)^a)``, with ``pull (ln a - mean)^2``.

    Args:
        parameters: ``ln S_min, ln B_crit, ln a``.
        pull: squared standard deviation of a seed over the variance of the prior of ``ln a``.
        mean: of that prior.
    """
    squares = 0.0
    for size, value, weight in zip(sizes, log_steps, weights, strict=True):
        share = (math.exp(parameters[1]) / size) ** math.exp(parameters[2])
        squares += weight * (value - parameters[0] - math.log(1 + share)) ** 2
    return squares + pull * (parameters[2] - mean) ** 2


def fit_with_belief(
    sizes: np.ndarray,
    log_steps: np.ndarray,
    weights: np.ndarray,
    box: tuple[list[float], list[float]],
    *,
    pull: float = 0.0,
    mean: float = 0.0,
) -> np.ndarray:
    """The least of :func:`cost_with_prior` from three starts; returns ``ln S_min, ln B_crit, ln a``."""

    def residuals(p: np.ndarray) -> np.ndarray:
        off = p[0] + np.log(1 + (math.exp(p[1]) / sizes) ** math.exp(p[2])) - log_steps
        return np.append(np.sqrt(weights) * off, math.sqrt(pull) * (p[2] - mean))

    middle = float(np.log(sizes).mean())
    found = [
        least_squares(residuals, [log_steps.min(), middle, math.log(a)], bounds=box, xtol=1e-14, ftol=1e-14)
        for a in (0.6, 1.0, 1.6)
    ]
    return np.asarray(min(found, key=lambda each: float(each.cost)).x)


def posterior_of_the_exponent(
    sizes: np.ndarray, log_steps: np.ndarray, weights: np.ndarray, deviation: float, mean: float, spread: float
) -> tuple[float, float]:
    """Mean and standard deviation of ``ln a`` by adding up a grid over ``ln B_crit`` and ``ln a``, both flat but for a
    normal belief about the latter; ``ln S_min`` is flat, too, and integrated out in closed form."""
    total = np.zeros(3)
    for log_exponent in np.linspace(-0.8, 0.8, 321):
        for log_critical in np.linspace(math.log(sizes[0]), math.log(sizes[-1]), 241):
            off = log_steps - np.log(1 + (math.exp(log_critical) / sizes) ** math.exp(log_exponent))
            off = off - weights @ off / weights.sum()
            cost = weights @ off**2 / deviation**2 + ((log_exponent - mean) / spread) ** 2
            total += math.exp(-0.5 * cost) * np.array([1.0, log_exponent, log_exponent**2])
    first = total[1] / total[0]
    return float(first), math.sqrt(total[2] / total[0] - first**2)


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


def pooled_by_grid(
    log_exponents: list[float], variances: list[float], index: int, spread: float, unlike: float
) -> tuple[float, float]:
    """Mean and standard deviation of the log exponent of curve ``index`` before it is looked at, by adding up a grid
    over the common mean and the spread between curves: for each pair a density by how well it explains all curves,
    times what the others say of the mean."""
    means = np.linspace(-5 * spread, 5 * spread, 1001)
    weights, firsts, seconds = [], [], []
    for omega in np.linspace(0.0, 10.0 * unlike, 1001)[1:]:
        every, others = norm.pdf(means / spread), norm.pdf(means / spread)
        for curve, (value, variance) in enumerate(zip(log_exponents, variances, strict=True)):
            density = norm.pdf(value, means, math.sqrt(variance + omega**2))
            every = every * density
            others = others if curve == index else others * density
        others = others / others.sum()
        weights.append(every.sum() * 1.0 / (1.0 + (omega / unlike) ** 2))
        firsts.append(others @ means)
        seconds.append(others @ means**2 + omega**2)
    shares = np.array(weights) / np.sum(weights)
    mean = float(shares @ firsts)
    return mean, math.sqrt(float(shares @ seconds) - mean**2)
