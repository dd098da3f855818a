"""Seeds that did not reach the target enter as bounds: exactly as the likelihood says, and only where they matter."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from analysis.config import AnalysisConfig
from analysis.estimate.estimates import answers
from analysis.estimate.fitting import fit_curve, interval
from analysis.estimate.fitting.data import Data, Trials, gather, hazard, observed
from analysis.estimate.fitting.least_squares import HYPERBOLA
from analysis.estimate.study_fits import tables as tables_of
from analysis.read.results import load
from tests.factories import Truth, sweep, tables
from tests.references.fitting import fit_by_likelihood, tobit_cost

SIZES = np.array([2, 4, 8, 16, 32, 64, 128, 256])
NAN = math.nan


def drawn(seed: int, seeds: int = 3) -> tuple[Data, tuple[np.ndarray, np.ndarray, np.ndarray, float]]:
    """Seeds around a hyperbola, some batch sizes with a budget near the curve: for the fit, and one by one."""
    rng = np.random.default_rng(seed)
    sizes = SIZES[: rng.integers(4, 9)]
    critical = math.exp(rng.uniform(math.log(sizes[0]), math.log(sizes[-1])))
    curve = np.log(100 * (1 + critical / sizes))
    sigma = rng.uniform(0.03, 0.15)
    logs = curve[:, None] + sigma * rng.standard_normal((len(sizes), seeds))
    budget = np.full(len(sizes), math.inf)
    tight = rng.choice([0, len(sizes) // 2, len(sizes) - 1], rng.integers(1, 3), replace=False)
    budget[tight] = curve[tight] + rng.uniform(-0.3, 0.3, len(tight))
    missed = logs > budget[:, None]
    hit = (~missed).sum(axis=1)
    means = np.where(missed, 0.0, logs).sum(axis=1) / np.maximum(hit, 1)
    place = np.repeat(np.arange(len(sizes)), missed.sum(axis=1))
    one_by_one = (np.repeat(sizes, seeds), np.minimum(logs, budget[:, None]).ravel(), missed.ravel(), sigma)
    return Data(sizes.astype(float), means, hit.astype(float), place, budget[place]), one_by_one


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31))
def test_equals_the_maximum_of_the_likelihood(seed: int) -> None:
    """The twin stops at 1e-12 in the likelihood, which leaves parameters open to about 1e-5."""
    data, one_by_one = drawn(seed)
    if data.reached.sum() < 3:
        return
    found = data.fit(HYPERBOLA, one_by_one[-1])
    a, b = float(found.min_steps[0]), float(found.min_examples[0])
    if a == 0 or b == 0:
        return
    twin = fit_by_likelihood(*one_by_one, start=(1.05 * a, 0.95 * b))
    assert tobit_cost(np.log([a, b]), *one_by_one) <= tobit_cost(np.log(twin), *one_by_one) + 1e-8
    assert (a, b) == pytest.approx(twin, rel=1e-4)


def test_the_hazard_far_out() -> None:
    z = np.array([-30.0, -3.0, 0.0, 3.0, 30.0])
    np.testing.assert_allclose(hazard(z), np.exp(norm.logpdf(z) - norm.logsf(z)), rtol=1e-10)


def censored_tables(limit: float, place: int = 0) -> list[Trials]:
    """A sweep whose batch size at ``place`` has run ``limit`` steps at every learning rate and seed."""
    data = [Trials.of(table) for table in tables(Truth(noise=0.05), SIZES, 3)]
    shape = data[place].steps.shape
    data[place] = Trials.of(np.full(shape, NAN), np.full(shape, limit))
    return data


def test_a_bound_that_the_fit_satisfies_by_far_changes_nothing() -> None:
    """The curve is at 3866 steps there and the noise is 5 %: a bound of 1000 is 27 standard deviations away."""
    data = censored_tables(1000.0)
    plain, bounded = fit_curve(SIZES[1:], data[1:]), fit_curve(SIZES, data)
    # noise and exponent are found in turns, and with bounds there are more of them
    for name in ("min_steps", "critical", "exponent"):
        assert getattr(bounded.power, name) == pytest.approx(getattr(plain.power, name), rel=2e-4)
        its, others = (getattr(fit.resampled_power, name) for fit in (bounded, plain))
        np.testing.assert_allclose(its, others, rtol=0.02)
    assert [form.share for form in bounded.forms] == pytest.approx([form.share for form in plain.forms], abs=0.01)
    assert bounded.hyperbola.min_steps == pytest.approx(plain.hyperbola.min_steps, rel=1e-9)
    assert bounded.hyperbola.min_examples == pytest.approx(plain.hyperbola.min_examples, rel=1e-9)
    # the draws are filled up to the noise around the curve, which is found in turns
    np.testing.assert_allclose(bounded.resampled_hyperbola.min_steps, plain.resampled_hyperbola.min_steps, rtol=2e-3)
    assert bounded.batch_sizes.tolist() == plain.batch_sizes.tolist()


def test_a_bound_that_the_fit_breaks_lifts_it() -> None:
    data = censored_tables(6000.0)
    plain, bounded = fit_curve(SIZES[1:], data[1:]), fit_curve(SIZES, data)
    critical = [float(fit.hyperbola.critical) for fit in (plain, bounded)]
    assert critical[1] > 1.1 * critical[0]
    at = [float(fit.estimate.log_steps(SIZES[:1])[0]) for fit in (plain, bounded)]
    assert at[1] > at[0] + 0.1
    assert bounded.deviation > plain.deviation


def test_without_bounds_a_curve_of_the_fast_seeds_alone_is_too_low() -> None:
    """With a budget in the middle of the seeds, those that are in time are 0.8 standard deviations early on average."""
    truth, at = Truth(noise=0.15, common=1.0, lr_power=0.0), 0
    limit = 175 + 7381 / SIZES[at]
    shift = []
    for seed in range(10):
        found = tables(truth, SIZES, 5, lrs=(5e-4, 1e-3, 2e-3), prune_factor=None, seed=seed)
        data = [Trials.of(table) for table in found]
        late = data[at].steps > limit
        steps = np.where(late, NAN, data[at].steps)
        if not np.isfinite(steps).any():
            continue
        data[at] = Trials.of(steps)
        ignored = fit_curve(SIZES, data, config=AnalysisConfig(resamples=100))
        data[at] = Trials.of(steps, np.where(late, limit, NAN))
        used = fit_curve(SIZES, data, config=AnalysisConfig(resamples=100))
        shift.append((ignored.log_steps[at], used.log_steps[at]))
    ignored_mean, used_mean = np.mean(shift, axis=0) - math.log(limit)
    error = np.std([used for _, used in shift]) / math.sqrt(len(shift))
    assert ignored_mean < -0.07
    assert abs(used_mean) < 4 * error


def test_what_is_known_of_a_batch_size_that_nobody_finished() -> None:
    """The bound is that of the learning rate that was given up first: the best one may be any of them."""
    none = np.full((3, 2), NAN)
    bound = np.array([[500.0, 400.0], [300.0, 450.0], [NAN, NAN]])
    logs, bounds = observed(Trials.of(none, bound))
    assert len(logs) == 0
    np.testing.assert_allclose(np.exp(bounds), [300.0, 450.0])
    assert [len(part) for part in observed(Trials.of(none))] == [0, 0]


def test_a_seed_that_missed_at_the_best_learning_rate_is_a_bound_and_a_diverged_one_is_not() -> None:
    steps = np.array([[100.0, NAN, NAN], [NAN, NAN, NAN]])
    bound = np.array([[NAN, 130.0, NAN], [500.0, 500.0, 500.0]])
    logs, bounds = observed(Trials.of(steps, bound))
    assert np.exp(logs).tolist() == pytest.approx([100.0])
    assert np.exp(bounds).tolist() == pytest.approx([130.0])


def test_expectation_of_a_seed_beyond_its_bound() -> None:
    """Against a million draws: standard error 0.1 / 1000."""
    draws = 5.0 + 0.1 * np.random.default_rng(0).standard_normal(1_000_000)
    data = Data(np.array([8.0]), np.array([0.0]), np.array([0.0]), np.array([0]), np.array([5.05]))
    mean = data.completed(np.array([[5.0]]), 0.1)
    assert float(mean[0, 0]) == pytest.approx(draws[draws > 5.05].mean(), abs=1e-3)


def test_leaving_out_a_batch_size_takes_its_bounds_along() -> None:
    sizes, place, bounds = np.array([2.0, 4.0, 8.0]), np.array([1, 1, 2]), np.array([1.0, 2.0, 3.0])
    data = Data(sizes, np.zeros(3), np.array([1.0, 0.0, 1.0]), place, bounds)
    rest = data.without(1)
    assert rest.batch_sizes.tolist() == [2.0, 8.0]
    assert (rest.place.tolist(), rest.bounds.tolist()) == ([1], [3.0])


@pytest.mark.parametrize("steps", [3000, 5000])
def test_a_sweep_on_disk_whose_smallest_batch_size_ran_out_of_budget(tmp_path: Path, steps: int) -> None:
    """The budget of 5000 steps contradicts nothing (the curve is at 7556); the interval is as good as without. The
    sweep is drawn from the hyperbola; coverage of the curve is in test_coverage."""
    truth = Truth(noise=0.05)
    sweep(tmp_path, {"adamw": truth}, batch_sizes=(1, 4, 16, 64, 256), seeds=3, max_steps=steps, growth=1.2)
    answer = answers(load(tmp_path), AnalysisConfig(resamples=300), noise=False)[0]
    assert [point.reached for point in answer.points] == [False, True, True, True, True]
    assert answer.fit is not None
    assert len(answer.fit.data.bounds) == 3
    assert np.exp(answer.fit.data.bounds).tolist() == pytest.approx([steps] * 3)
    low, high = interval(answer.fit.resampled_hyperbola.critical, 0.95)
    assert low is not None
    assert high is not None
    assert low < 7381 / 175 < high
    without = fit_curve([4, 16, 64, 256], tables_of(answer.studies)[1:], config=AnalysisConfig(resamples=300))
    ends, its = (interval(fit.resampled_power.critical, 0.95) for fit in (without, answer.fit))
    assert its == (pytest.approx(ends[0], rel=0.01), pytest.approx(ends[1], rel=0.01))


def test_same_numbers_whether_bounds_are_unknown_or_there_are_none() -> None:
    data = [Trials.of(table) for table in tables(Truth(noise=0.08), SIZES, 3)]
    bounded = [Trials.of(table.steps, np.full(table.steps.shape, NAN)) for table in data]
    first, second = (
        fit_curve(SIZES, data, config=AnalysisConfig(resamples=200)),
        fit_curve(SIZES, bounded, config=AnalysisConfig(resamples=200)),
    )
    np.testing.assert_array_equal(first.resampled.min_steps, second.resampled.min_steps)
    assert first.data.weights.tolist() == second.data.weights.tolist()


def test_a_trial_that_was_never_run_is_no_bound() -> None:
    """A seed that is missing at the best learning rate neither reached the target nor fell short of it."""
    steps, ran = np.array([[100.0, NAN], [300.0, 310.0]]), np.array([[True, False], [True, True]])
    table = replace(Trials.of(steps), ran=ran)
    data, reached = gather([8], [table])
    assert (data.weights.tolist(), len(data.bounds), reached) == ([1.0], 0, [table])
    assert np.exp(data.log_steps).tolist() == pytest.approx([100.0])
