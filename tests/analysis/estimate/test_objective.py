"""Losses in place of log steps: what lies between learning rates, the noise, and losses at the best learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import t as student

from analysis.config import AnalysisConfig
from analysis.estimate.objective import as_study, best_losses, unit_of
from analysis.estimate.optima import savings
from analysis.estimate.studies import Study

CONFIG = AnalysisConfig(resamples=2000)


def study(losses: np.ndarray, lrs: np.ndarray, size: int = 8, scale: tuple[float, float] = (0.0, 1.0)) -> Study:
    status = np.where(np.isfinite(losses), "BUDGET_EXHAUSTED", "DIVERGED").astype(object)
    nothing = np.full(losses.shape, np.nan)
    made = Study(
        size, lrs, np.arange(losses.shape[1]), nothing, status, nothing, np.zeros(losses.shape, int), nothing
    )  # fmt: skip
    return as_study(made, losses, scale)


def basin(shape: Callable[[np.ndarray], np.ndarray], offset: float, step: float = 0.5, rates: int = 7) -> Study:
    """One seed of a loss with its least value 0 at ln lr = 0, at rates that miss it by ``offset`` steps."""
    logs = step * (np.arange(rates) - rates // 2 + offset)
    return study(shape(logs)[:, None], np.exp(logs))


@pytest.mark.parametrize("offset", [0.0, 0.2, 0.5, -0.4])
def test_of_a_parabola_what_is_saved_is_known(offset: float) -> None:
    made = basin(lambda x: 3 * x**2, offset)
    depth = float(np.log(made.steps[made.winner, 0]))
    assert savings(made) == pytest.approx((depth, depth, depth), abs=1e-4)


@pytest.mark.parametrize("offset", np.linspace(-0.5, 0.5, 11).tolist())
def test_of_other_basins_the_truth_lies_between_least_and_most(offset: float) -> None:
    for shape in (lambda x: np.exp(x) - x - 1, lambda x: np.exp(-2 * x) + 2 * x - 1, lambda x: x**2 + x**4):
        made = basin(shape, offset, 0.3)
        depth = float(np.log(made.steps[made.winner, 0]))
        least, likely, most = savings(made)
        assert least - 1e-4 <= depth <= most + 1e-4
        assert likely == pytest.approx(depth, abs=0.02)
        assert most - least < 0.1


@pytest.mark.parametrize("offset", np.linspace(-0.5, 0.5, 11).tolist())
def test_next_to_a_cliff_anything_that_is_convex_may_be_saved(offset: float) -> None:
    for shape in (
        lambda x: np.maximum(-x, 40 * x),
        lambda x: np.where(x > 0.1, np.nan, 0.3 * (x - 0.1) ** 2 - x + 0.1),
    ):
        made = basin(shape, offset)
        depth = float(np.log(made.steps[made.winner, 0]))
        least, likely, most = savings(made)
        assert (least, likely) == (0.0, 0.0)
        assert depth <= most + 1e-9


def test_three_rates_may_save_up_to_three_times_their_parabola() -> None:
    made = basin(lambda x: 3 * x**2, 0.3, rates=3)
    depth = float(np.log(made.steps[made.winner, 0]))
    least, likely, most = savings(made)
    assert least == 0.0
    assert likely == pytest.approx(depth)
    assert likely < most <= 3 * depth * (1 + 1e-9)


@pytest.mark.parametrize(("below", "steep"), [(1, 200), (2, 200), (3, 200), (2, 20), (3, 20)])
def test_a_single_rate_beyond_a_cliff_says_nothing_of_the_rates_before_it(below: int, steep: float) -> None:
    """The loss falls along a line up to ln lr = 0.6, then rises 200 times as steeply, or 20 times; rates are apart by
    unlike steps at the winner, 0."""
    logs = np.array([-0.5, -0.3, -0.17, 0.0, 0.7])[3 - below :]
    made = study(np.maximum(-logs, -0.6 + steep * (logs - 0.6))[:, None], np.exp(logs))
    least, likely, most = savings(made)
    assert least == 0.0
    assert likely < 0.1
    assert 0.6 <= most <= 0.7 + 1e-9


def test_at_the_edge_nothing_is_known_to_be_saved() -> None:
    assert savings(basin(lambda x: x, 0.0)) == (0.0, 0.0, 0.0)
    assert savings(basin(lambda x: x, 0.0, rates=1)) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e9])
def test_the_unit_of_the_metric_changes_nothing(unit: float) -> None:
    rng = np.random.default_rng(3)
    lrs = 2.0 ** np.arange(5)
    tables = [((np.log(lrs / 4) ** 2)[:, None] + 0.1 * rng.standard_normal((5, 3)) + size) for size in range(5)]

    def found(factor: float) -> np.ndarray:
        losses = [factor * table for table in tables]
        scale = unit_of(losses)
        studies = [study(each, lrs, 2**place, scale) for place, each in enumerate(losses)]
        return best_losses(studies, scale, CONFIG).resampled / factor

    np.testing.assert_allclose(found(unit), found(1.0), rtol=1e-6)


@pytest.mark.parametrize(("seeds", "deviation"), [(3, 0.1), (2, 0.1), (1, 0.1)])
def test_losses_are_covered_and_their_noise_is_found(seeds: int, deviation: float) -> None:
    """Thirty sweeps of eight batch sizes on parabolas; the shares are those of a binomial with 240 trials."""
    lrs, hits, noises = np.exp(0.7 * np.arange(-3, 4) + 0.2), 0, []
    for turn in range(30):
        rng = np.random.default_rng(turn)
        tables = [
            2 + 0.1 * place + np.log(lrs)[:, None] ** 2 + deviation * rng.standard_normal((7, seeds))
            for place in range(8)
        ]
        scale = unit_of(tables)
        studies = [study(each, lrs, 2**place, scale) for place, each in enumerate(tables)]
        found = best_losses(studies, scale, AnalysisConfig(resamples=400))
        low, high = np.quantile(found.resampled, [0.025, 0.975], axis=0)
        truth = 2 + 0.1 * np.arange(8)
        hits += int(((low <= truth) & (truth <= high)).sum())
        noises.append(found.deviation.mean())
    assert hits / 240 >= 0.92
    assert seeds == 1 or hits / 240 <= 0.995
    assert np.mean(noises) == pytest.approx(deviation, rel=0.25)


@pytest.mark.parametrize("share", [0.9, 0.0])
def test_seeds_that_are_lucky_everywhere_leave_every_loss_less_known(share: float) -> None:
    """A hundred sweeps of eight batch sizes; the noise of a seed is in part the same at all of them. By the number of
    losses alone an interval would be that of 16 degrees of freedom where there are little more than 2."""
    truth, hits, plain, shared = 2 + 0.1 * np.arange(8), [], [], []
    for turn in range(100):
        rng = np.random.default_rng(turn)
        noise = math.sqrt(share) * rng.standard_normal(3) + math.sqrt(1 - share) * rng.standard_normal((8, 3))
        tables = [(each + 0.1 * own)[None] for each, own in zip(truth, noise, strict=True)]
        scale = unit_of(tables)
        studies = [study(each, np.ones(1), 2**place, scale) for place, each in enumerate(tables)]
        found = best_losses(studies, scale, AnalysisConfig(resamples=200))
        for kept, rows in ((hits, found.alone(0.95)), (plain, found.resampled)):
            low, high = np.quantile(rows, [0.025, 0.975], axis=0)
            kept.append(((low <= truth) & (truth <= high)).mean())
        shared.append(found.shared)
    assert np.mean(shared) == pytest.approx(share, abs=0.15)
    assert np.mean(hits) >= 0.86
    assert share == 0.0 or np.mean(plain) <= np.mean(hits) - 0.05


def test_batch_sizes_with_one_seed_do_not_make_the_others_less_known() -> None:
    """Two of eight batch sizes have two seeds, whose correlation is 1 or -1: their own noise has one degree of freedom
    each, and a loss is not known less than from one of them alone."""
    noise = np.random.default_rng(0).standard_normal((8, 2))
    tables = [(2 + 0.1 * place + 0.01 * row[: 2 if place < 2 else 1])[None] for place, row in enumerate(noise)]
    scale = unit_of(tables)
    found = best_losses([study(each, np.ones(1), 2**n, scale) for n, each in enumerate(tables)], scale, CONFIG)
    wider = np.ptp(found.alone(0.95), axis=0) / np.ptp(found.resampled, axis=0)
    assert (wider < 5).all()


def test_a_loss_is_known_as_well_as_from_its_own_seeds() -> None:
    """Five seeds at one batch size and two at four others, alike everywhere: 8 / (1 + 4) degrees of freedom are less
    than the 4 of the one batch size."""
    seeds = 0.01 * np.array([1.0, -1.0, 0.9, -0.9, 0.0])
    tables = [(2 + 0.1 * place + seeds[: 5 if place == 2 else 2])[None] for place in range(5)]
    scale = unit_of(tables)
    found = best_losses([study(each, np.ones(1), 2**n, scale) for n, each in enumerate(tables)], scale, CONFIG)
    assert found.shared > 0.9
    wider = np.ptp(found.alone(0.95), axis=0) / np.ptp(found.resampled, axis=0)
    assert wider == pytest.approx(student.ppf(0.975, 4) / student.ppf(0.975, found.freedom), rel=0.02)


def test_without_anything_that_shows_noise_there_are_no_resamples() -> None:
    lrs = 2.0 ** np.arange(3)
    tables = [(np.log(lrs / 2) ** 2)[:, None] + size for size in range(3)]
    scale = unit_of(tables)
    found = best_losses([study(each, lrs, 2**n, scale) for n, each in enumerate(tables)], scale, CONFIG)
    assert found.resampled.shape == (0, 3)
    assert found.freedom == 0
    assert math.isfinite(found.losses.sum())
