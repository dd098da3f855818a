"""The fits of ``analysis.estimate.learning_rate_law`` by general searches over the textbook formulas."""

import numpy as np
from scipy.optimize import minimize


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
