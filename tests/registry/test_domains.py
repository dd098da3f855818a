"""Whole numbers and numbers within bounds: what is taken, and what is refused in one line."""

import math
from typing import Any

import numpy as np
import pytest

from cbs.errors import ConfigError
from cbs.registry.values import finite, is_number, is_whole, number, whole


@pytest.mark.parametrize(("value", "least", "taken"), [(1, 1, True), (0, 1, False), (0, 0, True), (5, 5, True)])
def test_whole_numbers_start_at_the_least(value: int, least: int, taken: bool) -> None:
    assert is_whole(value, least) is taken
    if taken:
        assert whole("n", value, least=least) == value
    else:
        with pytest.raises(ConfigError, match=f"^n must be a whole number of at least {least}, got {value}$"):
            whole("n", value, least=least)


@pytest.mark.parametrize("value", [True, 1.0, "1", None])
def test_what_is_no_whole_number_is_refused_with_its_value(value: Any) -> None:
    with pytest.raises(ConfigError, match=f"at least 1, the first, got {value!r}$"):
        whole("n", value, what="the first")


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, math.nan, math.inf, True, "0.5", None])
def test_bounds_of_a_number_are_outside(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^x must be a number above 0 and below 1, got "):
        number("x", value, below=1.0)
    assert number("x", 0.5, below=1.0) == 0.5


def test_a_number_without_an_upper_bound_says_so() -> None:
    assert type(number("x", 3)) is float
    with pytest.raises(ConfigError, match=r"^x must be a number above 2, got 2$"):
        number("x", 2, above=2.0)


def test_truth_is_no_number_and_numpys_numbers_are_stored_as_floats() -> None:
    assert not is_number(True)
    assert is_number(1)
    assert type(finite("x", np.float32(0.5))) is float
    for value in (math.nan, math.inf, False, "1"):
        with pytest.raises(ConfigError, match=r"^x must be a finite number, got "):
            finite("x", value)
