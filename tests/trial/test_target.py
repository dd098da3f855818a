"""What "reached" means: the comparison and the crossing."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbs.errors import ConfigError
from cbs.trial.record import leeway, read_off
from cbs.trial.target import NEARBY, Target
from tests.references.crossing import crossing as slow_crossing

BELOW = Target(metric="loss", value=2.0)
ABOVE = Target(metric="accuracy", value=0.75, direction="above")


def test_the_comparison_is_strict_and_a_value_that_is_not_finite_never_reaches() -> None:
    assert BELOW.reached(1.999)
    assert not BELOW.reached(2.0)
    assert ABOVE.reached(0.751)
    assert not ABOVE.reached(0.75)
    assert not any(target.reached(value) for target in (BELOW, ABOVE) for value in (math.nan, math.inf, -math.inf))


def test_distance_points_towards_the_target() -> None:
    assert BELOW.distance(5.0) == 3.0
    assert BELOW.distance(1.5) == -0.5
    assert ABOVE.distance(0.5) == 0.25


def test_crossing_is_linear_in_log_step() -> None:
    assert BELOW.crossing([0, 1, 10, 100], [9, 4, 3, 1]) == pytest.approx(10**1.5)
    assert ABOVE.crossing([0, 4, 16], [0, 0.5, 1.0]) == pytest.approx(8)


def test_how_far_apart_the_evaluations_around_a_crossing_are() -> None:
    curves = [([1, 10, 15], [3, 2.5, 1]), ([0, 100, 200], [9, 1, 0]), ([40, 50], [1, 0]), ([2, 4], [5, 4]), ([8], [1])]
    trial = np.repeat(np.arange(len(curves)), [len(steps) for steps, _ in curves])
    steps, values = (np.concatenate([np.array(curve[part], dtype=float) for curve in curves]) for part in (0, 1))
    assert BELOW.apart(trial, steps, values, len(curves)) == pytest.approx(
        [1.5, math.inf, math.inf, math.nan, math.inf], nan_ok=True
    )


@pytest.mark.parametrize(
    ("steps", "values", "expected"),
    [
        ([], [], None),
        ([0, 1, 2], [5, 4, 3], None),
        ([0, 1, 2], [5, 4, 2.0], None),
        ([0, 1], [5, 1], 1.0),
        ([0, 1], [1, 0], 0.0),
        ([4, 8], [1, 0], 4.0),
        ([1, 2, 4], [3, math.nan, 1], 4.0),
        ([1, 2, 4], [3, math.inf, 1], 4.0),
        ([1, 2], [3, math.nan], None),
        ([1, 2, 4], [3, 2.0, 1], 2.0),
    ],
)
def test_edges_of_the_crossing(steps: list[float], values: list[float], expected: float | None) -> None:
    assert BELOW.crossing(steps, values) == (None if expected is None else pytest.approx(expected))


curves = st.lists(st.floats(-10, 10), min_size=1, max_size=20)


def test_the_line_averages_the_noise_of_the_evaluations_nearby() -> None:
    """A quarter less variance than the interpolation, and on a smooth curve a tenth of a percent at most."""
    noise, steps, found = np.random.default_rng(0), np.round(100 * 1.06 ** np.arange(60)).astype(int), []
    for _ in range(400):
        curve = 2.0 - 0.4 * np.log(steps / 1000) + 0.012 * noise.standard_normal(60)
        hit = int(np.flatnonzero(curve < 2.0)[0])
        share = (curve[hit - 1] - 2.0) / (curve[hit - 1] - curve[hit])
        between = math.log(steps[hit - 1]) + share * math.log(steps[hit] / steps[hit - 1])
        found.append((math.log(BELOW.crossing(steps, curve) or math.nan), between))
    line, between = np.std(found, axis=0)
    assert line**2 < 0.75 * between**2
    power = 2.0 * (steps / 1000) ** -0.3
    assert BELOW.crossing(steps, power) == pytest.approx(1000, rel=1e-3)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([2.1, 2.1, 2.1, 1.999], 1000),  # the line passes the target later than the evaluations
        ([2.0, 2.0, 2.0, 1.0], 900 * (10 / 9) ** (2 / 9)),  # here earlier than the last but one
        ([2.0, 2.0, 9.0, 1.99], None),  # it leads away from the target: interpolated
    ],
)
def test_the_crossing_stays_among_the_evaluations(values: list[float], expected: float | None) -> None:
    steps = [900, 900 * (10 / 9) ** (1 / 3), 900 * (10 / 9) ** (2 / 3), 1000]
    interpolated = steps[2] * (steps[3] / steps[2]) ** ((values[2] - 2.0) / (values[2] - values[3]))
    assert BELOW.crossing(steps, values) == pytest.approx(interpolated if expected is None else expected)


values = st.one_of(st.floats(0.0, 4.0), st.sampled_from([math.nan, math.inf, 2.0]))


@given(
    st.lists(st.lists(values, max_size=8), min_size=1, max_size=6),
    st.sampled_from(["below", "above"]),
    st.integers(0, 2),
)
def test_many_curves_equal_the_slow_twin_of_each(curves: list[list[float]], direction: str, first: int) -> None:
    target = Target(metric="loss", value=2.0, direction=direction)
    steps = [[first + 3 * index for index in range(len(curve))] for curve in curves]
    rows = [(trial, s, v) for trial, curve in enumerate(curves) for s, v in zip(steps[trial], curve, strict=True)]
    trial, step, value = (np.array([row[column] for row in rows]) for column in range(3))
    found = target.crossings(trial.astype(int), step.astype(int), value.astype(float), len(curves))
    twins = [slow_crossing(target, s, curve) for s, curve in zip(steps, curves, strict=True)]
    np.testing.assert_allclose(found, [math.nan if twin is None else twin for twin in twins], rtol=1e-12)
    alone = [target.crossing(s, curve) for s, curve in zip(steps, curves, strict=True)]
    assert alone == [None if twin is None else pytest.approx(twin, rel=1e-12) for twin in twins]


@pytest.mark.parametrize("value", [math.nan, math.inf, "2", None, True])
def test_bad_values_are_refused_in_one_line(value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        Target(metric="loss", value=value)
    assert "\n" not in str(caught.value)


STEPS = np.array([0.0, 2.0, 4.0, 16.0])
VALUES = np.array([9.0, 4.0, 3.0, 1.0])


@pytest.mark.parametrize(
    ("step", "value"),
    [(2.0, 4.0), (2 * math.sqrt(2), 3.5), (4.0, 3.0), (8.0, 2.0), (16.0, 1.0), (40.0, 1.0), (1.0, None)],
)
def test_a_curve_is_read_along_straight_lines_in_the_logarithm(step: float, value: float | None) -> None:
    assert read_off(STEPS, VALUES, step) == (value if value is None else pytest.approx(value))


def test_between_evaluations_that_lie_far_apart_nothing_is_known() -> None:
    assert read_off(STEPS, VALUES, 8.0, farthest=3.9) is None
    assert read_off(STEPS, VALUES, 8.0, farthest=4.0) == pytest.approx(2.0)
    assert read_off(STEPS, VALUES, 3.0, farthest=2.0) is not None
    assert read_off(STEPS, VALUES, 4.0, farthest=1.1) == 3.0
    assert read_off(STEPS, np.array([9.0, 4.0, math.nan, 1.0]), 16.0) == 1.0


@given(values=curves, gaps=st.lists(st.integers(1, 50), min_size=20, max_size=20))
def test_crossing_lies_among_the_evaluations_nearby(values: list[float], gaps: list[int]) -> None:
    steps = list(itertools.accumulate(gaps[: len(values)]))
    crossing = BELOW.crossing(steps, values)
    reached = [index for index, value in enumerate(values) if value < 2.0]
    if not reached:
        assert crossing is None
        return
    first = reached[0]
    before = min([steps[first - 1], *(step for step in steps if step * NEARBY >= steps[first])]) if first else steps[0]
    assert before * (1 - 1e-12) <= crossing <= steps[first] * (1 + 1e-12)
    mirrored = Target(metric="loss", value=-2.0, direction="above").crossing(steps, [-value for value in values])
    assert mirrored == pytest.approx(crossing, rel=1e-12)


def test_evaluations_after_the_first_that_reaches_the_target_or_far_before_it_change_nothing() -> None:
    steps, curve = [700, 800, 900, 950, 1000], [2.5, 2.4, 2.1, 2.05, 1.9]
    crossing = BELOW.crossing(steps, curve)
    assert crossing == BELOW.crossing([*steps, 1010, 1020], [*curve, 5.0, 1.0])
    assert crossing == BELOW.crossing(steps, [9.0, 9.0, *curve[2:]])  # 800 is not within a factor of 1.2 of 1000
    assert crossing != pytest.approx(BELOW.crossing(steps, [*curve[:2], 2.2, *curve[3:]]), rel=1e-4)
    assert crossing == BELOW.crossing([*steps[:3], 920, *steps[3:]], [*curve[:3], math.nan, *curve[3:]])
    assert BELOW.crossing([100, 1000, 1100], [math.nan, 2.1, 1.9]) == pytest.approx(math.sqrt(1000 * 1100))


def test_bad_direction_is_refused() -> None:
    with pytest.raises(ConfigError, match="sideways"):
        Target(metric="loss", value=1.0, direction="sideways")


def test_text() -> None:
    assert str(BELOW) == "loss < 2"
    assert str(ABOVE) == "accuracy > 0.75"


def test_a_trial_may_miss_its_budget_by_a_share_of_it_or_by_half_a_batch_whichever_is_more() -> None:
    assert leeway(10_000, 8) == 100
    assert leeway(1000, 64) == pytest.approx(35.2)
    np.testing.assert_allclose(leeway(np.array([10_000, 1000]), np.array([8, 64])), [100, 35.2])
