"""The quadratic of a spectrum that is known exactly, and of spectra that make none."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from analysis.extensions.theory.noisy_quadratic import NoisyQuadratic, modes_of
from analysis.extensions.theory.noisy_quadratic.measured import measured_quadratic
from cbs.spectrum.record import SpectralMeasure, SpectrumSample

H = np.array([2.0, 0.5, 0.1])
THETA = np.array([1.0, -2.0, 3.0])
NOISE = np.array([0.3, 0.2, 0.1])
LOSS = float(0.5 * H @ THETA**2)
FLOOR = 1.25


def sample(h: np.ndarray = H, gradient: np.ndarray = (H * THETA) ** 2, noise: np.ndarray = NOISE) -> SpectrumSample:
    """At the start of the quadratic."""
    return SpectrumSample(
        point="start",
        replicate=0,
        seed=0,
        step=0,
        value=FLOOR + LOSS,
        start_value=FLOOR + LOSS,
        train_loss=FLOOR + LOSS,
        gradient_examples=100,
        curvature_examples=10,
        measures=(
            SpectralMeasure("gradient", h, gradient),
            SpectralMeasure("start", h, gradient),
            SpectralMeasure("noise", h, noise),
        ),
    )


@pytest.mark.parametrize("method", ["sgd", "heavy_ball", "nesterov", "averaged"])
@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_start_and_noise_apart_have_the_losses_of_both_together(method: str, power: float) -> None:
    found = measured_quadratic([sample()])
    assert found.floor == pytest.approx(FLOOR)
    whole = NoisyQuadratic(curvature=H, noise=NOISE, start=THETA**2, count=np.ones(3))
    momentum = 0.0 if method == "sgd" else 0.8
    for steps in (1, 7, 100):
        one, other = (
            modes_of(model, method, 0.3, momentum, power=power).loss(steps, 4) for model in (found.model, whole)
        )
        assert one == pytest.approx(other, rel=1e-9)


def test_measurements_count_alike() -> None:
    twice = [sample(noise=0.5 * NOISE), sample(noise=1.5 * NOISE)]
    assert measured_quadratic(twice).model.noise_trace == pytest.approx(NOISE.sum())
    assert measured_quadratic(twice).model.initial_loss == pytest.approx(LOSS)


def test_an_assumed_floor_scales_the_start_and_leaves_the_noise() -> None:
    found = measured_quadratic([sample()], 1.0)
    assert found.floor == 1.0
    assert found.model.initial_loss == pytest.approx(LOSS + FLOOR - 1.0)
    assert found.model.noise_trace == pytest.approx(NOISE.sum())


def test_away_from_the_start_the_floor_is_that_of_the_gradient_there() -> None:
    here = dataclasses.replace(sample(), value=FLOOR + 0.25 * LOSS)
    small = SpectralMeasure("gradient", H, 0.25 * (H * THETA) ** 2)
    found = measured_quadratic([dataclasses.replace(here, measures=(small, *here.measures[1:]))])
    assert found.floor == pytest.approx(FLOOR)
    assert found.model.initial_loss == pytest.approx(LOSS)


def test_what_noise_hides_is_left_out_and_said() -> None:
    hidden = (H * THETA) ** 2 * np.array([1.0, 1.0, -0.01])
    found = measured_quadratic([sample(gradient=hidden)])
    kept = 0.5 * H[:2] @ THETA[:2] ** 2
    assert found.model.initial_loss == pytest.approx(kept)
    assert found.hidden == pytest.approx(0.01 * 0.5 * H[2] * THETA[2] ** 2 / kept)
    # the floor is that of the unbiased estimate, both signs counted
    assert found.floor == pytest.approx(FLOOR + LOSS - kept * (1 - found.hidden))


def test_a_little_negative_or_no_curvature_is_left_out_and_said() -> None:
    h, gradient, noise = (
        np.array([2.0, 0.5, -0.4, 1e-9]),
        np.array([4.0, 4.0, 2.0, 1.0]),
        np.array([8.0, 1.0, 0.5, 0.5]),
    )
    found = measured_quadratic([sample(h, gradient, noise)])
    assert found.negative == pytest.approx(2.0 / 11.0)
    assert found.flat == pytest.approx(1.0 / 11.0)
    assert found.model.initial_loss == pytest.approx(0.5 * (4.0 / 2.0 + 4.0 / 0.5))
    assert found.model.noise_trace == pytest.approx(9.0)


@pytest.mark.parametrize(
    ("made", "floor", "message"),
    [
        (sample(h=np.zeros(3)), None, "the curvature is 0 along the gradient and its noise"),
        (sample(h=-H), None, "negative curvature dominates: 100%"),
        (sample(h=np.array([1.0, 1e-9, 1e-9]), gradient=np.array([1.0, 9.0, 9.0])), None, "along curvatures of 0"),
        (sample(gradient=np.zeros(3)), None, "the gradient is 0"),
        (sample(gradient=-np.ones(3)), None, "or noise hides it"),
        (sample(), FLOOR + LOSS, "the floor .* is not below the metric before training"),
    ],
)
def test_what_makes_no_quadratic_is_said(made: SpectrumSample, floor: float | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        measured_quadratic([made], floor)


def test_no_noise_and_one_dimension() -> None:
    found = measured_quadratic([sample(np.array([2.0]), np.array([4.0]), np.array([0.0]))])
    assert found.model.noise_trace == 0.0
    assert found.model.initial_loss == pytest.approx(1.0)
