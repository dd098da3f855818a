"""The curve with a free exponent."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import least_squares

from analysis.estimate.fitting import fit_curve
from analysis.estimate.fitting.power import EXPONENTS, fit_power, power_law, predicted_power
from tests.certified import zhang2024
from tests.factories import Truth, tables

SIZES = np.array([2.0, 4, 8, 16, 32, 64, 128, 256, 512])
EXACT = (5e-4, 1e-3, 2e-3)


def bent(alpha: float, noise: float, seeds: int, seed: int = 0) -> list[np.ndarray]:
    """A sweep whose curve has another exponent, critical at 7381/175 all the same."""
    found = tables(Truth(noise=noise, lr_power=0.0), SIZES, seeds, lrs=EXACT, seed=seed)
    ratio = 7381 / 175 / SIZES
    return [table * (1 + r**alpha) / (1 + r) for table, r in zip(found, ratio, strict=True)]


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("critical", [8.0, 90.0])
def test_exact_on_exact_data(alpha: float, critical: float) -> None:
    rows = np.log(120 * (1 + (critical / SIZES) ** alpha))[None]
    found = fit_power(SIZES, rows)
    assert found.exponent[0] == pytest.approx(alpha, rel=1e-5)
    assert found.critical[0] == pytest.approx(critical, rel=1e-5)
    assert math.exp(found.log_min_steps[0]) == pytest.approx(120, rel=1e-5)


def test_equals_the_slow_twin() -> None:
    """The best of three starts of scipy never finds less than we do (its squares stop at 1e-14 of themselves)."""
    rng = np.random.default_rng(0)
    x = np.log(SIZES)
    weights = rng.integers(1, 6, len(SIZES)).astype(float)
    alphas, centres = rng.uniform(0.5, 1.6, 30), rng.uniform(math.log(8), math.log(256), 30)
    rows = np.logaddexp(0, alphas[:, None] * (centres[:, None] - x)) + 0.03 * rng.standard_normal((30, len(SIZES)))
    found = fit_power(SIZES, rows, weights)
    costs = ((rows - predicted_power(SIZES, found)) ** 2 * weights).sum(axis=1)
    box = (
        [-20, math.log(SIZES[0] / 100), math.log(EXPONENTS[0])],
        [20, math.log(100 * SIZES[-1]), math.log(EXPONENTS[1])],
    )
    for row, cost in zip(rows, costs, strict=True):

        def residuals(p: np.ndarray, row: np.ndarray = row) -> np.ndarray:
            return np.sqrt(weights) * (p[0] + np.logaddexp(0, np.exp(p[2]) * (p[1] - x)) - row)

        starts = [[row.min(), 3.5, math.log(alpha)] for alpha in (0.6, 1.0, 1.6)]
        best = min(2 * least_squares(residuals, start, bounds=box, xtol=1e-14, ftol=1e-14).cost for start in starts)
        assert cost <= best * (1 + 1e-6)


def test_published_data_have_an_exponent_near_one() -> None:
    """Zhang et al. fix alpha = 1 in the code behind their fits; their own steps say 0.9 to 1.3."""
    for row in zhang2024.ROWS:
        found = fit_power(np.array(zhang2024.BATCH_SIZES, dtype=float), np.log(np.array(row.steps, dtype=float))[None])
        assert 0.9 < found.exponent[0] < 1.3


def test_a_hyperbola_is_not_called_anything_else_and_another_curve_is() -> None:
    healthy = power_law(fit_curve(SIZES, bent(1.0, 0.05, 3), resamples=500))
    assert healthy is not None
    assert not healthy.differs
    assert healthy.remark == ""
    other = power_law(fit_curve(SIZES, bent(0.6, 0.05, 3), resamples=500))
    assert other is not None
    assert other.differs
    assert other.exponent == pytest.approx(0.6, abs=0.1)
    assert other.exponent_interval[0] < 0.6 < other.exponent_interval[1]
    assert other.critical_interval[0] < 7381 / 175 < other.critical_interval[1]
    assert other.remark.startswith("the exponent differs from 1: alpha = 0.")
    assert other.to_json()["exponent"] == other.exponent


def test_four_batch_sizes_at_least() -> None:
    data = bent(1.0, 0.05, 3)
    assert power_law(fit_curve(SIZES[:3], data[:3], resamples=100)) is None
    assert power_law(fit_curve(SIZES[::2], data[::2], resamples=100)) is not None


def test_perfect_scaling_alone_does_not_bound_it() -> None:
    found = fit_power(SIZES, np.log(1e4 / SIZES)[None])
    assert found.critical[0] > SIZES[-1]


def test_the_coverage_of_the_exponent() -> None:
    """100 sweeps: were the coverage only 88 %, fewer than 88 hits would have probability 0.44; at 75 %, 0.998."""
    hits = 0
    for seed in range(100):
        found = power_law(fit_curve(SIZES, bent(0.8, 0.06, 3, seed), resamples=300, seed=seed))
        assert found is not None
        low, high = found.exponent_interval
        hits += (low or 0.0) <= 0.8 <= (high or math.inf)
    assert hits >= 88
