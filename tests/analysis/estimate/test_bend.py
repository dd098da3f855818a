"""Whether the exponent changes towards large batch sizes: what is said of curves where it does and does not."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from analysis.config import AnalysisConfig
from analysis.estimate.curves import StepsCurve
from analysis.estimate.diagnosis import MAY_FALL, RISES, Verdict
from analysis.estimate.fit_table import fit_table
from analysis.estimate.fitting.bend import FALL, Bend, bend
from benchmarks.worlds import World, falling_exponent, knee, power, sweep

SIZES = 2.0 ** np.arange(3, 11)
CRITICAL = 100.0


def found(
    curve: Callable[[Any], Any], noise: float, seeds: int = 3, draw: int = 0, sizes: Any = SIZES, exponent: float = 0.9
) -> Bend | None:
    rng = np.random.default_rng(draw)
    logs = np.log(1000 * curve(sizes / CRITICAL))[:, None] + noise * rng.standard_normal((len(sizes), seeds))
    variance = float(logs.var(axis=1, ddof=1).mean()) if seeds > 1 else 0.0
    known = SimpleNamespace(variance=variance, freedom=len(sizes) * (seeds - 1))
    start = StepsCurve(*map(np.asarray, (math.log(900.0), math.log(80.0), exponent, 80.0)))
    return bend(sizes, logs.mean(axis=1), np.full(len(sizes), float(seeds)), known, 0.0, start)


@pytest.mark.parametrize(("small", "large"), [(1.2, 0.8), (1.0, 0.6), (0.7, 1.1)])
def test_the_exponents_at_both_ends_are_read_off_the_curve_itself(small: float, large: float) -> None:
    middle, fall = (small + large) / 2, (large - small) / 2

    def bent(x: np.ndarray) -> np.ndarray:
        return 1 + np.exp(-middle * np.log(x) - 2 * fall * np.log(np.cosh(np.log(x) / 2)))

    seen = found(bent, 1e-4)
    assert (seen.small, seen.large) == pytest.approx((small, large), abs=0.03)
    assert (seen.falls > 1 - 1e-6, seen.rises > 1 - 1e-6) == (small > large, small < large)


@pytest.mark.parametrize("curve", [power(1.0), power(0.7), power(1.5)])
def test_an_exponent_that_does_not_change_seldom_looks_as_if_it_did(curve: Callable[[Any], Any]) -> None:
    """Of 60 draws: were 5 % expected, more than 8 would have probability 0.003. Most are neither: less than three
    quarters sure of a rise or its contrary."""
    seen = [found(curve, 0.05, draw=draw) for draw in range(60)]
    assert sum(each.rises > RISES for each in seen) <= 8
    assert sum(each.falls > 0.95 for each in seen) <= 8
    assert sum(0.25 < each.rises < 0.75 for each in seen) >= 20


def test_the_less_noise_the_surer_that_nothing_falls() -> None:
    """A fall up to the one that does not matter is none; without noise there is no doubt left."""
    doubted = [
        sum(found(power(1.0), noise, draw=draw).falls > MAY_FALL for draw in range(40)) for noise in (0.06, 0.003)
    ]
    assert doubted[0] >= 14
    assert doubted[1] <= 4
    assert found(power(0.8), 0.0).falls < 0.01
    half = FALL / 4  # d of a fall half as large as the one that matters

    def hardly(x: np.ndarray) -> np.ndarray:
        return 1 + np.exp(-np.log(x) + 2 * half * np.log(np.cosh(np.log(x) / 2)))

    assert found(hardly, 0.0).falls < 0.01


def test_twice_as_steep_a_curve_is_judged_like_the_same_one_at_batch_sizes_half_as_far_apart() -> None:
    near = CRITICAL * (SIZES / CRITICAL) ** 0.5
    for noise in (0.03, 0.01):
        wide = [found(power(1.0), noise, draw=draw).falls for draw in range(12)]
        steep = [found(power(2.0), noise, draw=draw, sizes=near, exponent=2.0).falls for draw in range(12)]
        assert np.abs(np.subtract(steep, wide)).mean() <= 0.06


def test_a_fall_and_a_rise_are_seen_where_the_noise_lets_them_be() -> None:
    assert sum(found(falling_exponent, 0.01, draw=draw).falls > MAY_FALL for draw in range(20)) >= 18
    assert sum(found(knee(2.0), 0.03, draw=draw).rises > RISES for draw in range(20)) >= 18


def test_with_one_seed_or_few_batch_sizes_nothing_is_known() -> None:
    assert found(falling_exponent, 0.02, seeds=1) is None
    assert found(falling_exponent, 0.02, sizes=SIZES[:3]) is None
    assert found(falling_exponent, 0.02, sizes=SIZES[:4]) is not None


def test_a_plateau_alone_says_nothing_of_the_exponent() -> None:
    seen = found(lambda x: 1.0 + 0.0 * x, 0.02)
    assert math.isfinite(seen.falls)
    assert seen.rises <= RISES


def test_the_verdict_depends_on_the_form_and_the_advice_says_which_way() -> None:
    world = World(name="exponent falls", curves={"": falling_exponent}, noise=0.01)
    answers = [fit_table(sweep(world, 3, index)[0], AnalysisConfig(resamples=100)).answers[0] for index in range(4)]
    told = [answer for answer in answers if "the exponent may fall towards large batch sizes" in answer.advice]
    assert len(told) >= 3
    assert not any(answer.verdict is Verdict.OK for answer in told)
    assert all("B_crit lie above the interval" in answer.advice for answer in told)
    world = World(name="sharp knee", curves={"": knee(2.0)}, noise=0.01)
    (answer,) = fit_table(sweep(world, 3, 0)[0], AnalysisConfig(resamples=100)).answers
    assert "the exponent rises from" in answer.advice
