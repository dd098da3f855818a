"""The fewest steps to a target: published counts, exhaustive search, the optimum between grid points."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extensions.theory.noisy_quadratic import NoisyQuadratic, best_settings, curve, modes_of, passages, tuned
from extensions.theory.tests import certified

SMALL = NoisyQuadratic.power_law(5, noise=0.5)


@pytest.mark.parametrize(("method", "power"), certified.LAST_MISSED_STEP)
def test_best_steps_equal_the_published_search(method: str, power: float) -> None:
    published = certified.LAST_MISSED_STEP[method, power]
    grids = (certified.SGD_LRS, (0.0,)) if method == "sgd" else (certified.LRS, certified.MOMENTA)
    model = NoisyQuadratic.binned(certified.DIMENSION)
    found = best_settings(model, method, certified.TARGET, list(published), *grids, power=power, cushion=1e-8)
    assert [best and best.steps for best in found] == [last + 1 for last in published.values()]


def test_without_the_cushion_the_smallest_batch_takes_a_little_longer() -> None:
    model = NoisyQuadratic.binned(certified.DIMENSION)
    with_it, without = (
        best_settings(model, "sgd", certified.TARGET, [4], certified.SGD_LRS, cushion=cushion)[0]
        for cushion in (1e-8, 0.0)
    )
    assert with_it is not None
    assert without is not None
    assert with_it.steps < without.steps < 1.0005 * with_it.steps


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


def test_ties_go_to_the_earlier_setting() -> None:
    (best,) = best_settings(SMALL, "heavy_ball", 0.3, [8], [0.5, 0.5], [0.5, 0.5])
    assert best is not None
    (twice,) = best_settings(SMALL, "heavy_ball", 0.3, [8], [0.5], [0.5])
    assert best == twice


def test_missed_targets_have_no_winner() -> None:
    assert best_settings(SMALL, "sgd", 1e-6, [1, 4], [0.5, 2.5], limit=10_000) == [None, None]
    assert tuned(SMALL, "sgd", 1e-9, 1, limit=10_000) is None
    start = best_settings(SMALL, "sgd", SMALL.initial_loss, [8], [0.1])[0]
    assert start is not None
    assert start.steps == 0
    flat = NoisyQuadratic(curvature=np.zeros(1), noise=np.ones(1), start=np.ones(1), count=np.ones(1))
    assert tuned(flat, "sgd", -1.0, 1) is None


TRUTH = {256: 97.97, 1024: 40.87}
"""Steps to 0.1 with momentum 0.9 at the best of a dense grid of learning rates, 1,000 curvatures 1/i."""


@pytest.mark.parametrize("batch_size", [pytest.param(256, marks=pytest.mark.slow), 1024])
def test_tuned_steps_are_the_minimum_over_all_learning_rates(batch_size: int) -> None:
    found = tuned(NoisyQuadratic.power_law(1000), "heavy_ball", 0.1, batch_size, 0.9)
    assert found is not None
    assert found.steps == pytest.approx(TRUTH[batch_size], rel=0.002)


def test_tuned_beats_every_point_of_a_dense_grid() -> None:
    model = NoisyQuadratic.power_law(50)
    found = tuned(model, "heavy_ball", 0.1, 4096, 0.9)
    assert found is not None
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
    assert found is not None
    largest = model.largest_lr(momentum=momentum if method == "heavy_ball" else 0.0)
    assert 0.98 * largest < found.lr < largest
    lrs = largest * (1.0 - np.geomspace(0.05, 1e-6, 300))
    assert found.steps <= 1.0001 * passages(modes_of(model, method, lrs, momentum), 0.02, batch_size).min()


def test_momentum_near_one_is_tuned_at_small_batches_too() -> None:
    """Noise asks for learning rates far below 1e-5 of the edge of stability there; the loss swings, so that a finer
    grid finds other dips, of which none is a hundredth better."""
    model, momentum = NoisyQuadratic.power_law(500), 1 - 1e-5
    (dense,) = best_settings(model, "heavy_ball", 0.1, [1], np.geomspace(1e-8, 1e-4, 300), [momentum])
    found = tuned(model, "heavy_ball", 0.1, 1, momentum)
    assert found is not None
    assert dense is not None
    assert found.lr < 1e-5 * model.largest_lr(momentum=momentum)
    assert found.steps == pytest.approx(dense.steps, rel=0.01)
    (row,) = curve(model, "momentum", 0.1, [1])
    assert row.steps is not None
    assert row.steps <= 1.01 * dense.steps


def test_a_passing_dip_of_a_setting_whose_floor_misses_counts_for_no_batch_size() -> None:
    model = NoisyQuadratic.power_law(1)
    setting = modes_of(model, "heavy_ball", 0.5, 0.9)
    assert setting.floor(4) > 0.25 > setting.floor(1e6)
    assert setting.loss(1, 4) < 0.25
    assert best_settings(model, "heavy_ball", 0.25, [4], [0.5], [0.9]) == [None]
    able, _ = best_settings(model, "heavy_ball", 0.25, [4, 1e6], [0.5, 0.001], [0.9])
    assert able is not None
    assert able.lr == 0.001
    small, large = best_settings(model, "heavy_ball", 0.25, [4, 1e6], [0.5], [0.9])
    assert small is None
    assert large is not None
