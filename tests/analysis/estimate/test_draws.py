"""Draws of a curve: against a twin written out cell by cell, on curves known exactly, and by what must not matter."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.estimate import draws, prior, seeds
from analysis.estimate.definitions.least_product import least_product
from analysis.estimate.draws import Draws, draw
from analysis.estimate.prior import Line, StepsPrior
from analysis.estimate.seeds import LENGTHS, SHARES, SeedModels, seed_models
from benchmarks.world_curves import exponential, log_tail, power, two_powers, u_shaped
from tests.analysis.estimate.known import CRITICAL, SIZES, exact, hyperbola, known, noisy
from tests.references.draws import (
    Cells,
    Mixed,
    conditioned,
    correlation,
    departures,
    means_and_likelihood,
    power_law,
    two_lines,
)


def of(
    values: np.ndarray, count: int = 400, sizes: np.ndarray = SIZES, seed: int = 0, law: StepsPrior | None = None
) -> Draws:
    return draw(sizes.tolist(), known(values), count, seed, law)


def half_width(found: Draws) -> float:
    low, high = np.quantile(least_product(found), [0.025, 0.975], method="nearest")
    return math.log(high / low) / 2 if low > 0 and high < math.inf else math.inf


CURVES = [hyperbola(), hyperbola() + 0.15 * (SIZES > 20), 9 - np.log(np.minimum(SIZES, 40))]
"""Smooth, with a jump, with a kink."""


class TestAgainstTheTwin:
    """The slow twin knows neither slopes, nor means of seeds, nor Matheron's rule."""

    NOISES = (0.03, 0.05, 0.09)
    LAW = (math.log(40.0), -0.05)
    SIZES, WEIGHTS, SHARE, LENGTH, EXTRA = (0.06, 0.25), (0.7, 0.3), 0.7, 4.0, 0.02**2

    @pytest.fixture(autouse=True)
    def few_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def noises(models: SeedModels, *_: float) -> tuple[np.ndarray, np.ndarray]:
            sigma = np.broadcast_to(np.array(self.NOISES), (len(models.means), len(self.NOISES)))
            contrasts = -models.freedom * np.log(sigma) - 0.5 * models.squares[:, None] / sigma**2
            return sigma, contrasts + models.log_weights[:, None]

        monkeypatch.setattr(draws, "_noises", noises)
        monkeypatch.setattr(prior, "SIZES", self.SIZES)
        monkeypatch.setattr(prior, "WEIGHTS", self.WEIGHTS)
        monkeypatch.setattr(prior, "OTHERS", {2.0: 0.2, prior.SATURATION: 0.1})
        monkeypatch.setattr(prior, "BLURRED", (0.06,))
        monkeypatch.setattr(seeds, "SHARES", (self.SHARE,))
        monkeypatch.setattr(seeds, "LENGTHS", (self.LENGTH,))
        monkeypatch.setattr(StepsPrior, "_likeliest", lambda *_: self.LAW)

    def twin(self, values: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, list[Mixed], np.ndarray]:
        """Weights, parts and noises of the mixture."""
        x = np.log(SIZES)
        cells, where = Cells.of(x, values), np.r_[x, points]
        index = np.r_[np.searchsorted(x, cells.x), len(x) + np.arange(len(points))]
        law = power_law(where, self.LAW, (prior.PLACE, prior.EXPONENT))
        kinds = [(size, 0.7 * share, math.inf, law) for size, share in zip(self.SIZES, self.WEIGHTS, strict=True)]
        for sharpness, share in ((2.0, 0.2), (math.inf, 0.1)):
            kinds.append((0.06, share, math.inf, power_law(where, self.LAW, (prior.PLACE, prior.EXPONENT), sharpness)))
        gaps = [(x[g] + x[g + 1]) / 2 for g in range(1, len(x) - 2)]
        kinds += [(prior.BESIDE, prior.JUMPS / len(gaps), gap, law) for gap in gaps]
        kinks = [k for k in x[0] - draws.BEYOND + prior.STEP * np.arange(100) if x[1] < k < x[-2]]
        for kink in kinks:
            lines = two_lines(where, kink, prior.BEFORE, prior.AFTER)
            kinds.append((prior.BESIDE, prior.KINKS / len(kinks), math.inf, lines))
        logs, parts, noises = [], [], []
        sizes = {size for size, *_ in kinds}
        smooth = {size: departures(where, x[0] - draws.BEYOND, size, prior.LENGTH) for size in sizes}
        for size, share, jump, law in kinds:
            departure = smooth[size] + prior.JUMP**2 * np.outer(where > jump, where > jump)
            for model, chance in (((0.0, 1.0), 0.3), ((self.SHARE, self.LENGTH), 0.7)):
                for sigma in self.NOISES:
                    shared = (self.EXTRA + 1e-6) * (cells.x[:, None] == cells.x)
                    noise = sigma**2 * correlation(cells, *model) + shared
                    part = conditioned(
                        cells, points, noise, law[:, index], departure[np.ix_(index, index)], 5.0, 50.0,
                    )  # fmt: skip
                    logs.append(part.log_density + math.log(share * chance))
                    parts.append(part)
                    noises.append(sigma)
        weights = np.exp(np.array(logs) - max(logs))
        return weights / weights.sum(), parts, np.array(noises)

    @pytest.mark.parametrize("curve", CURVES)
    def test_mean_covariance_and_shares(self, curve: np.ndarray) -> None:
        """Of 6000 draws: 4.5 standard errors of the means; correlations have an error of 0.013. Every draw stands for
        an equal share of the mixture, so the noise has its mean up to one draw for each of 84 parts that count."""
        rng = np.random.default_rng(3)
        values = noisy(rng, 0.05, common=0.04, curve=curve)
        values[[2, 5], [1, 2]] = np.nan
        points = np.log([1.0, 3.0, 13.0, 40.0, 80.0, 300.0, 600.0])  # none within a step of a jump
        weights, parts, noises = self.twin(values, points)
        mean = sum(w * part.mean for w, part in zip(weights, parts, strict=True))
        covariance = sum(
            w * (part.covariance + np.outer(part.mean - mean, part.mean - mean))
            for w, part in zip(weights, parts, strict=True)
        )
        found = draw(SIZES.tolist(), known(values, variance=self.EXTRA), 6000, 0)
        curves, spread = found.drawn(np.exp(points)), np.sqrt(np.diag(covariance))
        assert np.abs((curves.mean(axis=0) - mean) / spread).max() < 4.5 / math.sqrt(6000)
        np.testing.assert_allclose(
            np.cov(curves.T) / np.outer(spread, spread), covariance / np.outer(spread, spread), atol=0.06
        )
        assert found.own.mean() == pytest.approx(weights @ noises, abs=84 * 0.06 / 6000)
        assert found.deviation == pytest.approx(math.sqrt(weights @ noises**2), rel=0.01)


@pytest.mark.parametrize("curve", [power(1.0), power(0.8), power(1.5), u_shaped, log_tail, exponential, two_powers])
@pytest.mark.parametrize("shift", [1.0, math.sqrt(2)])
def test_smooth_curves_known_exactly_have_their_least_product(
    curve: Callable[[np.ndarray], np.ndarray], shift: float
) -> None:
    """Where it lies between batch sizes, too."""
    logs = np.linspace(-5, 5, 20001)
    half, double = curve(np.exp(logs) / 2), curve(2 * np.exp(logs))
    truth = CRITICAL * math.exp(logs[np.abs(np.log(half / double) - math.log(2)).argmin()])
    found = least_product(exact(lambda sizes: np.log(175 * curve(sizes / CRITICAL)), SIZES * shift))
    assert np.median(found) == pytest.approx(truth, rel=0.02)
    assert np.quantile(found, 0.025) < truth < np.quantile(found, 0.975)


def test_the_interval_narrows_with_seeds() -> None:
    """As the root of their number, up to the departure that is believed possible."""
    rng = np.random.default_rng(0)
    widths = [np.median([half_width(of(noisy(rng, 0.06, count))) for _ in range(12)]) for count in (1, 3, 12)]
    assert widths[1] < 0.75 * widths[0]
    assert widths[2] < 0.75 * widths[1]
    assert 0.14 < widths[1] < 0.24


def test_the_interval_holds_the_least_product_of_hyperbolas() -> None:
    """40 tables of three seeds: at 95 % fewer than 34 have probability 0.003."""
    rng = np.random.default_rng(1)
    ends = [np.quantile(least_product(of(noisy(rng, 0.06))), [0.025, 0.975]) for _ in range(40)]
    assert sum(low <= CRITICAL <= high for low, high in ends) >= 34


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, 2, 3, 5])
@pytest.mark.parametrize("exponent", [0.85, 1.0, 1.3])
def test_coverage_of_300_tables(seeds: int, exponent: float) -> None:
    """Noise of 3 to 12 %, a critical batch size anywhere between the second smallest and the second largest: 93 % or
    more, two standard errors of 1.5 % allowed. Open ends hold what is beyond."""
    rng, hits = np.random.default_rng([seeds, 1]), 0
    for _ in range(300):
        critical = math.exp(rng.uniform(math.log(SIZES[1]), math.log(SIZES[-2])))
        curve = hyperbola(critical=critical / (2**exponent - 2 ** (1 - exponent)) ** (1 / exponent), exponent=exponent)
        found = least_product(of(noisy(rng, rng.uniform(0.03, 0.12), seeds, curve=curve), count=200))
        low, high = np.quantile(found, [0.025, 0.975], method="nearest")
        hits += low <= critical <= high
    assert hits >= 0.9 * 300


@pytest.mark.parametrize(("critical", "end"), [(0.2, 0.0), (3000.0, math.inf)])
def test_a_minimum_beyond_the_batch_sizes_is_an_open_end(critical: float, end: float) -> None:
    values = noisy(np.random.default_rng(0), 0.04, curve=hyperbola(critical=critical))
    assert (least_product(of(values)) == end).mean() > 0.9


def test_a_floor_lifts_what_was_not_reached_and_a_ceiling_lowers_it() -> None:
    """At the smallest batch size nothing but a bound is known: 10 % above what the others say, or 10 % below; and a
    bound that the curve obeys by far changes nothing."""
    values, truth = noisy(np.random.default_rng(0), 0.05), hyperbola()[0]
    values[0] = np.nan
    nothing = np.full(values.shape, np.nan)

    def at_smallest(**bounds: float) -> np.ndarray:
        tables = {name: nothing.copy() for name in bounds}
        for name, bound in bounds.items():
            tables[name][0] = bound
        return draw(SIZES.tolist(), known(values, **tables), 1000, 0).drawn(SIZES[:1])[:, 0]

    free, lifted, lowered = (at_smallest(**each) for each in ({}, {"floors": truth + 0.1}, {"ceilings": truth - 0.1}))
    assert np.median(lifted) > np.median(free) + 0.03
    assert np.median(lowered) < np.median(free) - 0.03
    assert lifted.std() < free.std()
    obeyed = at_smallest(floors=truth - 1.0)
    np.testing.assert_allclose(np.quantile(obeyed, [0.1, 0.5, 0.9]), np.quantile(free, [0.1, 0.5, 0.9]), atol=0.03)


@pytest.mark.parametrize("side", ["floors", "ceilings"])
@pytest.mark.parametrize("apart", [0.15, 0.4, 2.0])
def test_a_bound_that_contradicts_the_other_seeds_leaves_no_few_draws_for_all(side: str, apart: float) -> None:
    values, truth = noisy(np.random.default_rng(0), 0.05), hyperbola()[3]
    values[3, 0] = np.nan
    bounds = np.full(values.shape, np.nan)
    bounds[3, 0] = truth + (apart if side == "floors" else -apart)
    found = draw(SIZES.tolist(), known(values, **{side: bounds}), 1000, 0)
    assert len(np.unique(found.curves[:, 0])) > 950
    free = np.log(np.quantile(least_product(of(values)), [0.025, 0.5, 0.975]))
    np.testing.assert_allclose(np.log(np.quantile(least_product(found), [0.025, 0.5, 0.975])), free, atol=0.15)


def test_bounds_that_few_draws_obey_choose_among_more() -> None:
    values, bounds = noisy(np.random.default_rng(0), 0.05), np.full((len(SIZES), 3), np.nan)
    for end in (0, 7):
        values[end], bounds[end] = np.nan, hyperbola()[end] + 0.15
    assert len(np.unique(draw(SIZES.tolist(), known(values, floors=bounds), 1000, 0).curves[:, 0])) > 170


def test_a_batch_size_without_a_value_widens_the_grid_and_has_no_point() -> None:
    values = noisy(np.random.default_rng(0), 0.05)
    values[-1] = np.nan
    found = of(values)
    assert found.batch_sizes.tolist() == SIZES[:-1].tolist()
    assert found.log_steps.shape == (7,)
    assert found.log_sizes[-1] > math.log(SIZES[-1])


def test_draws_can_be_taken_and_mixed() -> None:
    first, second = exact(hyperbola), exact(lambda sizes: hyperbola(sizes) + 1.0)
    both = first.mixed(second)
    np.testing.assert_allclose(np.diff(both.drawn(SIZES[:1])[:, 0].reshape(-1, 2), axis=1), 1.0, atol=0.02)
    np.testing.assert_array_equal(first.taken(np.array([3, 3])).curves[1], first.curves[3])
    assert first.taken(np.arange(7)).count == 7


def test_beyond_the_grid_curves_are_straight_in_log_log() -> None:
    found = exact(hyperbola)
    slopes = np.diff(found.drawn(1e-3 * 2.0 ** np.arange(3)), axis=1) / math.log(2)
    np.testing.assert_allclose(slopes[:, 0], slopes[:, 1], atol=1e-9)
    np.testing.assert_allclose(found.estimate(SIZES), found.drawn(SIZES).mean(axis=0), atol=1e-9)


LOGS = np.log(SIZES)


def weights(models: SeedModels) -> np.ndarray:
    """Of every model if nothing is known of the noise: the restricted likelihood at its best."""
    logs = models.log_weights - 0.5 * models.freedom * np.log(models.squares)
    found = np.exp(logs - logs.max())
    return np.asarray(found / found.sum())


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


def test_the_mean_of_a_size_that_lacks_a_slow_seed_is_not_the_mean_of_the_others() -> None:
    """Seed 2 is .3 slower everywhere, and was not run at the largest size: its siblings there say what it would have
    taken."""
    levels = np.array([-0.15, -0.15, 0.3])
    values = 5.0 + levels + 0.005 * np.random.default_rng(0).standard_normal((len(SIZES), 3))
    values[-1, 2] = np.nan
    models = seed_models(LOGS, values)
    assert np.nanmean(values[-1]) == pytest.approx(4.85, abs=0.01)
    assert (weights(models) @ models.means)[-1] == pytest.approx(5.0, abs=0.02)


@pytest.mark.parametrize("place", [0, 1, -1])
def test_drawn_errors_scatter_as_the_means_do(place: int) -> None:
    """With nothing shared, a little over a short length, and nearly all over a long one; 40,000 draws know a variance
    to .7 %."""
    models = seed_models(LOGS, noisy(np.random.default_rng(0), 0.05, 3))
    chosen = np.full(40_000, range(len(models.shares))[place])
    errors = models.errors(chosen, 3, np.random.default_rng(1))
    expected = models.covariances[place]
    np.testing.assert_allclose(np.cov(errors.T), expected, atol=0.03 * expected.max())


def test_what_was_measured_exactly_is_passed_by_every_draw() -> None:
    found = exact(hyperbola)
    np.testing.assert_allclose(found.drawn(SIZES), np.broadcast_to(hyperbola(), (400, len(SIZES))), atol=0.01)
    np.testing.assert_allclose(found.log_steps, hyperbola(), atol=1e-9)
    assert found.residual_rms < 1e-3
    assert np.median(found.law.critical) == pytest.approx(CRITICAL, rel=0.05)
    assert np.median(found.law.min_steps) == pytest.approx(175, rel=0.05)


@settings(max_examples=15, deadline=None)
@given(st.floats(0.01, 100.0), st.floats(0.05, 50.0), st.integers(0, 5))
def test_another_unit_of_steps_or_examples_moves_the_answer_along(steps: float, examples: float, seed: int) -> None:
    """Up to single draws that stand for another part of the mixture by rounding."""
    values = noisy(np.random.default_rng(seed), 0.05)
    usual, other = of(values), of(values + math.log(steps), sizes=SIZES * examples)
    for rank, tolerance in ((0.025, 0.04), (0.5, 0.01), (0.975, 0.04)):
        ends = [np.quantile(least_product(each), rank) for each in (other, usual)]
        assert ends[0] / examples == pytest.approx(ends[1], rel=tolerance)
    np.testing.assert_allclose(other.estimate(SIZES * examples) - math.log(steps), usual.estimate(SIZES), atol=5e-3)


def test_the_order_of_the_seeds_does_not_matter() -> None:
    values = noisy(np.random.default_rng(0), 0.05, common=0.03)
    np.testing.assert_allclose(of(values[:, [2, 0, 1]]).curves, of(values).curves, atol=1e-6)


def test_the_same_seed_gives_the_same_draws_and_another_one_others() -> None:
    values = noisy(np.random.default_rng(0), 0.05)
    np.testing.assert_array_equal(of(values).curves, of(values).curves)
    other = of(values, seed=1)
    assert not np.array_equal(of(values).curves, other.curves)
    assert np.median(least_product(other)) == pytest.approx(np.median(least_product(of(values))), rel=0.1)


def test_what_a_seed_has_everywhere_moves_the_level_alone() -> None:
    """5 seeds, 4 % of their own, with .1 in common and without; as strangers they would be 2.7 times as wide. That
    nothing slides is not known, which is what the half is for."""
    rng = np.random.default_rng(0)
    plain = [half_width(of(noisy(rng, 0.04, 5))) for _ in range(12)]
    common = [half_width(of(noisy(rng, 0.04, 5, 0.1))) for _ in range(12)]
    assert np.median(common) < 1.5 * np.median(plain)
    assert of(noisy(rng, 0.04, 5, 0.1)).shared > 0.7


def test_strangers_cost_nothing_to_be_taken_for_possible_siblings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Than if it were known that seeds share nothing: no tenth wider."""
    tables = [noisy(np.random.default_rng(seed), 0.06) for seed in range(20)]
    paired = np.array([half_width(of(values)) for values in tables])
    monkeypatch.setattr(seeds, "SHARES", ())
    alone = np.array([half_width(of(values)) for values in tables])
    assert of(tables[0]).shared == 0.0
    assert np.exp(np.mean(np.log(paired / alone))) < 1.1


def test_two_batch_sizes_and_one_seed_are_a_wide_answer_not_an_error() -> None:
    found = of(noisy(np.random.default_rng(0), 0.05, 1)[[1, 6]], sizes=SIZES[[1, 6]])
    assert (found.freedom, found.shared, found.seeds.tolist()) == (0, 0.0, [1.0, 1.0])
    assert half_width(found) > 0.5


def test_the_hyperbola_allows_nothing_else() -> None:
    found = of(noisy(np.random.default_rng(0), 0.05, curve=hyperbola(exponent=0.7)), law=StepsPrior(hyperbola=True))
    np.testing.assert_allclose(found.law.exponent, 1.0, rtol=1e-4)
    np.testing.assert_allclose(found.law.log_steps(SIZES), found.drawn(SIZES), atol=0.02)


@pytest.mark.parametrize("curve", CURVES)
def test_what_is_left_out_of_the_mixture_is_negligible(monkeypatch: pytest.MonkeyPatch, curve: np.ndarray) -> None:
    """Weights with all pairs and kinds, and those that are worked out: a jump counts where there is one."""
    weights, seen = draws._Mixture.weights, []

    def watched(self: draws._Mixture, sigma: np.ndarray, likelihood: np.ndarray) -> tuple[np.ndarray, ...]:
        model, noise = (each.ravel() for each in np.broadcast_arrays(np.arange(len(sigma))[:, None], sigma))
        logs = self._likelihoods(np.arange(len(self.kinds)), model, noise) + likelihood.ravel()
        every, found = np.exp(logs - logs.max()), weights(self, sigma, likelihood)
        seen.append((every.sum(axis=1) / every.sum(), found[0].sum(axis=1)))
        return found

    monkeypatch.setattr(draws._Mixture, "weights", watched)
    of(noisy(np.random.default_rng(0), 0.03, curve=curve), 20)
    ((every, found),) = seen
    np.testing.assert_allclose(found, every, atol=0.02)
    assert 3 < (found > 0).sum() < len(found)


def test_slopes_of_losses_are_alike_over_their_length() -> None:
    edges = prior.STEP * np.arange(8)
    kernel = Line().slopes(edges, np.array([0.0, 0.5, 1.0]), np.array([1.0, 2.0, 2.5]), np.eye(3)).kernel
    sizes, apart = np.sqrt(np.diag(kernel)), np.abs(np.subtract.outer(edges, edges))
    np.testing.assert_allclose(kernel, np.outer(sizes, sizes) * np.exp(-apart / prior.LOSS_LENGTH))
    assert 1.0 < sizes[-1] < sizes[0] < 2.0, "rises per e-fold of the batch size"
