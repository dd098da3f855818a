"""Whether the exponent falls towards large batch sizes: found where it does, seldom where it does not."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from analysis.config import AnalysisConfig
from analysis.estimate.curves import StepsCurve
from analysis.estimate.diagnosis import BENT, Verdict
from analysis.estimate.fit_table import fit_table
from analysis.estimate.fitting.bend import Bend, bend
from tests.analysis.worlds import World, knee, power, sweep

SIZES = 2.0 ** np.arange(3, 11)
CRITICAL = 100.0


def falls(x: np.ndarray) -> np.ndarray:
    """With the exponent 1 at small batches and 0.6 at large ones."""
    return 1 + x**-0.8 * np.cosh(np.log(x)) ** 0.2


def found(curve: Callable[[Any], Any], noise: float, seeds: int = 3, draw: int = 0, sizes: Any = SIZES) -> Bend | None:
    rng = np.random.default_rng(draw)
    logs = np.log(1000 * curve(sizes / CRITICAL))[:, None] + noise * rng.standard_normal((len(sizes), seeds))
    variance = float(logs.var(axis=1, ddof=1).mean()) if seeds > 1 else 0.0
    known = SimpleNamespace(variance=variance, freedom=len(sizes) * (seeds - 1))
    start = StepsCurve(*map(np.asarray, (math.log(900.0), math.log(80.0), 0.9, 80.0)))
    return bend(sizes, logs.mean(axis=1), np.full(len(sizes), float(seeds)), known, 0.0, start)


@pytest.mark.parametrize(("small", "large"), [(1.2, 0.8), (1.0, 0.6), (0.7, 1.1)])
def test_the_exponents_at_both_ends_are_read_off_the_curve_itself(small: float, large: float) -> None:
    middle, fall = (small + large) / 2, (large - small) / 2

    def bent(x: np.ndarray) -> np.ndarray:
        return 1 + np.exp(-middle * np.log(x) - 2 * fall * np.log(np.cosh(np.log(x) / 2)))

    seen = found(bent, 1e-4)
    assert (seen.small, seen.large) == pytest.approx((small, large), abs=0.03)
    assert (seen.probability < 1e-6) is (small > large)


@pytest.mark.parametrize("curve", [power(1.0), power(0.7), power(1.5), knee(1.5)])
def test_it_is_seldom_said_of_an_exponent_that_does_not_fall(curve: Callable[[Any], Any]) -> None:
    # more than 8 of 60 have probability .002
    alarms = sum(found(curve, 0.05, draw=draw).probability < 0.05 for draw in range(60))
    assert alarms <= 8


def test_a_fall_is_seen_where_the_noise_lets_it_be() -> None:
    assert sum(found(falls, 0.02, draw=draw).probability < BENT for draw in range(20)) >= 12


def test_with_one_seed_or_few_batch_sizes_nothing_is_known() -> None:
    assert found(falls, 0.02, seeds=1) is None
    assert found(falls, 0.02, sizes=SIZES[:5]) is None
    assert found(falls, 0.02, sizes=SIZES[:6]) is not None


def test_the_verdict_depends_on_the_form_and_the_advice_says_which_way() -> None:
    world = World(name="exponent falls", curves={"": falls}, noise=0.01)
    answers = [fit_table(sweep(world, 3, index)[0], AnalysisConfig(resamples=100)).answers[0] for index in range(4)]
    told = [answer for answer in answers if "the exponent may fall from" in answer.advice]
    assert len(told) >= 3
    assert not any(answer.verdict is Verdict.OK for answer in told)
    assert all("above the estimate" in answer.advice for answer in told)
    assert math.isfinite(answers[0].critical_batch_size)
