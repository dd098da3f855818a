"""Scheduled runs against the curve of constant batch sizes, where everything is known."""

import math
from typing import Any

import numpy as np
import pytest

from analysis.estimate.draws import BEYOND, Draws, draw
from analysis.estimate.prior import STEP, StepsCurve, StepsPrior
from extensions.schedules.judge.gains import ScheduledRun, ScheduleGain, compare, fewest_examples, fewest_steps
from tests.analysis.estimate.known import known, noisy
from tests.factories import Truth

TRUTH = Truth(noise=0.03)
SIZES = (2, 4, 8, 16, 32, 64, 128, 256, 512)
GRID = np.arange(math.log(SIZES[0]) - BEYOND, math.log(SIZES[-1]) + BEYOND, STEP)


def curve(exponent: float, min_steps: float = 175.0, critical: float = 42.0) -> StepsCurve:
    return StepsCurve(*(np.array([value]) for value in (math.log(min_steps), math.log(critical), exponent)))


def drawn(seed: int = 0, noise: float = 0.03, exponent: float = 1.0, *, hyperbola: bool = False) -> Draws:
    """Draws of the curve through nine batch sizes with three seeds."""
    law = curve(exponent, TRUTH.min_steps, TRUTH.min_examples / TRUTH.min_steps).log_steps(np.array(SIZES))[0]
    return draw(
        SIZES, known(noisy(np.random.default_rng(seed), noise, curve=law)), 1000, seed, StepsPrior(hyperbola=hyperbola)
    )


CURVE, HYPERBOLA = drawn(), drawn(hyperbola=True).law


def compared(runs: list[ScheduledRun], **options: Any) -> ScheduleGain:
    return compare(CURVE, runs, 0.95, hyperbola=HYPERBOLA, **options)


@pytest.mark.parametrize("exponent", [0.6, 1.0, 1.5])
def test_the_best_constant_batch_is_that_of_a_search_over_all(exponent: float) -> None:
    every, law = np.exp(np.linspace(GRID[0], GRID[-1], 400_001)), curve(exponent)
    steps, on_grid = np.exp(law.log_steps(every))[0], law.log_steps(np.exp(GRID))
    examples = every * steps
    for budget in (1_000.0, 8_000.0, 20_000.0, 60_000.0):
        affordable = steps[examples <= budget]
        found, size = fewest_steps(GRID, on_grid, np.array([budget]))
        if len(affordable):
            assert found[0] == pytest.approx(affordable.min(), rel=3e-3)
            assert size[0] == pytest.approx(every[examples <= budget].max(), rel=3e-3)
        else:
            assert found[0] == np.inf
    for limit in (220.0, 400.0, 1_000.0):
        found, size = fewest_examples(GRID, on_grid, np.array([limit]))
        assert found[0] == pytest.approx(examples[steps <= limit].min(), rel=3e-3)
        assert steps[every >= size[0]].max() == pytest.approx(limit, rel=3e-3) or exponent > 1


def run(gamma: float, steps: float, truth: Truth = TRUTH) -> ScheduledRun:
    """A run with so many steps, and the examples that make its gamma."""
    examples = truth.min_examples * (1 + gamma / (steps / truth.min_steps - 1))
    return ScheduledRun(steps=steps, examples=examples, batch_size=1.5 * examples / steps)


@pytest.mark.parametrize("gamma", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("steps", [250.0, 400.0])
def test_gamma_and_savings_of_a_known_run(gamma: float, steps: float) -> None:
    one = run(gamma, steps)
    found = compared([one] * 3)
    assert found.steps.value == pytest.approx(steps)
    assert found.gamma.value == pytest.approx(gamma, rel=0.15)
    low, high = found.gamma.interval
    assert low < gamma < high
    best = TRUTH.min_steps * (1 + 1 / (one.examples / TRUTH.min_examples - 1))
    assert found.steps_saved.value == pytest.approx(1 - steps / best, abs=0.08)
    cheapest = TRUTH.min_examples * (1 + 1 / (steps / TRUTH.min_steps - 1))
    assert found.examples_saved.value == pytest.approx(1 - one.examples / cheapest, rel=0.12, abs=0.05)
    size = found.equal_examples
    assert size == pytest.approx(
        (one.examples / TRUTH.min_examples - 1) * TRUTH.min_examples / TRUTH.min_steps, rel=0.1
    )
    assert (found.beats > 0.9) if gamma < 1 else (found.beats < 0.1 or gamma == 1)


def test_noise_of_either_side_widens_the_interval() -> None:
    def width(runs: list[ScheduledRun], draws: Draws = CURVE) -> float:
        low, high = compare(draws, runs, 0.95, hyperbola=draws.law).gamma.interval
        return high - low

    plain = width([run(0.8, 300.0)] * 3, drawn(hyperbola=True))
    assert width([run(0.8, 300.0)], drawn(hyperbola=True)) > 1.2 * plain
    assert width([run(0.8, 300.0)] * 3, drawn(noise=0.1, hyperbola=True)) > 1.5 * plain
    scattered = [run(0.8, steps) for steps in (220.0, 300.0, 420.0)]
    assert width(scattered, drawn(hyperbola=True)) > 2 * plain
    along = compared(scattered).steps.interval
    assert math.log(along[1] / along[0]) > 0.6  # those of three seeds that differ by a third
    beside = [run(gamma, 300.0) for gamma in (0.4, 0.8, 1.6)]
    assert width(beside, drawn(hyperbola=True)) > 1.5 * plain


def test_without_a_hyperbola_there_is_no_gamma_and_savings_remain() -> None:
    found = compare(drawn(exponent=0.7), [run(0.5, 300.0)] * 3, 0.95)
    assert found.gamma.value is None
    assert found.gamma.interval == (None, None)
    assert found.steps_saved.value is not None


@pytest.mark.parametrize("latency", [0.0, 0.5, 50.0])
def test_time_saved_is_that_of_the_steps_at_a_latency_and_none_where_examples_alone_cost(latency: float) -> None:
    """A step takes latency + B / 100 seconds, so a run of S steps and E examples takes latency S + E / 100."""
    one = run(0.5, 300.0)
    took = latency * one.steps + one.examples / 100
    timed = ScheduledRun(steps=one.steps, examples=one.examples, batch_size=one.batch_size, seconds=took)
    times = lambda sizes: latency + np.asarray(sizes) / 100  # noqa: E731
    found = compared([timed] * 3, step_times=times)
    assert found.seconds.value == pytest.approx(took)
    steps = np.array(found.steps.interval, dtype=float) / 300.0
    ends = np.array(found.seconds.interval, dtype=float) / took
    # a slow seed takes the steps more at the last batch size, 1.5 times the mean one
    slope = (latency + one.batch_size / 100) * 300.0 / took
    np.testing.assert_allclose(ends, steps**slope, rtol=1e-6)
    best = TRUTH.min_steps * (1 + 1 / (one.examples / TRUTH.min_examples - 1))
    (low, high), saved = found.seconds_saved.interval, latency * (best - 300.0)
    assert low <= saved <= high
    if latency == 0.0:  # at equal examples nothing is saved; what is left is how far the curve is known
        assert found.seconds_saved.value == pytest.approx(0.0, abs=1e-6 * took)
    else:
        assert found.seconds_saved.value == pytest.approx(saved, rel=0.35)


def test_what_step_times_leave_open_is_in_the_hours_that_are_saved() -> None:
    """A step takes half a second; the run's own times are known to 30 %, those of the constant batch size exactly."""
    one = run(0.5, 300.0)
    timed = ScheduledRun(steps=one.steps, examples=one.examples, batch_size=one.batch_size, seconds=0.5 * one.steps)
    rng = np.random.default_rng(2)

    def factors(sizes: np.ndarray, count: int) -> np.ndarray:
        draws = np.exp(0.3 * rng.standard_normal((count, 1)))
        return np.where(np.asarray(sizes) == one.batch_size, draws, 1.0)

    exact, noisy = (
        compared([timed] * 3, step_times=lambda sizes: 0.0 * sizes + 0.5, step_factors=each) for each in (None, factors)
    )
    assert noisy.seconds.value == exact.seconds.value
    assert noisy.seconds_saved.value == exact.seconds_saved.value
    (low, high), (surely_low, surely_high) = noisy.seconds.interval, exact.seconds.interval
    assert low < 0.7 * surely_low
    assert high > 1.3 * surely_high
    assert noisy.seconds_saved.interval[0] < exact.seconds_saved.interval[0] - 30.0
    assert noisy.steps_saved == exact.steps_saved


def coverage(trials: int) -> tuple[float, float]:
    """Share of sweeps whose interval of gamma holds the truth 1, and of those that say a schedule beats them all."""
    rng, held, won = np.random.default_rng(1), 0, 0
    for seed in range(trials):
        noise = np.exp(TRUTH.noise * rng.standard_normal(3))
        runs = []
        for factor in noise:
            one = run(1.0, 320.0)
            later = (factor - 1) * 320.0
            runs.append(
                ScheduledRun(
                    steps=320.0 + later, examples=one.examples + one.batch_size * later, batch_size=one.batch_size
                )
            )
        found = compare(drawn(seed), runs, 0.95, hyperbola=drawn(seed, hyperbola=True).law)
        low, high = found.gamma.interval
        held += low is not None and high is not None and low <= 1.0 <= high
        won += found.steps_saved.interval[0] is not None and found.steps_saved.interval[0] > 0
    return held / trials, won / trials


@pytest.mark.slow
def test_coverage_of_gamma() -> None:
    held, won = coverage(300)
    print(held, won)
    assert held >= 0.92
    assert won <= 0.05
