"""Whether a fit can be believed: lack of fit, and what single batch sizes decide. Rates are in test_coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from analysis.estimate.fitting import fit_curve, fit_hyperbola
from analysis.estimate.fitting.quality import grid_variance, lack_of_fit, leave_one_out
from tests.factories import Truth, tables

SIZES = np.array([2, 4, 8, 16, 32, 64, 128, 256])
EXACT = (5e-4, 1e-3, 2e-3)


def test_the_textbook_f_test() -> None:
    """One learning rate: no choice, no grid; the bootstrap variance of a mean becomes the usual one with many draws (it
    is known to 2 % with 8 batch sizes of 4000 draws)."""
    rng = np.random.default_rng(1)
    data = [np.exp(np.log(175 + 7381 / size) + 0.08 * rng.standard_normal((1, 4))) for size in SIZES]
    fit = fit_curve(SIZES, data, resamples=4000)
    logs = np.log(np.concatenate(data))
    fitted = np.log(fit.estimate.min_steps + fit.estimate.min_examples / SIZES)
    pure = ((logs - logs.mean(axis=1, keepdims=True)) ** 2).sum() / (len(SIZES) * 3)
    statistic = 4 * ((logs.mean(axis=1) - fitted) ** 2).sum() / (len(SIZES) - 2) / pure
    assert lack_of_fit(fit, data) == pytest.approx(stats.f.sf(statistic, len(SIZES) - 2, len(SIZES) * 3), rel=0.1)


def test_undefined_without_pure_error_or_residuals() -> None:
    one, three = tables(Truth(noise=0.05), SIZES, 1), tables(Truth(noise=0.05), SIZES, 3)
    assert lack_of_fit(fit_curve(SIZES, one, resamples=100), one) is None
    assert lack_of_fit(fit_curve(SIZES[:2], three[:2]), three[:2]) is None
    assert leave_one_out(fit_curve(SIZES[:3], three[:3], resamples=100), three[:3]) is None


def test_noise_free_sweeps_fit() -> None:
    data = tables(Truth(lr_power=0.0), SIZES, 3, lrs=EXACT)
    assert lack_of_fit(fit_curve(SIZES, data, resamples=100), data) == pytest.approx(1.0)


def test_the_grid_scatters_as_much_as_its_variance_says() -> None:
    """Optima anywhere between the points: 1500 draws know the variance of the squares to about 3 %."""
    rng = np.random.default_rng(0)
    curvature, step = 0.6, math.log(2)
    offset = rng.uniform(-step / 2, step / 2, 1500)
    penalty = 0.5 * curvature * (np.arange(-3, 4)[None] * step - offset[:, None]) ** 2
    measured = penalty.min(axis=1).var()
    assert grid_variance(list(np.exp(penalty)[..., None])) == pytest.approx(measured, rel=0.1)


def test_an_edge_or_a_lonely_learning_rate_says_nothing_about_the_grid() -> None:
    assert grid_variance([np.array([[100.0]]), np.array([[100.0], [120.0]]), np.full((3, 1), math.nan)]) == 0.0


def test_leaving_out_is_refitting_the_rest() -> None:
    data = tables(Truth(noise=0.08), SIZES, 3)
    fit = fit_curve(SIZES, data, resamples=100)
    found = leave_one_out(fit, data)
    assert found is not None
    for place, value in enumerate(found.critical):
        kept = np.arange(len(SIZES)) != place
        rest = fit_hyperbola(SIZES[kept], fit.log_steps[kept], fit.weights[kept])
        assert value == pytest.approx(float(rest.min_examples / rest.min_steps), rel=1e-9)
    assert found.range == (found.critical.min(), found.critical.max())
    assert np.isfinite(found.lack_of_fit).all()


def test_a_batch_size_that_bounds_alone_leaves_the_range_open() -> None:
    """Without the largest batch size the rest scales perfectly."""
    sizes = np.array([1, 2, 4, 4096])
    fit = fit_curve(sizes, [np.array([[1e6 / size + 175]]) for size in sizes], resamples=100)
    found = leave_one_out(fit, [])
    assert found is not None
    assert found.range[1] is None


def test_one_bad_batch_size_is_told_from_another_curve() -> None:
    data = tables(Truth(noise=0.04, lr_power=0.0), SIZES, 3, lrs=EXACT)
    data[3] = data[3] * math.exp(0.5)
    fit = fit_curve(SIZES, data, resamples=300)
    found = leave_one_out(fit, data)
    assert found is not None
    assert lack_of_fit(fit, data) < 0.01
    assert found.lack_of_fit.argmax() == 3
    assert found.lack_of_fit[3] > 0.05
