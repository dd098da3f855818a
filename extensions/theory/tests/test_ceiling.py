"""The best batch-size schedule: against every other one, and against a solver that knows nothing of it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.bench_batch_schedules import ceiling, fewest_examples
from extensions.theory.noisy_quadratic import NoisyQuadratic, modes_of
from tests.references.noisy_quadratic import expected_losses

MODEL = NoisyQuadratic.power_law(6, noise=0.5)
STEPS = 12
LRS = st.lists(st.floats(0.01, 1.2), min_size=STEPS, max_size=STEPS).map(np.array)


def loss(lrs: np.ndarray, sizes: np.ndarray, power: float = 0.0) -> float:
    return float(expected_losses(MODEL, "heavy_ball", 0.0, list(zip(lrs, sizes, strict=True)), power)[-1])


@settings(max_examples=25)
@given(LRS, st.lists(st.floats(0.2, 5.0), min_size=STEPS, max_size=STEPS), st.sampled_from([0.0, 0.5]))
def test_no_schedule_with_as_many_examples_ends_lower(lrs: np.ndarray, shape: list[float], power: float) -> None:
    best, other = ceiling(MODEL, lrs, power=power), np.array(shape) * 100.0 / np.sum(shape)
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
        ceiling(MODEL, np.array(lrs))
