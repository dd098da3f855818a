"""Search and analysis together: learning rates and seeds chosen on few trials, and the truth still in the interval."""

from __future__ import annotations

import statistics

import pytest

from benchmarks.calibration.cases import CASES
from benchmarks.search_coverage import GRIDS, Momentum, answer, replicate, trials
from benchmarks.search_quadratic import end_of
from benchmarks.search_worlds import World
from sweeps.spec.cell import Cell


def covered(replicates: int, noise: float, distance: float) -> tuple[float, float]:
    """Share of sweeps whose interval holds the truth, and the median estimate over it."""
    worlds = (World(distance, 0.5, noise, number) for number in range(replicates))
    found = [replicate(world, "search", 200) for world in worlds]
    return statistics.mean(one["covered"] for one in found), statistics.median(one["estimate"] for one in found)


def test_the_interval_holds_the_truth_after_a_search() -> None:
    """Of six at 95 %, three and fewer are found once in 10,000."""
    share, ratio = covered(6, 0.1, 30.0)
    assert share > 0.6
    assert ratio == pytest.approx(1.0, abs=0.2)


def test_a_coarse_grid_beside_a_cliff_widens_and_a_fine_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three at 95 %, one and none are found once in 140."""
    monkeypatch.setattr(
        "analysis.estimate.fitting.form_fits.ALIKE", 0.0
    )  # what the grid leaves open, nothing else, widens
    worlds = [Momentum(0.03, number) for number in range(3)]
    ran = {way: [(trials(world, way), world.truth) for world in worlds] for way in ("factor 1.19", "factor 2")}
    found = {way: [answer(*one, 200) for one in sweeps] for way, sweeps in ran.items()}
    assert sum(one["min_steps_covered"] and one["covered"] for one in found["factor 2"]) >= 2
    monkeypatch.setattr("analysis.estimate.study_fits.gain", lambda study: 0.0)
    for way, least, most in (("factor 1.19", 0.9, 1.15), ("factor 2", 1.4, 12.0)):
        without = [answer(*one, 200) for one in ran[way]]
        for name in ("width", "min_steps_width"):
            ratio = statistics.median(one[name] for one in found[way]) / statistics.median(one[name] for one in without)
            assert least <= ratio <= most, (way, name)


def test_the_best_learning_rates_of_the_quadratic_move() -> None:
    case = CASES["preconditioned"]
    sweep = case.sweep((0,))
    low, high = (sweep.trial(Cell(next(iter(sweep.choices)), 2048, 0), lr) for lr in (0.75, 1.5))
    assert end_of(case, 1.0)(high) == end_of(case)(low) != end_of(case)(high)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.03, 0.1])
@pytest.mark.parametrize("distance", [1.0, 30.0])
def test_the_interval_has_the_coverage_it_states(noise: float, distance: float) -> None:
    """Of 100 at 95 %, 88 and fewer are found once in 200."""
    share, ratio = covered(100, noise, distance)
    assert share >= 0.89
    assert ratio == pytest.approx(1.0, abs=0.04)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["search", "factor 2", "factor 4"])
@pytest.mark.parametrize("kind", ["constant", "square root", "momentum"])
def test_s_min_at_the_best_of_all_learning_rates_is_in_its_interval(kind: str, way: str) -> None:
    """Of 60 at 95 %, 51 and fewer are found once in 500. The grid of factor 4 beside a cliff is wide, not narrow."""
    assert way == "search" or way in GRIDS
    makes = {"constant": lambda n: World(1.0, 0.0, 0.03, n), "square root": lambda n: World(1.0, 0.5, 0.03, n)}
    make = makes.get(kind, lambda number: Momentum(0.06, number))
    found = [replicate(make(number), way, 200) for number in range(60)]
    assert sum(one["covered"] for one in found) >= 52
    assert sum(one["min_steps_covered"] for one in found) >= 52
