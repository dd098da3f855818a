"""Whether a fit can be believed: lack of fit, and what single batch sizes decide. Rates are in test_coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from analysis.config import AnalysisConfig
from analysis.estimate.fitting import Fit, fit_curve
from analysis.estimate.fitting.data import Trials
from analysis.estimate.fitting.exponent import Belief
from analysis.estimate.fitting.least_squares import fit_curves
from analysis.estimate.fitting.misfit import Misfit, grid_variance
from analysis.estimate.fitting.quality import leave_one_out
from tests.factories import Truth, tables

SIZES = np.array([2, 4, 8, 16, 32, 64, 128, 256])
EXACT = (5e-4, 1e-3, 2e-3)
HELD = Belief(np.zeros(1), np.full(1, 1e-9), np.ones(1))
"""The hyperbola, all but."""


def trials(truth: Truth, seeds: int = 3, **options: object) -> list[Trials]:
    return [Trials.of(table) for table in tables(truth, SIZES.tolist(), seeds, **options)]


def of_fit(fit: Fit) -> Misfit:
    assert fit.misfit is not None
    return fit.misfit


def test_the_textbook_f_test() -> None:
    """One learning rate: no choice, no grid; the bootstrap variance of a mean becomes the usual one with many draws (it
    is known to 2 % with 8 batch sizes of 4000 draws). With the exponent held all six degrees of freedom are left."""
    rng = np.random.default_rng(1)
    data = [Trials.of(np.exp(np.log(175 + 7381 / size) + 0.08 * rng.standard_normal((1, 4)))) for size in SIZES]
    fit = fit_curve(SIZES, data, config=AnalysisConfig(resamples=4000), belief=HELD)
    logs = np.log(np.concatenate([table.steps for table in data]))
    fitted = fit.estimate.log_steps(SIZES)
    pure = ((logs - logs.mean(axis=1, keepdims=True)) ** 2).sum() / (len(SIZES) * 3)
    squares = ((logs.mean(axis=1) - fitted) ** 2).sum() / (len(SIZES) - 2)
    found = of_fit(fit)
    assert found.probability == pytest.approx(stats.f.sf(4 * squares / pure, len(SIZES) - 2, len(SIZES) * 3), rel=0.1)
    assert found.excess_rms == pytest.approx(math.sqrt(max(squares - pure / 4, 0.0)), rel=0.1, abs=1e-3)


def test_a_free_exponent_costs_a_degree_of_freedom() -> None:
    """In so far as the data, not the belief, decide it."""
    data = trials(Truth(noise=0.05))
    wide = Belief(np.zeros(1), np.full(1, 4.0), np.ones(1))
    freedom = [fit.freedom - fit.seed_freedom for fit in (fit_curve(SIZES, data, belief=each) for each in (HELD, wide))]
    assert 5.5 < freedom[0] < 6.0  # even this belief gives way a little
    assert freedom[1] == pytest.approx(5.0, abs=0.01)


@pytest.mark.parametrize(("noise", "seeds"), [(0.01, 3), (0.01, 8), (0.1, 400)])
def test_the_effect_size_is_the_distance_of_the_points_whatever_the_noise(noise: float, seeds: int) -> None:
    """Batch sizes alternately 4 % slower and faster, which no smooth curve takes up: the squares of eight points over
    the degrees of freedom that the curve leaves. Seeds move it by two of their standard errors at most."""
    rng = np.random.default_rng(0)
    logs = np.log(175 + 7381 / SIZES) + 0.04 * (-1.0) ** np.arange(len(SIZES))
    data = [Trials.of(np.exp(at + noise * rng.standard_normal((1, seeds)))) for at in logs]
    fit = fit_curve(SIZES, data, config=AnalysisConfig(resamples=500))
    found, freedom = of_fit(fit), fit.freedom - fit.seed_freedom
    expected = 0.04 * math.sqrt(len(SIZES) / freedom)
    assert found.excess_rms == pytest.approx(expected, abs=0.003 + 2 * noise / math.sqrt(len(SIZES) * seeds))
    assert found.probability < 1e-3


def test_undefined_without_pure_error_or_residuals() -> None:
    one, three = trials(Truth(noise=0.05), 1), trials(Truth(noise=0.05))
    assert fit_curve(SIZES, one, config=AnalysisConfig(resamples=100)).misfit is None
    assert fit_curve(SIZES[:2], three[:2]).misfit is None
    assert leave_one_out(fit_curve(SIZES[:3], three[:3], config=AnalysisConfig(resamples=100)), three[:3]) is None


def test_noise_free_sweeps_fit() -> None:
    data = trials(Truth(lr_power=0.0), lrs=EXACT)
    assert of_fit(fit_curve(SIZES, data, config=AnalysisConfig(resamples=100))) == Misfit(pytest.approx(1.0), 0.0)


def test_the_grid_scatters_as_much_as_its_variance_says() -> None:
    """Optima anywhere between the points: 1500 draws know the variance of the squares to about 3 %."""
    rng = np.random.default_rng(0)
    curvature, step = 0.6, math.log(2)
    offset = rng.uniform(-step / 2, step / 2, 1500)
    penalty = 0.5 * curvature * (np.arange(-3, 4)[None] * step - offset[:, None]) ** 2
    measured = penalty.min(axis=1).var()
    whole = [Trials.of(table) for table in np.exp(penalty)[..., None]]
    assert grid_variance(whole) == pytest.approx(measured, rel=0.1)


def test_an_edge_or_a_lonely_learning_rate_says_nothing_about_the_grid() -> None:
    arrays = (np.array([[100.0]]), np.array([[100.0], [120.0]]), np.full((3, 1), math.nan))
    assert grid_variance([Trials.of(table) for table in arrays]) == 0.0


def test_leaving_out_is_refitting_the_rest() -> None:
    """With the same belief of the exponent."""
    data = trials(Truth(noise=0.08))
    fit = fit_curve(SIZES, data, config=AnalysisConfig(resamples=100))
    found = leave_one_out(fit, data)
    assert found is not None
    for place, value in enumerate(found.critical):
        kept = np.arange(len(SIZES)) != place
        rest = fit_curves(
            SIZES[kept], fit.log_steps[None, kept], fit.weights[kept], exponent=fit.exponent, deviation=fit.deviation
        )
        assert value == pytest.approx(float(rest.critical[0]), rel=1e-6)
    assert found.range == (found.critical.min(), found.critical.max())
    assert np.isfinite(found.misfit).all()


def test_a_batch_size_that_bounds_alone_leaves_the_range_open() -> None:
    """Without the largest batch size the rest scales perfectly."""
    sizes = np.array([1, 2, 4, 4096])
    data = [Trials.of(np.array([[1e6 / size + 175]])) for size in sizes]
    found = leave_one_out(fit_curve(sizes, data, config=AnalysisConfig(resamples=100), belief=HELD), data)
    assert found is not None
    assert found.range[1] is None


def test_one_bad_batch_size_is_told_from_another_curve() -> None:
    data = trials(Truth(noise=0.04, lr_power=0.0), lrs=EXACT)
    data[3] = Trials.of(data[3].steps * math.exp(0.5))
    fit = fit_curve(SIZES, data, config=AnalysisConfig(resamples=300))
    found = leave_one_out(fit, data)
    assert found is not None
    assert of_fit(fit).probability < 0.01
    assert found.misfit.argmax() == 3
    assert found.misfit[3] > 0.05


@pytest.mark.parametrize("exponent", [0.7, 1.3])
def test_another_exponent_is_no_misfit(exponent: float) -> None:
    """What used to speak against the hyperbola is in the curve now."""
    data = trials(Truth(noise=0.04, lr_power=0.0, exponent=exponent), lrs=EXACT)
    assert of_fit(fit_curve(SIZES, data, config=AnalysisConfig(resamples=300))).probability > 0.05
    assert of_fit(fit_curve(SIZES, data, config=AnalysisConfig(resamples=300), belief=HELD)).probability > 0.05
