"""A number with its interval, from what was measured and its resamples."""

import json
import math
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import pytest
from scipy.stats import norm, t

from analysis.formatting import plain, shown
from analysis.quantities import OPEN, UNKNOWN, Quantity, interval, widening
from cbs.trial.target import Target


def test_the_first_row_is_the_value_and_the_others_alone_are_the_interval() -> None:
    rows = np.append(1000.0, np.arange(101.0))
    found = Quantity.of_draws(rows, 0.9)
    assert found.value == 1000.0
    assert found.interval == (pytest.approx(5.0), pytest.approx(95.0))


@pytest.mark.parametrize("others", [[], [1.0, math.nan, 2.0], [1.0, math.inf]])
def test_without_resamples_or_where_one_has_no_value_there_is_no_interval(others: list[float]) -> None:
    assert Quantity.of_draws(np.array([3.0, *others]), 0.95) == Quantity(3.0, OPEN)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_was_not_measured_is_not_known_whatever_the_resamples(value: float) -> None:
    assert Quantity.of_draws(np.array([value, 1.0, 2.0]), 0.95) is UNKNOWN


def test_a_ratio_to_what_has_no_upper_end_has_no_lower_one() -> None:
    found = Quantity(6.0, (5.0, 7.0)).over(Quantity(2.0, (1.0, None)))
    assert found.value == 3.0
    assert found.interval[0] is None
    assert found.interval[1] is not None


@pytest.mark.parametrize(("low", "high"), [(1.0, 5.0), (0.0, math.inf), (1.0, math.inf), (0.0, 5.0)])
def test_ends_at_nothing_or_infinity_are_open(low: float, high: float) -> None:
    values = np.array([low] * 50 + [2.0] * 100 + [high] * 50)
    assert interval(values, 0.95) == (low or None, None if high == math.inf else high)


@pytest.mark.parametrize("values", [[], [math.inf] * 100, [0.0] * 100, [1.0, math.nan, 2.0]])
def test_draws_that_bound_nothing_have_no_interval(values: list[float]) -> None:
    assert interval(np.array(values), 0.95) == (None, None)


def test_an_estimated_deviation_widens_as_students_t_does() -> None:
    assert widening(5.0, 0.95) == pytest.approx(t.ppf(0.975, 5) / norm.ppf(0.975))
    assert widening(1e9, 0.8) == pytest.approx(1.0)


def test_a_falling_function_turns_the_ends_round_and_an_end_may_be_opened() -> None:
    found = Quantity(2.0, (1.0, None))
    assert found.mapped(lambda value: -value, falling=True) == Quantity(-2.0, (None, -1.0))
    assert found.mapped(lambda value: value + 1) == Quantity(3.0, (2.0, None))
    whole = Quantity(2.0, (1.0, 3.0))
    assert [whole.opened(*beyond).interval for beyond in ((0,), (1,), (-1.0,), (1, -1))] == [
        (1.0, 3.0), (None, 3.0), (1.0, None), (None, None),
    ]  # fmt: skip


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Inner:
    interval: tuple[float | None, float | None] = (None, 2.0)


@dataclass(frozen=True)
class Outer:
    inner: Inner
    colour: Colour
    target: Target
    values: np.ndarray
    by_name: dict[str, Inner]
    hidden: np.ndarray = field(repr=False)


def test_shown_fields_become_lists_mappings_and_numbers() -> None:
    target = Target(metric="loss", value=2.0)
    found = shown(Outer(Inner(), Colour.RED, target, np.arange(2.0), {"a": Inner((1.0, 2.0))}, np.empty(3)))
    assert found == {
        "inner": {"interval": [None, 2.0]},
        "colour": "red",
        "target": target.to_json(),
        "values": [0.0, 1.0],
        "by_name": {"a": {"interval": [1.0, 2.0]}},
    }
    assert json.loads(json.dumps(found)) == found
    assert type(found["colour"]) is str


def test_a_number_of_numpy_is_one_of_python() -> None:
    assert type(plain(np.float64(1.5))) is float
    assert type(plain(np.bool_(True))) is bool
    assert plain(None) is None
