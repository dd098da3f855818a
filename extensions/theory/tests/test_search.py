"""The fewest steps to a target and the best learning rates and batch sizes over a run: published counts, exhaustive
search, slow twins."""

import functools
import math
import random
import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bench_batch_schedules import ceiling, fewest_examples
from cbs.trial.config import TrialConfig
from extensions.theory.noisy_quadratic import NoisyQuadratic, best_settings, modes_of, passages, tuned
from extensions.theory.quadratic import best_pieces, loss_and_slope
from extensions.theory.tests import certified
from sweeps.search.forecast import End
from tests.references.noisy_quadratic import expected_losses
from tests.sweeps.search_worlds import DIVERGES_AFTER, World, sweep
from tests.sweeps.test_search_coverage import answer, trials

SMALL = NoisyQuadratic.power_law(5, noise=0.5)


@pytest.mark.parametrize(("method", "power"), certified.LAST_MISSED_STEP)
def test_best_steps_equal_the_published_search(method: str, power: float) -> None:
    published = certified.LAST_MISSED_STEP[method, power]
    grids = (certified.SGD_LRS, (0.0,)) if method == "sgd" else (certified.LRS, certified.MOMENTA)
    model = NoisyQuadratic.binned(certified.DIMENSION)
    found = best_settings(model, method, certified.TARGET, list(published), *grids, power=power, cushion=1e-8)
    assert [best and best.steps for best in found] == [last + 1 for last in published.values()]


@settings(deadline=None, max_examples=40)
@given(
    lrs=st.lists(st.floats(0.001, 2.2), min_size=1, max_size=6, unique=True),
    batch_sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=3),
    share=st.floats(0.01, 1.1),
)
def test_is_the_first_step_of_the_best_setting_where_no_loss_rises(
    lrs: list[float], batch_sizes: list[int], share: float
) -> None:
    target = share * SMALL.initial_loss
    found = best_settings(SMALL, "sgd", target, batch_sizes, lrs, limit=2000)
    for batch_size, best in zip(batch_sizes, found, strict=True):
        losses = modes_of(SMALL, "sgd", np.array(lrs)).losses(2000, batch_size)
        firsts = [next((k for k, loss in enumerate(row) if loss <= target), np.inf) for row in losses]
        if (np.diff(losses[:, :200]) <= 0).all():
            assert (best.steps if best else np.inf) == min(firsts)
            assert best is None or best.lr == lrs[int(np.argmin(firsts))]


def test_missed_targets_have_no_winner() -> None:
    assert best_settings(SMALL, "sgd", 1e-6, [1, 4], [0.5, 2.5], limit=10_000) == [None, None]
    assert tuned(SMALL, "sgd", 1e-9, 1, limit=10_000) is None
    start = best_settings(SMALL, "sgd", SMALL.initial_loss, [8], [0.1])[0]
    assert start.steps == 0
    flat = NoisyQuadratic(curvature=np.zeros(1), noise=np.ones(1), start=np.ones(1), count=np.ones(1))
    assert tuned(flat, "sgd", -1.0, 1) is None


def test_tuned_beats_every_point_of_a_dense_grid() -> None:
    model = NoisyQuadratic.power_law(50)
    found = tuned(model, "heavy_ball", 0.1, 4096, 0.9)
    lrs = np.geomspace(0.1, model.largest_lr(momentum=0.9), 2000)
    losses = modes_of(model, "heavy_ball", lrs, 0.9).losses(int(found.steps) + 3, 4096)
    firsts = np.where((losses <= 0.1).any(1), (losses <= 0.1).argmax(1), np.inf)
    assert np.ceil(found.steps) <= firsts.min()


@pytest.mark.parametrize(
    ("method", "momentum", "batch_size"),
    [("sgd", 0.0, 1e5), ("sgd", 0.0, 1e12), ("averaged", 0.99, 100), ("averaged", 0.9, 1e6), ("heavy_ball", 0.5, 1e12)],
)
def test_just_below_the_edge_of_stability_is_looked_at_too(method: str, momentum: float, batch_size: float) -> None:
    model = NoisyQuadratic.power_law(500)
    found = tuned(model, method, 0.02, batch_size, momentum)
    largest = model.largest_lr(momentum=momentum if method == "heavy_ball" else 0.0)
    assert 0.98 * largest < found.lr < largest
    lrs = largest * (1.0 - np.geomspace(0.05, 1e-6, 300))
    assert found.steps <= 1.0001 * passages(modes_of(model, method, lrs, momentum), 0.02, batch_size).min()


def test_a_passing_dip_of_a_setting_whose_floor_misses_counts_for_no_batch_size() -> None:
    model = NoisyQuadratic.power_law(1)
    setting = modes_of(model, "heavy_ball", 0.5, 0.9)
    assert setting.floor(4) > 0.25 > setting.floor(1e6)
    assert setting.loss(1, 4) < 0.25
    assert best_settings(model, "heavy_ball", 0.25, [4], [0.5], [0.9]) == [None]
    able, _ = best_settings(model, "heavy_ball", 0.25, [4, 1e6], [0.5, 0.001], [0.9])
    assert able.lr == 0.001
    small, large = best_settings(model, "heavy_ball", 0.25, [4, 1e6], [0.5], [0.9])
    assert small is None
    assert large is not None


QUADRATIC, MOMENTUM, TARGET = NoisyQuadratic.power_law(1000), 0.9, 0.1


@functools.cache
def _law(batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Ln of learning rates and of the steps they take, of those that reach the target."""
    lrs = QUADRATIC.largest_lr(momentum=MOMENTUM) * 2.0 ** np.arange(-9.0, 0.0, 0.05)
    steps = passages(modes_of(QUADRATIC, "heavy_ball", lrs, momentum=MOMENTUM), TARGET, batch_size)
    return np.log(lrs[np.isfinite(steps)]), np.log(steps[np.isfinite(steps)])


@dataclass(frozen=True)
class Momentum:
    """SGD with momentum on the noisy quadratic in closed form, with seed noise.

    Steps fall with the learning rate up to the edge of stability, or to where noise keeps the loss above the target,
    which lies within a factor of 1.2 of the best.
    """

    noise: float
    number: int
    sizes = tuple(2**power for power in range(4, 14))

    def best_lr(self, batch_size: int) -> float:
        logs, steps = _law(batch_size)
        return math.exp(logs[steps.argmin()])

    def end(self, config: TrialConfig) -> End:
        logs, steps = _law(config.batch_size)
        at = math.log(config.lr)
        if at > logs[-1]:
            return End(DIVERGES_AFTER, reached=False, distance=math.inf)
        draw = random.Random(f"{self} {config.batch_size} {config.lr} {config.seed}").gauss(0.0, self.noise)
        # below the table S goes as 1 / lr
        return End(math.exp(float(np.interp(at, logs, steps)) + max(0.0, logs[0] - at) + draw))

    @functools.cached_property
    def truth(self) -> float:
        """Where steps x examples are least, at the best of all learning rates."""
        sizes = np.geomspace(64, 2048, 120)
        products = [math.log(size) + 2 * _law(round(size))[1].min() for size in sizes]
        return float(sizes[int(np.argmin(products))])


def replicate(noise: float, number: int, way: str) -> dict[str, Any]:
    world = Momentum(noise, number)
    base = sweep(World(1.0, 0.0, 0.0, 0)).replace(batch_sizes=world.sizes, max_steps=10**6)
    return answer(trials(world, way, base), world.truth, 200)


@pytest.mark.slow
def test_a_coarse_grid_beside_a_cliff_widens() -> None:
    """And where the points beside it miss the truth, the verdict doubts them."""
    fine, coarse = ([replicate(0.03, number, way) for number in range(3)] for way in ("factor 1.19", "factor 2"))
    assert sum(one["covered"] or one["verdict"] != "ok" for one in coarse) >= 2
    assert statistics.median(one["width"] for one in coarse) > 1.1 * statistics.median(one["width"] for one in fine)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["search", "factor 2", "factor 4"])
def test_the_answer_at_the_best_of_all_learning_rates_is_in_its_interval_or_doubted(way: str) -> None:
    """Of 40 at 95 %, 33 and fewer are found once in 300. On a grid beside a cliff intervals hold less, and the verdict
    doubts them: the curve is no power law."""
    found = [replicate(0.06, number, way) for number in range(40)]
    assert way != "search" or sum(one["covered"] for one in found) >= 34
    assert sum(one["covered"] or one["verdict"] != "ok" for one in found) >= 38


MODEL = NoisyQuadratic.power_law(30)
RATES = np.array([1.5, 0.4, 0.1])


def test_the_loss_is_the_twins_and_the_slope_that_of_differences() -> None:
    logs = np.log(RATES)
    loss, slope = loss_and_slope(MODEL, logs, 7, 4.0)
    stages = [(rate, 4.0) for rate in RATES for _ in range(7)]
    assert loss == pytest.approx(expected_losses(MODEL, "sgd", 0.0, stages)[-1], rel=1e-10)
    for index in range(3):
        step = np.eye(3)[index] * 1e-6
        sides = [loss_and_slope(MODEL, logs + sign * step, 7, 4.0)[0] for sign in (1, -1)]
        assert slope[index] == pytest.approx((sides[0] - sides[1]) / 2e-6, rel=1e-5)


@pytest.mark.parametrize("batch_size", [2.0, 64.0])
def test_no_rates_nearby_and_no_shorter_run_reach_the_target(batch_size: float) -> None:
    found = best_pieces(MODEL, 0.05, batch_size, pieces=6)
    length = found.steps // 6
    assert found.steps == 6 * length < found.constant_steps + 6
    assert loss_and_slope(MODEL, np.log(found.lrs), length, batch_size)[0] <= 0.05
    rng = np.random.default_rng(0)
    limit = np.log(2.0 * (1 - 1e-4))
    for _ in range(300):
        near = np.minimum(np.log(found.lrs) + 0.5 * rng.standard_normal(6), limit)
        assert loss_and_slope(MODEL, near, length - 1, batch_size)[0] > 0.05


def test_small_batches_fall_early_and_large_ones_hold_the_largest_rate() -> None:
    small, large = (best_pieces(NoisyQuadratic.power_law(1000).grouped(), 0.02, size, pieces=10) for size in (2, 2048))
    assert small.lrs[2] < 0.3 * large.lrs[2]
    assert large.lrs[5] == pytest.approx(2.0, rel=1e-3)
    assert list(small.lrs[1:]) == sorted(small.lrs[1:], reverse=True)
    assert small.steps < 0.3 * small.constant_steps


CEILING_MODEL = NoisyQuadratic.power_law(6, noise=0.5)
STEPS = 12
LRS = st.lists(st.floats(0.01, 1.2), min_size=STEPS, max_size=STEPS).map(np.array)


def loss(lrs: np.ndarray, sizes: np.ndarray, power: float = 0.0) -> float:
    return float(expected_losses(CEILING_MODEL, "heavy_ball", 0.0, list(zip(lrs, sizes, strict=True)), power)[-1])


@settings(max_examples=25)
@given(LRS, st.lists(st.floats(0.2, 5.0), min_size=STEPS, max_size=STEPS), st.sampled_from([0.0, 0.5]))
def test_no_schedule_with_as_many_examples_ends_lower(lrs: np.ndarray, shape: list[float], power: float) -> None:
    best, other = ceiling(CEILING_MODEL, lrs, power=power), np.array(shape) * 100.0 / np.sum(shape)
    sizes = best.batch_sizes(100.0)
    assert sizes.sum() == pytest.approx(100.0)
    assert loss(lrs, sizes, power) == pytest.approx(best.loss(100.0), rel=1e-9)
    assert loss(lrs, other, power) >= best.loss(100.0) * (1 - 1e-9)
    # and on the way there: the problem is convex
    halfway = loss(lrs, (sizes + other) / 2, power)
    assert halfway <= (loss(lrs, sizes, power) + loss(lrs, other, power)) / 2 * (1 + 1e-9)


def test_at_a_constant_learning_rate_the_batch_grows_to_the_end_and_beats_a_constant_one() -> None:
    model, steps = NoisyQuadratic.power_law(50), 200
    best = ceiling(model, np.full(steps, 0.5))
    sizes = best.batch_sizes(steps * 16.0)
    assert (np.diff(sizes) > 0).all()
    constant = float(modes_of(model, "sgd", 0.5).loss(steps, 16))
    assert best.loss(steps * 16.0) < 0.8 * constant
    examples, lr = fewest_examples(model, constant, steps, np.array([0.2, 0.5, 0.8]))
    assert examples * (1 - 1e-9) <= best.examples(constant) < 0.8 * steps * 16
    assert lr in (0.2, 0.5, 0.8)


@pytest.mark.parametrize("lrs", [[], [-0.1], [[0.1]]])
def test_bad_learning_rates(lrs: list[float]) -> None:
    with pytest.raises(ValueError, match="learning rates"):
        ceiling(CEILING_MODEL, np.array(lrs))
