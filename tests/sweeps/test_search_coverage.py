"""Search and analysis together: learning rates and seeds chosen on few trials, and the truth still in the interval."""

from __future__ import annotations

import statistics

import pytest

from benchmarks.search_coverage import TRUTH, replicate
from benchmarks.search_worlds import World


def covered(replicates: int, noise: float, distance: float) -> tuple[float, float]:
    """Share of sweeps whose interval holds the truth, and the median estimate over it."""
    found = [replicate(World(distance, 0.5, noise, number), 200)["search"] for number in range(replicates)]
    return statistics.mean(one["covered"] for one in found), statistics.median(one["estimate"] for one in found) / TRUTH


def test_the_interval_holds_the_truth_after_a_search() -> None:
    """Of six at 95 %, three and fewer are found once in 10,000."""
    share, ratio = covered(6, 0.1, 30.0)
    assert share > 0.6
    assert ratio == pytest.approx(1.0, abs=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.03, 0.1])
@pytest.mark.parametrize("distance", [1.0, 30.0])
def test_the_interval_has_the_coverage_it_states(noise: float, distance: float) -> None:
    """Of 100 at 95 %, 88 and fewer are found once in 200."""
    share, ratio = covered(100, noise, distance)
    assert share >= 0.89
    assert ratio == pytest.approx(1.0, abs=0.04)
