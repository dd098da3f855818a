"""The fit with its bootstrap: what an interval is made of, and what is said where it is open."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm, t

from analysis.config import AnalysisConfig
from analysis.estimate.fitting import Fit, fit_curve, free_exponent, interval
from analysis.estimate.fitting.data import Trials
from analysis.estimate.fitting.exponent import ALONE, SPREAD, Belief
from analysis.estimate.fitting.form_fits import pooled_deviation, widening
from analysis.estimate.fitting.least_squares import information
from tests.factories import Truth, tables

SIZES = np.array([2, 4, 8, 16, 32, 64, 128, 256])
EXACT = (5e-4, 1e-3, 2e-3)


def trials(truth: Truth, sizes: np.ndarray = SIZES, seeds: int = 3, seed: int = 0) -> list[Trials]:
    return [Trials.of(table) for table in tables(truth, sizes.tolist(), seeds, seed=seed)]


def noise_free(exponent: float = 1.0, sizes: np.ndarray = SIZES, **options: object) -> Fit:
    truth = Truth(lr_at_1=1e-3, lr_power=0.0, exponent=exponent)
    data = [Trials.of(table) for table in tables(truth, sizes.tolist(), 3, lrs=EXACT)]
    return fit_curve(sizes, data, config=AnalysisConfig(resamples=200), **options)


@pytest.mark.parametrize("exponent", [0.7, 1.0, 1.3])
def test_noise_free_sweep_has_a_point_interval(exponent: float) -> None:
    """Without noise the data alone decide the exponent, whatever its prior; the rounds that find noise and
    exponent in turns leave 2e-5 of the belief."""
    fit = noise_free(exponent)
    for name, truth in (("critical", 7381 / 175), ("exponent", exponent), ("min_steps", 175.0)):
        low, high = interval(getattr(fit.resampled_power, name), 0.95)
        assert low == pytest.approx(truth, rel=1e-4)
        assert high == pytest.approx(truth, rel=1e-4)
    assert fit.residual_rms < 1e-5


def test_without_noise_two_forms_are_left() -> None:
    """The power law, and the same points with the fewest steps at the largest batch size: twice 175 (1 + 40/256) steps
    are taken at 40 / (1 + 80/256). They share the resamples as they are believed."""
    fit = fit_curve(SIZES, around(175 * (1 + 40 / SIZES), 0.0), config=AnalysisConfig(resamples=1000))
    left = {form.form: form.share for form in fit.forms if form.share > 1e-6}
    assert [form.levelled for form in left] == [False, True]
    believed = [form.belief for form in left]
    assert list(left.values()) == pytest.approx([belief / sum(believed) for belief in believed], abs=1e-6)
    assert np.bincount(fit.form_of) / 1000 == pytest.approx(list(left.values()), abs=1e-3)
    power, levelled = (fit.resampled.critical[fit.form_of == place] for place in (0, 1))
    assert power == pytest.approx(40.0, rel=1e-4)
    assert levelled == pytest.approx(40 / (1 + 80 / 256), rel=1e-4)


def test_the_hyperbola_beside_the_curve() -> None:
    """The same where the curve is one; elsewhere what a fit with the exponent held at 1 gives."""
    fit = noise_free()
    for name in ("min_steps", "min_examples", "critical"):
        assert getattr(fit.hyperbola, name) == pytest.approx(getattr(fit.estimate, name), rel=1e-6)
    bent = noise_free(0.7)
    assert bent.hyperbola.exponent == 1.0
    assert (bent.resampled_hyperbola.exponent == 1.0).all()
    assert bent.hyperbola.critical < 0.9 * bent.estimate.critical


def test_the_hyperbola_beside_is_resampled_at_its_own_exponent_and_as_widely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six degrees of freedom: Student's t is 1.25 times the normal quantile."""
    sizes = SIZES[1::2]
    data = trials(Truth(noise=0.05), sizes, seeds=2)
    found = fit_curve(sizes, data)
    monkeypatch.setattr("analysis.estimate.fitting.widening", lambda freedom, confidence: 1.0)
    narrow, wide = (fit.resampled_hyperbola for fit in (fit_curve(sizes, data), found))
    assert (wide.exponent == 1).all()
    assert wide.log_min_steps.std() > 1.1 * narrow.log_min_steps.std()


def test_resamples_are_of_the_batch_sizes_that_reached_the_target() -> None:
    missed = Trials.of(np.full((1, 3), np.nan), 100.0)
    fit = fit_curve(SIZES, [missed, *trials(Truth(noise=0.05), SIZES[1:])], config=AnalysisConfig(resamples=100))
    assert fit.resampled_log_steps.shape == fit.measured_resamples.shape == (100, len(SIZES) - 1)


def test_same_seed_same_numbers() -> None:
    data = trials(Truth(noise=0.08))
    first, second, other = (
        fit_curve(SIZES, data, config=AnalysisConfig(resamples=300, seed=seed)) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first.resampled.min_steps, second.resampled.min_steps)
    assert not np.array_equal(first.resampled.min_steps, other.resampled.min_steps)


def test_two_batch_sizes_leave_no_interval() -> None:
    fit = fit_curve([8, 64], trials(Truth(noise=0.05), np.array([8, 64])))
    assert fit.resampled_log_steps.shape == (0, 2)
    assert interval(fit.resampled.min_steps, 0.95) == (None, None)
    assert fit.interval_method.startswith("none")
    assert fit.estimate.exponent == pytest.approx(1.0)


@pytest.mark.parametrize("noise", [0.05, 0.4])
def test_refits_scatter_in_the_exponent_as_data_and_belief_do(noise: float) -> None:
    """Three batch sizes, whose data tell P of the log exponent: refits are means, weighed by P and Q = 1/SPREAD^2, of
    data scattered by P^-1/2 (times Student's t over the normal quantile) and a draw scattered by Q^-1/2."""
    sizes = np.array([4, 32, 256])
    data = trials(Truth(noise=noise), sizes)
    assert free_exponent(sizes, data) is None
    fit = fit_curve(sizes, data, config=AnalysisConfig(resamples=2000))
    known = information(sizes, fit.power, fit.weights) / fit.forms[0].deviation ** 2
    p, q = known[1, 1] - known[0, 1] ** 2 / known[0, 0], SPREAD**-2
    expected = math.sqrt((widening(fit.forms[0].freedom, 0.95) ** 2 * p + q) / (p + q) ** 2)
    assert np.log(fit.resampled_power.exponent).std() == pytest.approx(expected, rel=0.15)
    sure = fit_curve(
        sizes, data, config=AnalysisConfig(resamples=2000), belief=Belief(np.zeros(1), np.full(1, 1e-8), np.ones(1))
    )
    assert np.log(sure.resampled_power.exponent).std() < 1e-3


def test_the_belief_draws_the_exponent_towards_one() -> None:
    """Against the free fit of the same noisy data: nearer to 1 in every sweep that the belief covers."""
    for seed in range(5):
        data = trials(Truth(noise=0.15), seed=seed)
        free = free_exponent(SIZES, data)
        assert free is not None
        fit = fit_curve(SIZES, data, config=AnalysisConfig(resamples=100))
        assert abs(math.log(fit.estimate.exponent)) < 0.95 * abs(free.log_mean)
        assert math.log(fit.estimate.exponent) * free.log_mean > 0


def test_a_curve_far_from_what_is_believed_is_followed() -> None:
    """At exponent 0.5, 4.6 spreads away, a belief that did not give way would draw it up."""
    fit = fit_curve(SIZES, trials(Truth(noise=0.06, exponent=0.5), seed=1), config=AnalysisConfig(resamples=400))
    low, high = interval(fit.resampled_power.exponent, 0.95)
    assert low is not None
    assert high is not None
    assert low < 0.5 < high < 0.8
    assert float(fit.exponent.variance) > 4 * SPREAD**2


def test_a_shared_belief_narrows_and_a_wider_one_widens() -> None:
    data = trials(Truth(noise=0.1))
    widths = []
    for variance in (0.01**2, SPREAD**2, 0.5**2):
        fit = fit_curve(
            SIZES,
            data,
            belief=Belief(np.zeros(1), np.full(1, variance), np.ones(1)),
            config=AnalysisConfig(resamples=500),
        )
        low, high = interval(fit.resampled.critical, 0.95)
        widths.append(math.log((high or math.inf) / (low or 0.0)))
    assert widths[0] < 0.8 * widths[1] < 0.8 * widths[2]


def test_the_interval_says_what_it_was_made_from() -> None:
    assert "one seed" in fit_curve(SIZES, trials(Truth(noise=0.05), seeds=1)).interval_method
    assert "seeds" in fit_curve(SIZES, trials(Truth(noise=0.05), seeds=2)).interval_method


def test_selection_of_the_learning_rate_widens_the_interval() -> None:
    """Two learning rates that are nearly tied but differ between seeds: choosing between them is part of the noise."""
    rng = np.random.default_rng(3)
    noisy = [Trials.of(np.exp(np.log(175 + 7381 / size) + 0.1 * rng.standard_normal((4, 5)))) for size in SIZES]
    fit = fit_curve(SIZES, noisy)
    assert fit.resampled_log_steps.std(axis=0).min() > 0.01


def test_resamples_are_as_wide_as_students_t_asks() -> None:
    """One learning rate, three seeds: the standard deviation of a mean of three, times t over the normal quantile; 2000
    draws know it to 1.6 %, and the mean of eight squares better. Batch sizes differ by their own seeds, drawn towards
    what all of them say: their variances count for 2 degrees of freedom of 6."""
    rng = np.random.default_rng(0)
    data = [Trials.of(np.exp(np.log(175 + 7381 / size) + 0.1 * rng.standard_normal((1, 3)))) for size in SIZES]
    fit = fit_curve(SIZES, data)
    assert fit.seed_freedom == 16
    assert 4 < fit.freedom - fit.seed_freedom < 6
    expected = fit.deviation / math.sqrt(3) * t.ppf(0.975, fit.freedom) / norm.ppf(0.975)
    squares = fit.resampled_log_steps.var(axis=0)
    assert squares.mean() == pytest.approx(expected**2, rel=0.05)
    own = np.array([np.log(table.steps[0]).var(ddof=1) for table in data])
    np.testing.assert_allclose(squares, expected**2 * (4 + 2 * own / own.mean()) / 6, rtol=0.15)
    assert widening(5.0, 0.95) == pytest.approx(t.ppf(0.975, 5) / norm.ppf(0.975))
    assert widening(1e9, 0.8) == pytest.approx(1.0)


def test_noise_that_grows_with_the_batch_size_is_drawn_so() -> None:
    """From 2 to 15 %: with half of the weight on what all of them say the largest still scatter 1.5 times as much."""
    rng = np.random.default_rng(1)
    noise = np.geomspace(0.02, 0.15, len(SIZES))
    curve = np.log(175 + 7381 / SIZES)
    data = [Trials.of(np.exp(c + n * rng.standard_normal((1, 5)))) for c, n in zip(curve, noise, strict=True)]
    scatter = fit_curve(SIZES, data, config=AnalysisConfig(resamples=500)).resampled_log_steps.std(axis=0)
    assert scatter[-2:].mean() > 1.5 * scatter[:2].mean()


@pytest.mark.parametrize(("low", "high"), [(0.0, math.inf), (1.0, math.inf), (0.0, 5.0)])
def test_open_ends_are_none(low: float, high: float) -> None:
    values = np.array([low] * 50 + [2.0] * 100 + [high] * 50)
    assert interval(values, 0.95) == (low or None, None if high == math.inf else high)


def test_an_interval_of_nothing_but_infinity_is_open() -> None:
    assert interval(np.full(100, math.inf), 0.95) == (None, None)


def test_alone_is_centred_at_the_hyperbola() -> None:
    assert (ALONE.whole.log_mean, ALONE.whole.variance) == (0.0, pytest.approx(SPREAD**2))


@pytest.mark.parametrize(
    ("squares", "freedom", "deviation", "together"),
    [(0.09, 1.0, 0.3, 5.0), (0.01, 1.0, math.sqrt((0.01 + 4 * 0.04) / 5), 5.0), (0.5, 0.0, 0.2, 4.0)],
)
def test_residuals_count_alone_where_they_are_larger_than_seeds_show(
    squares: float, freedom: float, deviation: float, together: float
) -> None:
    assert pooled_deviation(squares, freedom, 0.04, 4) == (pytest.approx(deviation), together)


def around(steps: np.ndarray, deviation: float, seeds: int = 3) -> list[Trials]:
    """Seeds evenly spread around the steps of every batch size, so that nothing but the form moves a fit."""
    spread = deviation * np.linspace(-1.0, 1.0, seeds)
    return [Trials.of(np.exp(at + spread)[None]) for at in np.log(steps)]


def ends(steps: np.ndarray, deviation: float, seeds: int = 3) -> tuple[Fit, float, float]:
    fit = fit_curve(SIZES, around(steps, deviation, seeds), config=AnalysisConfig(resamples=400))
    low, high = interval(fit.resampled.critical, 0.95)
    assert low is not None
    assert high is not None
    return fit, low, high


SHARP = 175 * (1 + (2**1.5 - 1) * (40 / SIZES) ** 1.5) ** (1 / 1.5)
"""Takes twice its fewest steps at 40, too, and turns from one asymptote to the other faster than the hyperbola."""
SHIFTED = 175 * (1 + 40 / SIZES) * np.where(SIZES >= 64, 1.1, 1.0)
"""The hyperbola, but for large batches, which ran on another footing."""


def test_points_of_another_knee_are_read_by_it() -> None:
    """The power law reads 51. With much noise it stays the likeliest, and the interval is wide enough to hold 40."""
    fit, low, high = ends(SHARP, 0.02)
    assert float(fit.estimate.knee) == 1.5
    assert fit.estimate.critical == pytest.approx(40.0, rel=1e-3)
    assert fit.power.critical == pytest.approx(51.0, rel=0.01)
    assert low < 40 < high < 51
    fit, low, high = ends(SHARP, 0.2)
    assert float(fit.estimate.knee) == 1.0
    assert low < 40 < high


def test_residuals_beyond_the_seeds_count_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too few to be off the curve, enough to move B_crit: the estimate stays, the interval reaches the truth."""
    fit, low, high = ends(SHIFTED, 0.02)
    wide = interval(fit.resampled_power.critical, 0.95)
    assert fit.misfit is not None
    assert fit.misfit.probability < 0.05
    assert fit.misfit.excess_rms < 0.05
    assert low < 40 < high
    assert "all residuals together" in fit.interval_method
    monkeypatch.setattr("analysis.estimate.fitting.form_fits.ALIKE", 0.0)
    plain, *_ = ends(SHIFTED, 0.02)
    narrow = interval(plain.resampled_power.critical, 0.95)
    assert not narrow[0] < 40 < narrow[1]
    assert fit.estimate == plain.estimate
    left = plain.freedom - plain.seed_freedom
    assert fit.deviation == pytest.approx(plain.deviation * math.sqrt(left))
    assert math.log(wide[1] / wide[0]) == pytest.approx(math.log(narrow[1] / narrow[0]) * math.sqrt(left), rel=0.15)
    assert "together" not in plain.interval_method


@pytest.mark.parametrize(("deviation", "seeds"), [(0.2, 3), (0.0, 1)])
def test_residuals_that_seeds_explain_or_cannot_count_as_ever(
    monkeypatch: pytest.MonkeyPatch, deviation: float, seeds: int
) -> None:
    fit, *found = ends(SHARP, deviation, seeds)
    monkeypatch.setattr("analysis.estimate.fitting.form_fits.ALIKE", 0.0)
    plain, *narrow = ends(SHARP, deviation, seeds)
    assert found == narrow
    assert fit.interval_method == plain.interval_method


def test_three_batch_sizes_leave_no_more_than_one_residual() -> None:
    """An interval is never narrower for it."""
    data = around(np.array([900.0, 400.0, 390.0]), 0.001)
    fit = fit_curve(SIZES[:3], data, config=AnalysisConfig(resamples=200))
    assert fit.misfit is not None
    assert "together" not in fit.interval_method
