"""Batch-size rules: values of the paper, their meaning, their domains."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cbs.errors import ConfigError
from cbs.noise_scale.rules import (
    batch_size_for_noise,
    batch_size_for_progress,
    learning_rate_share,
    progress,
)
from cbs.theory.pareto import speed

EXPONENTS = pytest.mark.parametrize("exponent", [1, 2])


def test_values_of_the_paper() -> None:
    assert batch_size_for_noise(0.5, 100.0) == pytest.approx(400.0)
    assert progress(400.0, 100.0, exponent=2) == pytest.approx(0.25)
    assert batch_size_for_progress(0.5, 1.0, exponent=2) == pytest.approx(11.66, abs=0.005)
    assert batch_size_for_progress(0.5, 1.0, exponent=1) == pytest.approx(1.0)


@EXPONENTS
def test_progress_at_the_critical_batch_size_is_what_was_asked_for(exponent: int) -> None:
    shares = np.array([0.01, 0.2, 0.5, 0.9, 0.999])
    sizes = batch_size_for_progress(shares, 30.0, exponent=exponent)
    np.testing.assert_allclose(progress(sizes, 30.0, exponent=exponent), shares, rtol=1e-12)


def test_a_tolerance_is_a_progress() -> None:
    tolerances = np.array([0.1, 0.5, 0.9])
    sizes = batch_size_for_noise(tolerances, 30.0)
    np.testing.assert_allclose(progress(sizes, 30.0, exponent=2), (1 - tolerances) ** 2)
    np.testing.assert_allclose(progress(sizes, 30.0, exponent=1), 1 / (1 + tolerances**2))


def test_exponent_one_is_the_hyperbola() -> None:
    sizes = np.geomspace(0.1, 1000.0, 9)
    np.testing.assert_allclose(progress(sizes, 30.0, exponent=1), speed(sizes, 30.0))
    np.testing.assert_allclose(learning_rate_share(sizes, 30.0, exponent=1), speed(sizes, 30.0))


def test_the_bound_promises_most_per_example_at_four_times_the_noise_scale() -> None:
    sizes = np.linspace(1.001, 8.0, 700_000)
    # the grid is 1e-5 wide, and the top is flat
    assert sizes[np.argmax(progress(sizes, 1.0, exponent=2) / sizes)] == pytest.approx(4.0, rel=1e-3)


@EXPONENTS
def test_shares_rise_from_nothing_to_everything(exponent: int) -> None:
    sizes = np.geomspace(1e-3, 1e12, 200)
    for share in (progress, learning_rate_share):
        values = share(sizes, 10.0, exponent=exponent)
        assert (np.diff(values) >= 0).all()
        assert values[0] < 1e-3
        assert values[-1] == pytest.approx(1.0, abs=1e-4)
    assert progress(10.0, 10.0, exponent=2) == 0.0


@pytest.mark.parametrize("undefined", [math.nan, -1.0])
def test_an_undefined_noise_scale_gives_nan(undefined: float) -> None:
    for value in (
        batch_size_for_noise(0.5, undefined),
        batch_size_for_progress(0.5, undefined, exponent=1),
        batch_size_for_progress(0.5, undefined, exponent=2),
        progress(8, undefined, exponent=1),
        progress(8, undefined, exponent=2),
    ):
        assert np.isnan(value)
    assert np.isnan(progress(8, [undefined, 1.0], exponent=2)).tolist() == [True, False]


def test_values_outside_their_domain_are_refused() -> None:
    for bad in (0.0, 1.0, -0.5, math.nan):
        with pytest.raises(ConfigError, match="tolerance theta must be above 0 and below 1"):
            batch_size_for_noise(bad, 1.0)
        with pytest.raises(ConfigError, match="share of the progress must be above 0 and below 1"):
            batch_size_for_progress(bad, 1.0, exponent=1)
    for bad in (0, -4, math.nan):
        with pytest.raises(ConfigError, match="batch size must be positive"):
            progress(bad, 1.0, exponent=1)
    with pytest.raises(ConfigError, match="exponent 1 or 2, got 3"):
        learning_rate_share(1, 1.0, exponent=3)
