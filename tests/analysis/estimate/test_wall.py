"""Where the parabola below the winner ended before the next learning rate, and what is saved then."""

import math

import numpy as np
import pytest

from analysis.estimate.basin import Wall, wall

STEP = 0.35
LOGS = STEP * np.array([-2.0, -1.0, 0.0])
SEEDS = np.full(3, 3)


def found(means: np.ndarray, slowest: float, noise: float = 0.01, steepest: float = 1.0) -> Wall | None:
    """By as many of the learning rates as there are means."""
    few = len(means)
    return wall(LOGS[-few:], means, SEEDS[-few:], noise, above=STEP, slowest=slowest, steepest=steepest)


@pytest.mark.parametrize("bend", [0.5, 2.0])
def test_a_next_learning_rate_on_the_parabola_is_no_wall(bend: float) -> None:
    means = bend * (LOGS - 0.1) ** 2
    late = bend * (STEP - 0.1) ** 2
    for after in (late, late + 0.03, late - 0.5):
        assert found(means, after) is None
        assert found(means[1:], after, steepest=math.inf) is None
    steep = 4 * (LOGS[1:] - 0.05) ** 2
    assert found(steep, 4 * (STEP - 0.05) ** 2) is None


@pytest.mark.parametrize("late", [1.0, math.inf])
def test_up_to_a_wall_steps_go_on_falling(late: float) -> None:
    """In proportion to 1/lr, to an end that may lie anywhere before the next learning rate."""
    told = found(-LOGS, late)
    assert told is not None
    assert told.saving == pytest.approx(STEP / 2, rel=0.15)
    assert told.place == pytest.approx(STEP / 4, rel=0.2)  # rather too low than past the end
    assert math.sqrt(told.variance) == pytest.approx(STEP / math.sqrt(12), rel=0.2)


def test_a_bottom_before_the_wall_is_kept() -> None:
    told = found(2 * (LOGS + 0.1) ** 2, math.inf)
    assert told is not None
    assert told.place == pytest.approx(-0.1, abs=0.05)
    assert told.saving == pytest.approx(0.02, abs=0.01)


@pytest.mark.parametrize(("fall", "least", "most"), [(1.0, 0.4, 0.6), (0.2, 0.1, 0.35)])
def test_with_one_learning_rate_below_any_curvature_is_possible(fall: float, least: float, most: float) -> None:
    """Where steps already fall as fast as they can, they go on; otherwise the bottom may lie anywhere."""
    told = found(np.array([fall * STEP, 0.0]), math.inf, noise=1e-3)
    assert told is not None
    assert least < told.saving / (fall * STEP) < most


def test_noise_that_explains_a_slow_neighbour_leaves_the_parabola() -> None:
    means, late = np.array([0.5, 0.1, 0.0]), 1.0
    assert found(means, late) is not None
    assert found(means, late, noise=0.2) is None


@pytest.mark.parametrize("count", [2, 3])
def test_where_nothing_is_known_above_there_is_no_wall(count: int) -> None:
    assert found(-LOGS[-count:], -math.inf) is None
