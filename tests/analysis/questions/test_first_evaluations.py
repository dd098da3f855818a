"""Runs that are past the target when first evaluated: their steps are a bound, in every question."""

import math
from pathlib import Path

import pytest

from analysis import analyze
from analysis.config import AnalysisConfig
from analysis.estimate.diagnosis import Verdict
from analysis.present.answers import points
from analysis.questions.analyze.figures import learning_rate
from analysis.questions.analyze.figures.steps import rows as steps_rows
from analysis.read.importers import import_runs
from tests.analysis.read.importers.sources import settings, write_csv

QUICK = AnalysisConfig(resamples=200)
CRITICAL, LEAST = 2000.0, 500.0
SIZES = (50, 100, 200, 400, 800, 1600)


def needed(size: int, rate: float = 1.0) -> float:
    """Steps to loss 2.4: the best rate is 1, and twice as high costs more than half as high."""
    return LEAST * (1 + CRITICAL / size) * (1 + 0.2 * math.log(rate) ** 2 + 0.03 * math.log(rate))


def sweep(top: Path, every: int, rates: tuple[float, ...] = (0.5, 1.0, 2.0)) -> Path:
    """Runs without noise whose loss is linear in ln steps, evaluated every so many steps."""
    rows = [
        {"run": f"{size} {rate}", "batch_size": size, "lr": 1e-3 * rate, "step": step, "optimizer": "adamw",
         "loss": 2.4 + 0.5 * math.log(needed(size, rate) / step)}
        for size in SIZES for rate in rates for step in range(every, 100_000, every)
        if step < 1.5 * needed(size, rate) + 2 * every
    ]  # fmt: skip
    import_runs([write_csv(top / "runs.csv", rows)], top / "out", settings())
    return top / "out"


@pytest.fixture(scope="module")
def rare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Evaluated every 5,000 steps: sizes up to 200 need more steps than that, those from 400 on fewer."""
    return sweep(tmp_path_factory.mktemp("rare"), 5000)


@pytest.mark.parametrize("every", [2000, 10000])
def test_the_truth_is_inside_whatever_was_seen_of_it(tmp_path: Path, every: int) -> None:
    (answer,) = analyze(sweep(tmp_path, every), QUICK).answers
    low, high = answer.interval
    assert (low or 0.0) <= CRITICAL <= (high or math.inf)
    bounded = [point.batch_size for point in answer.points if point.bounded]
    assert bounded == [size for size in SIZES if needed(size) < every]
    assert (answer.verdict is Verdict.COARSE_STEPS) or not bounded
    for point in answer.points:
        known = point.steps_upper_bound or point.steps_to_target
        assert known == (every if point.bounded else pytest.approx(needed(point.batch_size), rel=0.1))
        assert (point.best_lr is None) == point.bounded


def test_the_verdict_comes_first_and_points_the_right_way(rare: Path) -> None:
    (answer,) = analyze(rare, QUICK).answers
    assert answer.interval[1] is answer.near[1] is None
    assert answer.advice.startswith("runs were past the target when first evaluated")
    assert "at most those at batch size 400 (5,000), 800 (5,000), 1600 (5,000): evaluate earlier" in answer.advice
    assert "add larger ones" not in answer.advice
    assert "extend the grid" not in answer.advice


def test_figures_and_tables_show_bounds_as_such(rare: Path) -> None:
    (answer,) = analyze(rare, QUICK).answers
    assert {row["batch_size"]: row["steps"] for row in steps_rows(answer) if row["kind"] == "at_most"} == {
        400: 5000.0, 800: 5000.0, 1600: 5000.0,
    }  # fmt: skip
    drawn = learning_rate.compute([answer])
    assert set(drawn["batch_size"][drawn["at_most"].astype(bool)]) == {400, 800, 1600}
    (steps,) = (column.value for column in points([answer]).columns if column.heading == "steps to target")
    assert [steps(point, answer) for point in answer.points][3:] == ["< 5,000"] * 3


def test_one_learning_rate_that_is_past_the_target_is_the_best_of_them(tmp_path: Path) -> None:
    every = 3500  # steps of size 400 are 3,000 at rate 1, and 3,300 and more at others
    (answer,) = analyze(sweep(tmp_path, every, (0.125, 1.0, 8.0)), QUICK).answers
    point = next(point for point in answer.points if point.batch_size == 400)
    assert (point.best_lr, point.at_grid_edge, point.steps_upper_bound) == (1e-3, False, every)
