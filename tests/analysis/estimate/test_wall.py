"""Where the parabola below the winner ended before the next learning rate, and what is saved then."""

from __future__ import annotations

import math

import numpy as np
import pytest

from analysis.estimate.wall import wall

STEP = 0.35
LOGS = STEP * np.array([-2.0, -1.0, 0.0])
NOISE = np.full(3, 0.01)


@pytest.mark.parametrize("bend", [0.5, 2.0])
def test_a_next_learning_rate_on_the_parabola_is_no_wall(bend: float) -> None:
    means = bend * (LOGS - 0.1) ** 2
    late = bend * (STEP - 0.1) ** 2
    for after in (late, late + 0.03, late - 0.5):
        assert wall(LOGS, means, NOISE, after, STEP, 1.0) is None
        assert wall(LOGS[1:], means[1:], NOISE[1:], after, STEP, math.inf) is None
    steep = 4 * (LOGS[1:] - 0.05) ** 2
    assert wall(LOGS[1:], steep, NOISE[1:], 4 * (STEP - 0.05) ** 2, STEP, 1.0) is None


@pytest.mark.parametrize("late", [1.0, math.inf])
def test_up_to_a_wall_steps_go_on_falling(late: float) -> None:
    """In proportion to 1/lr, to an end that may lie anywhere before the next learning rate."""
    found = wall(LOGS, -LOGS, NOISE, late, STEP, 1.0)
    assert found is not None
    assert found.saving == pytest.approx(STEP / 2, rel=0.15)
    assert found.place == pytest.approx(STEP / 2, rel=0.1)
    assert math.sqrt(found.variance) == pytest.approx(STEP / math.sqrt(12), rel=0.2)


def test_a_bottom_before_the_wall_is_kept() -> None:
    found = wall(LOGS, 2 * (LOGS + 0.1) ** 2, NOISE, math.inf, STEP, 1.0)
    assert found is not None
    assert found.place == pytest.approx(-0.1, abs=0.03)
    assert found.saving == pytest.approx(0.02, abs=0.01)


@pytest.mark.parametrize(("fall", "least", "most"), [(1.0, 0.4, 0.6), (0.2, 0.1, 0.35)])
def test_with_one_learning_rate_below_any_curvature_is_possible(fall: float, least: float, most: float) -> None:
    """Where steps already fall as fast as they can, they go on; otherwise the bottom may lie anywhere."""
    found = wall(LOGS[1:], np.array([fall * STEP, 0.0]), NOISE[1:] / 10, math.inf, STEP, 1.0)
    assert found is not None
    assert least < found.saving / (fall * STEP) < most


def test_noise_that_explains_a_slow_neighbour_leaves_the_parabola() -> None:
    means, late = np.array([0.5, 0.1, 0.0]), 1.0
    assert wall(LOGS, means, NOISE, late, STEP, 1.0) is not None
    assert wall(LOGS, means, 10 * NOISE, late, STEP, 1.0) is None
