"""The critical batch size without a curve of a given form."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from analysis import analyze
from analysis.config import AnalysisConfig
from analysis.estimate.definitions import CurveSample, build
from analysis.estimate.definitions.interpolated import convex
from analysis.estimate.fitting.least_squares import HYPERBOLA, fit_curves
from analysis.present.figures import figures_of
from tests.factories import Truth, sweep
from tests.references import interpolated

SIZES = 2.0 ** np.arange(1, 10)


def read(steps: np.ndarray, sizes: np.ndarray = SIZES, **options: float) -> tuple[float, str]:
    rows = np.log(np.atleast_2d(steps))
    curve = fit_curves(sizes, rows, exponent=HYPERBOLA)
    sample, definition = CurveSample(sizes, rows, curve, curve), build("interpolated", **options)
    return float(definition([sample])[0]), definition.remark([sample])


@pytest.mark.parametrize("seed", range(5))
def test_as_a_general_solver_finds_it(seed: int) -> None:
    rng, logs = np.random.default_rng(seed), np.log(SIZES)
    rows = np.log(100 * (1 + 20 / SIZES)) + 0.1 * rng.standard_normal((3, len(SIZES)))
    heights, slopes = convex(logs, rows)
    for row, found, slope in zip(rows, heights, slopes, strict=True):
        twin = interpolated.convex(logs, row)
        np.testing.assert_allclose(found, twin - twin[-1], atol=1e-5)
        assert slope == pytest.approx((twin[-2] - twin[-1]) / (logs[-1] - logs[-2]), abs=1e-5)
        assert read(np.exp(row), tolerance=1.0)[0] == pytest.approx(interpolated.critical(logs, row), rel=1e-4)


def test_straight_in_log_log_between_measured_batch_sizes_that_obey_the_rules() -> None:
    """Steps 800, 300, 150 at 1, 4, 16: twice the last is 300, at 4; of 800, 400, 150 halfway down the second piece."""
    sizes = np.array([1.0, 4.0, 16.0])
    assert read(np.array([800.0, 300.0, 150.0]), sizes, tolerance=0.4)[0] == pytest.approx(4.0)
    found, _ = read(np.array([1600.0, 400.0, 150.0]), sizes, tolerance=0.4)
    assert found == pytest.approx(math.exp(math.log(4) + math.log(4) * math.log(400 / 300) / math.log(400 / 150)))


def test_no_bias_from_the_form_where_steps_level_off() -> None:
    """Knees of any kind, whose steps no longer fall at the largest: within the spacing of the batch sizes."""
    sizes = 2.0 ** np.arange(1, 16)
    for knee in (0.7, 1.0, 2.0):
        steps = 175 * (1 + (2**knee - 1) * (40 / sizes) ** knee) ** (1 / knee)
        assert read(steps, sizes)[0] == pytest.approx(40.0, rel=0.12)


def test_where_the_range_does_not_allow_it() -> None:
    """The last doubling saves a half, or 20 % and a bit; the smallest takes less than twice the fewest."""
    assert read(1000 / SIZES) == (math.inf, "steps still fall at the largest measured batch size, 512: add larger ones")
    steps = np.array([400.0, 200.0, 120.0, 95.9])
    assert read(steps, SIZES[:4])[0] == math.inf
    assert read(steps, SIZES[:4], tolerance=0.21)[0] < 8.0
    found, remark = read(100 + 10 / SIZES)
    assert found == 0.0
    assert "batch size, 2, takes less than twice" in remark
    assert math.isnan(read(np.array([200.0, 100.0]), SIZES[:2])[0])


def test_what_lies_below_the_measured_batch_sizes_is_below_the_smallest_and_can_be_drawn(tmp_path: Path) -> None:
    sweep(tmp_path / "s", {"adamw": Truth(min_examples=500.0, noise=0.01)}, batch_sizes=(32, 64, 128, 256), seeds=3)
    analysis = analyze(tmp_path / "s", AnalysisConfig(resamples=100))
    found = analysis.answers[0].definitions["interpolated"]
    assert (found.value, found.interval) == (None, (None, 32.0))
    (picture,) = (each for each in figures_of(analysis) if each.name == "definitions")
    picture.write(tmp_path / "figures")  # a warning, that nothing fits, would be an error
