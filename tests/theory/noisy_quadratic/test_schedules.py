"""Schedules of learning rate and batch size against the covariance step by step; the best piecewise constant rate."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cbs.theory.noisy_quadratic import (
    NoisyQuadratic,
    QuadraticStage,
    best_pieces,
    best_settings,
    losses_along,
    modes_of,
)
from cbs.theory.noisy_quadratic.schedules import loss_and_gradient
from tests.references.noisy_quadratic import expected_losses

SMALL = NoisyQuadratic.power_law(5, noise=0.5)
STAGES = st.lists(
    st.builds(QuadraticStage, steps=st.integers(0, 20), lr=st.floats(0.0, 1.5), batch_size=st.integers(1, 500)),
    max_size=4,
)


@settings(deadline=None, max_examples=60)
@given(stages=STAGES, momentum=st.floats(0.0, 0.95), power=st.sampled_from([0.0, 0.5]))
def test_schedules_equal_their_slow_twin(stages: list[QuadraticStage], momentum: float, power: float) -> None:
    each = [(stage.lr, stage.batch_size) for stage in stages for _ in range(stage.steps)]
    slow = expected_losses(SMALL, "heavy_ball", momentum, each, power)
    ends = np.cumsum([0, *(stage.steps for stage in stages)])
    np.testing.assert_allclose(losses_along(SMALL, stages, momentum, power=power), np.array(slow)[ends], rtol=1e-8)


def test_one_stage_is_no_schedule() -> None:
    stages = [QuadraticStage(steps=17, lr=0.3, batch_size=8), QuadraticStage(steps=20, lr=0.3, batch_size=8)]
    whole = modes_of(SMALL, "heavy_ball", 0.3, 0.5).loss(37, 8)
    assert losses_along(SMALL, stages, 0.5)[-1] == pytest.approx(float(whole))


@pytest.mark.parametrize("change", [{"steps": -1}, {"lr": -0.1}, {"batch_size": 0}])
def test_bad_stages(change: dict[str, float]) -> None:
    stage = QuadraticStage(**({"steps": 1, "lr": 0.1, "batch_size": 1} | change))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a stage needs"):
        losses_along(SMALL, [stage])


@pytest.mark.parametrize("power", [0.0, 0.5])
def test_gradient_of_the_pieces_is_that_of_the_loss(power: float) -> None:
    lrs, small = np.array([0.9, 0.4, 0.1]), 1e-6
    loss, gradient = loss_and_gradient(SMALL, 12, lrs, 4, power)
    stages = [QuadraticStage(steps=12, lr=lr, batch_size=4) for lr in lrs]
    assert loss == pytest.approx(losses_along(SMALL, stages, power=power)[-1])
    for piece in range(3):
        shift = small * np.eye(3)[piece]
        ends = [loss_and_gradient(SMALL, 12, lrs + sign * shift, 4, power)[0] for sign in (1, -1)]
        assert gradient[piece] == pytest.approx((ends[0] - ends[1]) / (2 * small), rel=1e-6)


def test_pieces_gain_on_a_constant_rate_and_stay_above_the_bound() -> None:
    model = NoisyQuadratic.binned(1000)
    found = best_pieces(model, 0.03, 16)
    (constant,) = best_settings(model, "sgd", 0.03, [16], np.geomspace(1e-3, 2, 200))
    assert found is not None
    assert constant is not None
    assert model.lower_bound(16, 0.03) < found.steps < 0.5 * constant.steps
    assert np.all(np.diff(found.lrs) <= 0)
    assert found.lrs[-1] < 0.1 * found.lrs[0]
    stages = [QuadraticStage(steps=found.steps // 10, lr=lr, batch_size=16) for lr in found.lrs]
    assert losses_along(model, stages)[-1] <= 0.03


def test_pieces_that_cannot_reach_a_target() -> None:
    assert best_pieces(SMALL, 1e-9, 1, limit=100) is None
    at_start = best_pieces(SMALL, SMALL.initial_loss, 1)
    assert at_start is not None
    assert at_start.steps == 0
