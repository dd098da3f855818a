"""The fit: exact on exact data, equal to a slow twin, equal to published fits."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.estimate.curves import examples_to_target, perfect_scaling, steps_to_target
from analysis.estimate.definitions import DEFINITIONS, Sample, build
from analysis.estimate.fitting import fit_curve, fit_hyperbola, interval, predicted
from tests.certified import zhang2024
from tests.factories import Truth, tables
from tests.references.fitting import fit_by_curve_fit

SIZES = np.array([2, 4, 8, 16, 32, 64, 128, 256])


@pytest.mark.parametrize(("ratio", "steps", "examples"), [(0.25, 5.0, 1.25), (1.0, 2.0, 2.0), (4.0, 1.25, 5.0)])
def test_worked_points_of_mccandlish(ratio: float, steps: float, examples: float) -> None:
    assert steps_to_target(ratio * 1000, 100.0, 1e5) == pytest.approx(100 * steps)
    assert examples_to_target(ratio * 1000, 100.0, 1e5) == pytest.approx(1e5 * examples)


def test_perfect_scaling_halves_the_steps() -> None:
    assert perfect_scaling(np.array([2.0, 4.0, 8.0]), 2.0, 100.0).tolist() == [100.0, 50.0, 25.0]


@given(st.floats(1.0, 1e6), st.floats(math.log(1.0), math.log(500.0)), st.integers(2, 8))
def test_exact_on_exact_data(min_steps: float, log_critical: float, count: int) -> None:
    sizes = SIZES[:: max(1, 8 // count)]
    min_examples = min_steps * math.exp(log_critical)
    fit = fit_hyperbola(sizes, np.log(steps_to_target(sizes, min_steps, min_examples)))
    assert fit.min_steps == pytest.approx(min_steps, rel=1e-7)
    assert fit.min_examples == pytest.approx(min_examples, rel=1e-7)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.integers(3, 8))
def test_equals_the_slow_twin(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    sizes, weights = np.sort(rng.choice(SIZES, count, replace=False)), rng.integers(1, 6, count)
    critical = rng.uniform(sizes[0], sizes[-1])
    log_steps = np.log(100 * (1 + critical / sizes)) + 0.02 * rng.standard_normal(count)
    fit = fit_hyperbola(sizes, log_steps, weights)
    a, b = fit_by_curve_fit(sizes, log_steps, weights)

    def cost(a: float, b: float) -> float:
        return float(weights @ (log_steps - np.log(a + b / sizes)) ** 2)

    if fit.min_steps == 0 or fit.min_examples == 0:
        return
    assert cost(fit.min_steps, fit.min_examples) <= cost(a, b) * (1 + 1e-9)
    if cost(a, b) <= cost(fit.min_steps, fit.min_examples) * (1 + 1e-9):
        assert (fit.min_steps, fit.min_examples) == pytest.approx((a, b), rel=1e-4)


def test_every_resample_is_refitted_to_the_minimum_of_the_slow_twin() -> None:
    """As the benchmark checks with all 1000; the twin stops at 1e-14 of the squares."""
    fit = fit_curve(SIZES, tables(Truth(noise=0.08), SIZES, 3), resamples=100)
    twin = np.array([fit_by_curve_fit(SIZES, row, fit.weights) for row in fit.resampled_log_steps])
    np.testing.assert_allclose(fit.resampled.min_steps, twin[:, 0], rtol=1e-5)
    np.testing.assert_allclose(fit.resampled.min_examples, twin[:, 1], rtol=1e-5)


def test_rows_with_their_own_weights_and_a_start_give_the_same_minimum() -> None:
    rng = np.random.default_rng(0)
    rows = np.log(175 + 7381 / SIZES) + 0.1 * rng.standard_normal((20, len(SIZES)))
    weights = rng.uniform(0.0, 3.0, rows.shape)
    found = fit_hyperbola(SIZES, rows, weights, reach=SIZES)
    near = fit_hyperbola(SIZES, rows)
    for row, weight, steps, examples in zip(rows, weights, found.min_steps, found.min_examples, strict=True):
        alone = fit_hyperbola(SIZES, row, weight)
        assert (steps, examples) == (pytest.approx(alone.min_steps), pytest.approx(alone.min_examples))
    started = fit_hyperbola(SIZES, rows, weights, start=near)
    np.testing.assert_allclose(started.min_steps, found.min_steps, rtol=1e-9)


def test_many_rows_equal_one_by_one() -> None:
    rng = np.random.default_rng(0)
    rows = np.log(175 + 7381 / SIZES) + 0.1 * rng.standard_normal((20, len(SIZES)))
    together = fit_hyperbola(SIZES, rows)
    alone = [fit_hyperbola(SIZES, row) for row in rows]
    np.testing.assert_allclose(together.min_steps, [fit.min_steps for fit in alone], rtol=1e-9)
    np.testing.assert_allclose(together.min_examples, [fit.min_examples for fit in alone], rtol=1e-9)


@pytest.mark.parametrize("row", zhang2024.ROWS, ids=lambda row: row.model)
def test_published_fits(row: zhang2024.Row) -> None:
    fit = fit_hyperbola(np.array(zhang2024.BATCH_SIZES), np.log(row.steps))
    ratio = fit.min_examples / fit.min_steps
    assert round(float(fit.min_steps), 1) == row.a
    assert float(f"{fit.min_examples:.4g}") == row.b
    assert round(float(ratio)) == row.ratio
    assert round(1.2 * 256 + 0.2 * float(ratio), 1) == row.overhead


def test_only_perfect_scaling_or_only_a_plateau_give_no_number() -> None:
    perfect = fit_hyperbola(SIZES, np.log(1e4 / SIZES))
    assert (perfect.min_steps, perfect.min_examples) == (0.0, pytest.approx(1e4))
    plateau = fit_hyperbola(SIZES, np.full(len(SIZES), math.log(300.0)))
    assert (plateau.min_steps, plateau.min_examples) == (pytest.approx(300.0), 0.0)
    np.testing.assert_allclose(predicted(SIZES, perfect), np.log(1e4 / SIZES))


def test_noise_free_sweep_has_a_point_interval() -> None:
    truth = Truth(lr_at_1=1e-3, lr_power=0.0)
    fit = fit_curve(SIZES, tables(truth, SIZES, 3, lrs=(5e-4, 1e-3, 2e-3)))
    low, high = interval(fit.resampled.min_examples / fit.resampled.min_steps, 0.95)
    assert low == pytest.approx(7381 / 175, rel=1e-6)
    assert high == pytest.approx(7381 / 175, rel=1e-6)
    assert fit.residual_rms < 1e-9


def test_same_seed_same_numbers() -> None:
    data = tables(Truth(noise=0.08), SIZES, 3)
    first, second, other = (fit_curve(SIZES, data, resamples=300, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.resampled.min_steps, second.resampled.min_steps)
    assert not np.array_equal(first.resampled.min_steps, other.resampled.min_steps)


def test_two_batch_sizes_leave_no_interval() -> None:
    fit = fit_curve([8, 64], tables(Truth(noise=0.05), (8, 64), 3))
    assert fit.resampled_log_steps.shape == (0, 2)
    assert interval(fit.resampled.min_steps, 0.95) == (None, None)
    assert fit.interval_method.startswith("none")


def test_the_interval_says_what_it_was_made_from() -> None:
    assert "one seed" in fit_curve(SIZES, tables(Truth(noise=0.05), SIZES, 1)).interval_method
    assert "seeds" in fit_curve(SIZES, tables(Truth(noise=0.05), SIZES, 2)).interval_method


def test_selection_of_the_learning_rate_widens_the_interval() -> None:
    """Two learning rates that are nearly tied but differ between seeds: choosing between them is part of the noise."""
    rng = np.random.default_rng(3)
    noisy = [np.exp(np.log(175 + 7381 / size) + 0.1 * rng.standard_normal((4, 5))) for size in SIZES]
    fit = fit_curve(SIZES, noisy)
    assert fit.resampled_log_steps.std(axis=0).min() > 0.01


@pytest.mark.parametrize(("low", "high"), [(0.0, math.inf), (1.0, math.inf), (0.0, 5.0)])
def test_open_ends_are_none(low: float, high: float) -> None:
    values = np.array([low] * 50 + [2.0] * 100 + [high] * 50)
    assert interval(values, 0.95) == (low or None, None if high == math.inf else high)


def test_an_interval_of_nothing_but_infinity_is_open() -> None:
    assert interval(np.full(100, math.inf), 0.95) == (None, None)


def test_definitions_are_functions_of_the_curve() -> None:
    assert "pareto" in DEFINITIONS.names()
    sample = Sample(
        SIZES.astype(float), np.log(175 + 7381 / SIZES)[None], np.array([175.0, 0.0]), np.array([7381.0, 5.0])
    )
    assert build("pareto")([sample]).tolist() == [pytest.approx(7381 / 175), math.inf]
