"""What seeds share: against likelihoods written out cell by cell, and where they share all or nothing."""

import math
import tracemalloc

import numpy as np
import pytest

from analysis.estimate.seeds import LENGTHS, SHARES, SeedModels, seed_models
from tests.analysis.estimate.known import SIZES, noisy
from tests.references.draws import Cells, means_and_likelihood

LOGS = np.log(SIZES)


def weights(models: SeedModels) -> np.ndarray:
    """Of every model if nothing is known of the noise: the restricted likelihood at its best."""
    logs = models.log_weights - 0.5 * models.freedom * np.log(models.squares)
    found = np.exp(logs - logs.max())
    return np.asarray(found / found.sum())


def estimated_share(values: np.ndarray) -> float:
    models = seed_models(LOGS, values)
    return float(weights(models) @ models.shares)


@pytest.mark.parametrize("missing", [0, 6])
def test_every_model_is_that_of_the_textbook(missing: int) -> None:
    """Means, their covariance, and the restricted likelihood at three sizes of the noise."""
    rng = np.random.default_rng(0)
    values = noisy(rng, 0.05, 4, 0.03)
    values[rng.integers(0, len(SIZES), missing), rng.integers(1, 4, missing)] = np.nan
    found, cells = seed_models(LOGS, values), Cells.of(LOGS, values)
    pairs = [(0.0, 1.0), *((share, length) for share in SHARES for length in LENGTHS)]
    assert len(found.means) == len(pairs)
    assert found.freedom == len(cells.y) - len(SIZES)
    assert found.shares.tolist() == [share for share, _ in pairs]
    for place, pair in list(enumerate(pairs))[::3]:
        for sigma in (0.03, 0.06, 0.12):
            means, covariance, likelihood = means_and_likelihood(cells, *pair, sigma)
            np.testing.assert_allclose(found.means[place], means, atol=1e-10)
            np.testing.assert_allclose(sigma**2 * found.covariances[place], covariance, atol=1e-12)
            prior = 0.3 if place == 0 else 0.7 / (len(pairs) - 1)
            mine = found.log_weights[place] - math.log(prior) - found.freedom * math.log(sigma)
            mine -= found.squares[place] / (2 * sigma**2)
            assert mine == pytest.approx(likelihood, abs=1e-8)


def test_the_prior_of_models_is_one() -> None:
    """One cell a batch size, seeds that differ: correlations say nothing, and contrasts there are none."""
    diagonal = np.where(np.eye(len(SIZES)), 5.0, np.nan)
    alone = seed_models(LOGS, diagonal)
    assert (alone.freedom, len(alone.means)) == (0, 1)
    np.testing.assert_allclose(np.exp(alone.log_weights), 1.0)


def test_seeds_with_a_common_level_share_and_strangers_do_not() -> None:
    """Five seeds; with .07 in common and .04 of their own the share is .75."""
    rng = np.random.default_rng(0)
    common = [estimated_share(noisy(rng, 0.04, 5, 0.07)) for _ in range(20)]
    strangers = [estimated_share(noisy(rng, 0.06, 5)) for _ in range(20)]
    assert 0.6 < np.median(common) < 0.9
    assert np.median(strangers) < 0.2
    assert sum(share > 0.5 for share in strangers) <= 3


def test_what_lasts_for_a_few_sizes_has_a_short_length() -> None:
    """Seeds alike at neighbours a factor 2 apart, with a correlation of exp(-.5), and strangers at the ends."""
    rng = np.random.default_rng(0)
    near = np.exp(-np.abs(LOGS[:, None] - LOGS) / 1.4)
    values = 0.06 * np.linalg.cholesky(near) @ rng.standard_normal((len(SIZES), 8))
    models = seed_models(LOGS, values)
    lengths = np.array([1.0, *(length for _ in SHARES for length in LENGTHS)])
    by_length = [weights(models)[1:][lengths[1:] == length].sum() for length in LENGTHS]
    assert int(np.argmax(by_length)) == 0
    assert by_length[0] > 0.5


def test_the_mean_of_a_size_that_lacks_a_slow_seed_is_not_the_mean_of_the_others() -> None:
    """Seed 2 is .3 slower everywhere, and was not run at the largest size: its siblings there say what it would have
    taken."""
    levels = np.array([-0.15, -0.15, 0.3])
    values = 5.0 + levels + 0.005 * np.random.default_rng(0).standard_normal((len(SIZES), 3))
    values[-1, 2] = np.nan
    models = seed_models(LOGS, values)
    assert np.nanmean(values[-1]) == pytest.approx(4.85, abs=0.01)
    assert (weights(models) @ models.means)[-1] == pytest.approx(5.0, abs=0.02)


def test_one_seed_is_its_own_mean_and_says_nothing_of_the_noise() -> None:
    values = noisy(np.random.default_rng(0), 0.05, 1)
    models = seed_models(LOGS, values)
    np.testing.assert_allclose(models.means, values.T)
    np.testing.assert_allclose(models.covariances[0], np.eye(len(SIZES)))
    assert (models.freedom, models.squares.tolist(), models.shares.tolist()) == (0, [pytest.approx(0.0)], [0.0])


@pytest.mark.parametrize("place", [0, 1, -1])
def test_drawn_errors_scatter_as_the_means_do(place: int) -> None:
    """With nothing shared, a little over a short length, and nearly all over a long one; 40,000 draws know a variance
    to .7 %."""
    models = seed_models(LOGS, noisy(np.random.default_rng(0), 0.05, 3))
    chosen = np.full(40_000, range(len(models.shares))[place])
    errors = models.errors(chosen, 3, np.random.default_rng(1))
    expected = models.covariances[place]
    np.testing.assert_allclose(np.cov(errors.T), expected, atol=0.03 * expected.max())


def test_the_work_grows_with_the_seeds_and_not_with_their_square() -> None:
    """Seeds are independent: nothing is as large as all runs against all runs."""
    few, many = (peak(seeds) for seeds in (50, 200))
    assert many < 6 * few


def peak(seeds: int) -> int:
    """The memory that the models of so many seeds at four batch sizes take, in bytes."""
    values = np.random.default_rng(0).standard_normal((4, seeds))
    tracemalloc.start()
    try:
        seed_models(np.log([8.0, 16.0, 32.0, 64.0]), values)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
