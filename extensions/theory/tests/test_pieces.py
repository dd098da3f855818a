"""The best learning rates over a run: their loss is that of the slow twin, and none nearby is better."""

import numpy as np
import pytest

from extensions.theory.noisy_quadratic import NoisyQuadratic
from extensions.theory.quadratic import best_pieces, loss_and_slope
from tests.references.noisy_quadratic import expected_losses

MODEL = NoisyQuadratic.power_law(30)
RATES = np.array([1.5, 0.4, 0.1])


def test_the_loss_is_the_twins_and_the_slope_that_of_differences() -> None:
    logs = np.log(RATES)
    loss, slope = loss_and_slope(MODEL, logs, 7, 4.0)
    stages = [(rate, 4.0) for rate in RATES for _ in range(7)]
    assert loss == pytest.approx(expected_losses(MODEL, "sgd", 0.0, stages)[-1], rel=1e-10)
    for place in range(3):
        step = np.eye(3)[place] * 1e-6
        sides = [loss_and_slope(MODEL, logs + sign * step, 7, 4.0)[0] for sign in (1, -1)]
        assert slope[place] == pytest.approx((sides[0] - sides[1]) / 2e-6, rel=1e-5)


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
