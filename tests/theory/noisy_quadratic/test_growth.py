"""A growing batch size on the noisy quadratic against the stages it consists of."""

from __future__ import annotations

import numpy as np
import pytest

from cbs.theory.noisy_quadratic import NoisyQuadratic, QuadraticStage, best_growth, best_settings, losses_along
from cbs.theory.noisy_quadratic.growth import batch_sizes

MODEL = NoisyQuadratic.power_law(50)
TARGET, MEAN, PIECES = 0.05, 8.0, 5


def along(steps: int, lr: float, growth: float) -> float:
    """Loss after all stages, each step by step."""
    sizes = batch_sizes(MEAN, growth, PIECES)
    stages = [QuadraticStage(steps=steps // PIECES, lr=lr, batch_size=size) for size in sizes]
    return float(losses_along(MODEL, stages)[-1])


def test_batch_sizes_keep_their_mean() -> None:
    sizes = batch_sizes(MEAN, 16.0, PIECES)
    assert sizes.mean() == pytest.approx(MEAN)
    assert sizes / sizes[0] == pytest.approx([1.0, 2.0, 4.0, 8.0, 16.0])


def test_the_best_growth_is_one_that_gets_there_and_no_other_gets_further() -> None:
    found = best_growth(MODEL, TARGET, MEAN, PIECES)
    assert found is not None
    assert along(found.steps, found.lr, found.growth) <= TARGET
    shorter = found.steps - max(PIECES, found.steps // 100)
    others = [
        along(shorter, lr, growth)
        for lr in found.lr * np.geomspace(0.3, 3.0, 25)
        for growth in found.growth * np.geomspace(0.2, 5.0, 13)
    ]
    assert min(others) > TARGET
    (constant,) = best_settings(MODEL, "sgd", TARGET, [MEAN], np.geomspace(1e-3, 2.0, 200), [0.0])
    assert constant is not None
    assert found.steps < 0.7 * constant.steps


def test_ends() -> None:
    done = best_growth(MODEL, 100.0, MEAN)
    assert done is not None
    assert done.steps == 0
    assert best_growth(MODEL, 1e-9, MEAN, limit=64) is None
