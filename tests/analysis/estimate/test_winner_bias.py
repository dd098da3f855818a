"""The winner of several learning rates looks faster than it is, by an amount that is known where they are alike."""

from __future__ import annotations

import math

import numpy as np
import pytest

from analysis.config import AnalysisConfig
from analysis.estimate.fitting import fit_curve, interval
from analysis.estimate.fitting.data import Trials
from analysis.estimate.fitting.winner_bias import winner_bias

LEAST_OF_FIVE = 1.16296
"""Minus the mean of the least of five standard normal numbers (Teichroew 1956)."""


def tables(
    rng: np.random.Generator, slower: list[float], *, noise: float, seeds: int = 3, shared: float = 0.0, count: int = 40
) -> list[Trials]:
    found = []
    for _ in range(count):
        drawn = noise * rng.standard_normal((len(slower), seeds)) + shared * rng.standard_normal(seeds)
        found.append(Trials.of(300.0 * np.exp(np.array(slower)[:, None] + drawn)))
    return found


@pytest.mark.parametrize("seeds", [1, 3])
def test_of_learning_rates_that_are_alike_it_is_the_least_of_as_many_means(seeds: int) -> None:
    rng = np.random.default_rng(0)
    made = tables(rng, [0.0] * 5, noise=0.1, seeds=seeds)
    found = winner_bias(made, 0.01, rng)
    expected = LEAST_OF_FIVE * 0.1 / math.sqrt(seeds)
    # distances within the noise count as none, but of some tables one learning rate lies beyond it by chance
    assert 0.8 * expected < found.mean() < 1.02 * expected


def test_what_all_learning_rates_of_a_seed_share_is_no_luck() -> None:
    rng = np.random.default_rng(1)
    found = winner_bias(tables(rng, [0.0] * 5, noise=0.02, shared=0.3), 0.09, rng)
    assert found.mean() < 1.1 * LEAST_OF_FIVE * 0.02 / math.sqrt(3)


def test_far_slower_learning_rates_leave_no_luck() -> None:
    rng = np.random.default_rng(2)
    assert winner_bias(tables(rng, [0.0, 0.5, 0.8], noise=0.05), 0.0025, rng).max() < 1e-2
    assert winner_bias([Trials.of(np.array([[300.0, 310.0, 290.0]]))], 0.01, rng).tolist() == [0.0]
    assert winner_bias([Trials.of(np.array([[300.0], [310.0]]))], 0.0, rng).tolist() == [0.0]


def test_seeds_that_were_not_run_are_neither_fast_nor_slow() -> None:
    """Losers of a search have one seed: its luck is a third of the winner's mean over three."""
    rng = np.random.default_rng(3)
    whole = tables(rng, [0.0] * 3, noise=0.1)
    searched = []
    for table in whole:
        ran = np.zeros((3, 3), dtype=bool)
        ran[:, 0] = True
        ran[table.steps[:, 0].argmin()] = True
        searched.append(Trials(np.where(ran, table.steps, np.nan), np.full((3, 3), np.nan), ran))
    found = winner_bias(searched, 0.01, rng).mean()
    least_of_three = 0.84628  # Teichroew 1956
    assert 0.0 < found < 1.3 * least_of_three * 0.1 / 3


def test_a_learning_rate_that_failed_on_a_seed_cannot_win_by_luck() -> None:
    steps = np.array([[300.0, 310.0, 305.0], [250.0, 260.0, np.nan]])
    assert winner_bias([Trials.of(steps)], 0.01, np.random.default_rng(4)).tolist() == [pytest.approx(0.0, abs=0.01)]


def test_the_interval_of_the_fewest_steps_holds_them_on_a_fine_noisy_grid() -> None:
    """With the power law alone 95 of 100 sweeps at a half width of 0.108; 85 and 0.089 without luck, 99 and 0.135 with
    twice as much."""
    rng, sizes, held, widths = np.random.default_rng(5), np.array([4.0 * 2**power for power in range(8)]), 0, []
    slower = [0.25 * (place * math.log(2) / 4) ** 2 for place in (-2, -1, 0, 1, 2)]
    for _ in range(40):
        made = [
            Trials(table.steps * (1 + 40 / size), table.bound, table.ran)
            for size, (table,) in ((size, tables(rng, slower, noise=0.1, count=1)) for size in sizes)
        ]
        fit = fit_curve(sizes, made, config=AnalysisConfig(resamples=200))
        low, high = interval(fit.resampled_power.min_steps, 0.95)
        assert low
        assert high
        held += low <= 300.0 <= high
        widths.append(math.log(high / low) / 2)
    assert held >= 35
    assert 0.098 < float(np.median(widths)) < 0.121
