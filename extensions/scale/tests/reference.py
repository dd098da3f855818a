"""The fits of ``analysis.estimate.learning_rate_law`` by general searches over the textbook formulas."""

import numpy as np
from scipy.optimize import minimize


def restricted_likelihood(y: np.ndarray, design: np.ndarray, covariance: np.ndarray) -> float:
    """``-ln`` of it, Patterson and Thompson (1971), without its constant, by explicit inverses and determinants."""
    inverse = np.linalg.inv(covariance)
    information = design.T @ inverse @ design
    beta = np.linalg.inv(information) @ design.T @ inverse @ y
    residual = y - design @ beta
    return 0.5 * float(
        np.log(np.linalg.det(covariance)) + np.log(np.linalg.det(information)) + residual @ inverse @ residual
    )


def scatter_by_search(y: np.ndarray, design: np.ndarray, errors: np.ndarray) -> float:
    """Standard deviation of an independent scatter that maximises the restricted likelihood, on a fine grid."""
    grid = np.linspace(0.0, 3.0, 3001)
    costs = [restricted_likelihood(y, design, errors + sd**2 * np.eye(len(y))) for sd in grid]
    return float(grid[int(np.argmin(costs))])


def line_through_errors(
    x: np.ndarray, y: np.ndarray, dx: np.ndarray, dy: np.ndarray, scatter: float
) -> tuple[float, float]:
    """Intercept and slope that minimise the sum of ``(y - a - k x)^2 / variance(y - k x)`` (York 1966), points
    independent, errors as the resamples ``[R, n]`` have them."""

    def cost(parameters: np.ndarray) -> float:
        intercept, slope = parameters
        variance = (dy - slope * dx).var(axis=0) + scatter**2
        return float(np.sum((y - intercept - slope * x) ** 2 / variance))

    slope, intercept = np.polyfit(x, y, 1)
    found = minimize(
        cost, (intercept, slope), method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-14, "maxiter": 4000}
    )
    return float(found.x[0]), float(found.x[1])
