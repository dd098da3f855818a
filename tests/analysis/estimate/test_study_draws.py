"""From studies to draws: far seeds, sudden changes, warmup and priors, seen where they are and not elsewhere."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from analysis.config import AnalysisConfig
from analysis.estimate.definitions.least_product import SPAN, least_product
from analysis.estimate.diagnosis import MOVES, SUDDEN
from analysis.estimate.studies import Study
from analysis.estimate.study_draws import LEAST_FACTOR, Drawn, draw_studies, far_seeds
from benchmarks.world_curves import (
    falling_exponent,
    log_tail,
    perfect_then_none,
    power,
    two_powers,
    two_slopes,
    u_shaped,
)
from tests.analysis.estimate.known import CRITICAL, SIZES, exact, hyperbola, known, noisy, study
from tests.kinds import kinds

QUICK = AnalysisConfig(resamples=400)


def studies(values: np.ndarray, sizes: np.ndarray = SIZES, warmup: float = 0.0) -> list[Study]:
    """One learning rate at every batch size, not stated; seeds are called 10, 11 ..."""
    found = [study(int(size), row[None], warmup=warmup) for size, row in zip(sizes, values, strict=True)]
    return [replace(each, seeds=each.seeds + 10) for each in found]


def drawn(values: np.ndarray, sizes: np.ndarray = SIZES, warmup: float = 0.0) -> Drawn:
    found = draw_studies(studies(values, sizes, warmup), QUICK)
    assert found is not None
    return found


def slowed(values: np.ndarray, *places: tuple[int, int, float]) -> np.ndarray:
    """With runs so many times as slow: size, seed, factor."""
    found = values.copy()
    for size, seed, factor in places:
        found[size, seed] += math.log(factor)
    return found


def table(seed: int = 1, seeds: int = 3, noise: float = 0.06) -> np.ndarray:
    return noisy(np.random.default_rng(seed), noise, seeds)


def width(found: Drawn) -> float:
    low, high = np.quantile(least_product(found.draws), [0.025, 0.975], method="nearest")
    return math.log(high / low) if low > 0 and high < math.inf else math.inf


def far(values: np.ndarray) -> dict[int, tuple[int, float]]:
    return far_seeds(known(values))


class TestFarSeeds:
    @pytest.mark.parametrize("factor", [2.0, 0.5])
    def test_it_is_named_with_its_factor(self, factor: float) -> None:
        found = drawn(slowed(table(), (3, 1, factor)))
        ((size, seed, by, missed),) = found.far
        assert (size, seed, missed) == (16, 11, False)
        assert by == pytest.approx(factor, rel=0.2)  # three seeds of 6 %

    def test_the_factor_is_that_over_the_geometric_mean_of_the_siblings(self) -> None:
        steps = np.tile([100.0, 110.0, 105.0], (len(SIZES), 1))
        steps[2] = [100.0, 121.0, 330.0]
        assert far(np.log(steps)) == {2: (2, pytest.approx(3.0))}

    def test_none_is_named_on_clean_curves(self) -> None:
        """200 curves of 3 to 5 seeds and 3-15 % noise: at 1 % more than 4, which is 98 %, have probability 0.05; with
        the factor they have to reach there are fewer."""
        rng = np.random.default_rng(0)
        count = [len(far(table(index, 3 + index % 3, rng.uniform(0.03, 0.15)))) for index in range(200)]
        assert np.mean(np.array(count) > 0) <= 0.02

    def test_two_are_both_named(self) -> None:
        assert {size: seed for size, (seed, _) in far(slowed(table(), (1, 0, 2.5), (6, 2, 2.0))).items()} == {
            1: 0,
            6: 2,
        }

    def test_with_two_seeds_nobody_knows_which(self) -> None:
        assert far(slowed(table(seeds=2), (3, 1, 3.0))) == {}

    @pytest.mark.parametrize(("factor", "named"), [(3.0, True), (1.3, False), (0.3, False)])
    @pytest.mark.parametrize("seeds", [2, 3])
    def test_one_that_did_not_get_there_in_far_more_steps_is_named(
        self, seeds: int, factor: float, named: bool
    ) -> None:
        values = table(seeds=seeds)
        floors = np.full(values.shape, np.nan)
        floors[3, 1], values[3, 1] = hyperbola()[3] + math.log(factor), np.nan
        found = far_seeds(known(values, floors=floors))
        assert found == ({3: (1, pytest.approx(factor, rel=0.2))} if named else {})

    def test_every_second_draw_leaves_out_the_bound_of_one_that_did_not_get_there(self) -> None:
        values, every = table(), studies(table())
        values[7, 1] = np.nan
        bound = np.full((1, 3), np.nan)
        bound[0, 1] = 2.0 * math.exp(hyperbola()[7])
        rest = [study(int(SIZES[7]), values[7][None]), study(int(SIZES[7]), values[7][None], bound=bound)]
        without, found = (draw_studies([*every[:7], replace(it, seeds=it.seeds + 10)], QUICK) for it in rest)
        ((size, seed, _, missed),) = found.far
        assert (size, seed, missed) == (SIZES[7], 11, True)
        np.testing.assert_allclose(found.draws.curves[::2], without.draws.curves[::2], atol=1e-9)

    @pytest.mark.parametrize(("share", "named"), [(0.97, []), (1.03, [3])])
    def test_one_that_is_a_little_apart_is_not_named_however_alike_the_rest(
        self, share: float, named: list[int]
    ) -> None:
        assert list(far(slowed(table(noise=1e-4), (3, 1, share * LEAST_FACTOR)))) == named

    def test_every_second_draw_leaves_it_out(self) -> None:
        values = slowed(table(), (7, 1, 3.0))
        found = drawn(values).draws
        at = found.drawn(SIZES[-1:])[:, 0]
        without = values.copy()
        without[7, 1] = np.nan
        rest, all_of_them = (drawn(each).draws.drawn(SIZES[-1:])[:, 0] for each in (without, table()))
        np.testing.assert_allclose(at[::2], rest[::2], atol=1e-9)
        assert np.median(at[1::2]) > np.median(at[::2]) + 0.1
        assert np.median(at[::2]) == pytest.approx(np.median(all_of_them), abs=0.1)

    def test_with_and_without_hold_the_truth(self) -> None:
        """12 curves with a seed twice as slow, anywhere: at 95 % fewer than 9 hits have probability 0.002."""
        rng, hits = np.random.default_rng(1), 0
        for index in range(12):
            found = drawn(slowed(table(index), (int(rng.integers(8)), int(rng.integers(3)), 2.0)))
            low, high = np.quantile(least_product(found.draws), [0.025, 0.975], method="nearest")
            hits += low <= CRITICAL <= high
        assert hits >= 9


SMOOTH = [power(1.0), power(0.7), falling_exponent, log_tail, two_powers, u_shaped]


def chance(values: np.ndarray) -> float:
    """Probability of a jump or kink."""
    found = drawn(values).draws.sudden
    return found.chance


class TestSudden:
    @pytest.mark.parametrize("curve", SMOOTH)
    @pytest.mark.parametrize("noise", kinds([0.02], [0.06]))
    def test_smooth_curves_seldom_look_as_if_they_changed_at_once(
        self, curve: Callable[[np.ndarray], np.ndarray], noise: float
    ) -> None:
        """Of 6: at 3 % more than 1 have probability 0.01 for each of twelve."""
        rng, logs = np.random.default_rng(0), np.log(curve(SIZES / CRITICAL))
        assert sum(chance(noisy(rng, noise, curve=logs)) > SUDDEN for _ in range(6)) <= 1

    @pytest.mark.parametrize("place", [2, 4, 6])
    def test_a_jump_is_named_with_the_batch_sizes_around_it(self, place: int) -> None:
        found = exact(lambda sizes: hyperbola(sizes) + math.log(1.3) * (sizes >= SIZES[place]), count=100).sudden
        assert found[:3] == ("jump", SIZES[place - 1], SIZES[place])
        assert found.chance > 0.9

    @pytest.mark.parametrize(("shift", "below", "above"), [(1.0, 16, 64), (math.sqrt(2), 32, 64)])
    def test_a_kink_is_named_with_the_batch_sizes_beside_it(self, shift: float, below: float, above: float) -> None:
        """Perfect scaling up to 32, or to halfway between 32 and 64, and none from there."""
        found = exact(lambda sizes: np.log(perfect_then_none(sizes / 16 / shift)), count=100).sudden
        assert found[:3] == ("kink", below, above)
        assert found.chance > 0.9

    @pytest.mark.parametrize("bend", [0.0, 1.0])
    def test_it_is_seen_through_little_noise_only(self, bend: float) -> None:
        rng = np.random.default_rng(0)
        shape = perfect_then_none(SIZES / 40) if bend else np.exp(hyperbola()) * np.where(SIZES > 40, 1.15, 1.0)
        little, much = ([chance(noisy(rng, noise, curve=np.log(shape))) for _ in range(5)] for noise in (0.01, 0.3))
        assert min(little) > SUDDEN
        assert sum(each > SUDDEN for each in much) <= 1

    def test_a_kink_that_may_be_is_within_the_interval(self) -> None:
        """At the usual noise. Slopes of -1 before it and .4 behind give the product a mean that is least where ``ln x``
        is 3/7 of the reach. Of 12, fewer than 7 have probability 0.002 where 85 % hold it."""
        rng, logs = np.random.default_rng(0), np.log(two_slopes(SIZES / CRITICAL))
        hits = 0
        for _ in range(12):
            low, high = np.quantile(least_product(drawn(noisy(rng, 0.06, curve=logs)).draws), [0.025, 0.975])
            hits += low <= CRITICAL * SPAN ** (3 / 7) <= high
        assert hits >= 7

    @pytest.mark.parametrize(("count", "known_of"), [(3, False), (4, True)])
    def test_three_batch_sizes_show_none(self, count: int, known_of: bool) -> None:
        assert (exact(hyperbola, SIZES[1 : 1 + count], 100).sudden is not None) is known_of


class TestWarmup:
    def test_runs_without_one_do_not_move(self) -> None:
        assert drawn(table()).moved_by_warmup == 0.0

    def test_a_warmup_of_a_few_steps_does_not_decide_and_one_of_half_the_run_does(self) -> None:
        """The least run takes 208 steps. Without half of the warmup steps are 175 - w/2 + 7350 / B, least at
        7350 / (175 - w/2): 44 percent away at w = 120."""
        values = table(noise=0.03)
        little, much = (drawn(values, warmup=steps) for steps in (4.0, 120.0))
        assert little.moved_by_warmup < MOVES * width(little)
        assert much.moved_by_warmup == pytest.approx(math.log(175 / 115), abs=0.12)
        assert much.moved_by_warmup > MOVES * width(much)

    def test_one_longer_than_a_run_is_no_error(self) -> None:
        assert drawn(table(), warmup=1000.0).moved_by_warmup > 0.1


class TestPriors:
    def test_many_sizes_and_seeds_do_not_depend_on_them(self) -> None:
        found = drawn(table())
        assert found.moved_by_prior < 0.25 * MOVES * width(found)

    def test_few_near_one_another_with_one_seed_do(self) -> None:
        few = [3, 4, 5]
        assert drawn(table(seeds=1)[few], SIZES[few]).moved_by_prior > 0.04
        spread = [1, 4, 7]
        assert drawn(table(seeds=1)[spread], SIZES[spread]).moved_by_prior < 0.02


def test_fewer_than_two_batch_sizes_have_no_draws() -> None:
    values = table()
    values[1:] = np.nan
    assert draw_studies(studies(values), QUICK) is None
    values[1] = 5.0
    assert draw_studies(studies(values), QUICK) is not None
