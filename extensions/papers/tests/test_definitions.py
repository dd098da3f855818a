"""The definitions of single papers on an exact hyperbola, on perfect scaling alone, and on a plateau alone."""

import math

import numpy as np
import pytest

from analysis.estimate.definitions import CurveSample, build
from analysis.estimate.prior import StepsCurve
from extensions.papers.tests import sato2025
from tests.analysis.estimate.exact_draws import SIZES, of_law, sample

FOUR = np.exp(0.7 * np.arange(1, 5))
PERFECT, PLATEAU = 1e4 / FOUR, np.full(4, 300.0)


def through(steps: list[float] | np.ndarray, sizes: np.ndarray) -> CurveSample:
    """Straight lines in log-log through points, beyond them as between the first two."""
    law = StepsCurve(*(np.zeros(1) for _ in range(3)))
    return sample(lambda at: np.interp(np.log(at), np.log(sizes), np.log(steps)), law, sizes)


@pytest.mark.parametrize("name", ["sfo", "token_optimal"])
def test_the_hyperbola_has_the_fewest_examples_at_the_smallest_batch_size(name: str) -> None:
    assert build(name)([of_law()])[0] == pytest.approx(SIZES[0], rel=1e-6)


@pytest.mark.parametrize(
    ("name", "perfect", "plateau", "remarks"),
    [
        ("sfo", FOUR[0], FOUR[0], ("no interior optimum", "no interior optimum")),
        ("token_optimal", FOUR[-1], FOUR[0], ("at the largest measured", "brittle")),
        ("perfect_scaling_end", math.inf, 1.1 * FOUR[0], ("no measured batch size leaves", "has left the line")),
        ("saturation", math.inf, 0.0, ("still fall at the largest", "no longer fall at the smallest")),
    ],
)
def test_perfect_scaling_alone_and_a_plateau_alone(
    name: str, perfect: float, plateau: float, remarks: tuple[str, str]
) -> None:
    for steps, value, remark in zip((PERFECT, PLATEAU), (perfect, plateau), remarks, strict=True):
        measured = through(steps, FOUR)
        assert build(name)([measured])[0] == pytest.approx(value)
        assert remark in build(name).remark([measured], 0, value)


def test_sfo_has_an_interior_optimum_where_small_batches_do_worse() -> None:
    sizes = sato2025.BEST * np.exp([-0.5, -0.25, 0.0, 0.3, 1.0])
    measured = through([sato2025.steps(size) for size in sizes], sizes)
    (best,) = build("sfo")([measured])
    assert best == pytest.approx(sato2025.BEST)
    assert np.exp(measured.log_examples.min()) == pytest.approx(sato2025.FEWEST)
    assert build("sfo").remark([measured], 0, best) == ""
