"""Search and analysis together: learning rates and seeds chosen on few trials, and the truth still in the interval."""

import math
import random
import statistics
from collections.abc import Iterable
from typing import Any

import pandas as pd
import pytest

from analysis.config import AnalysisConfig
from analysis.questions.fit.table_fit import fit_table
from cbs.trial.record import TrialResult, TrialStatus
from sweeps.search.forecast import play
from sweeps.search.search import Search
from sweeps.spec.spec import Sweep
from tests.sweeps.search_worlds import DEFAULT, MIN_EXAMPLES, MIN_STEPS, World, sweep

TRUTH = MIN_EXAMPLES / MIN_STEPS
GRIDS = {"factor 1.19": 2.0**0.25, "factor 2": 2.0, "factor 4": 4.0}


def table(results: Iterable[TrialResult]) -> pd.DataFrame:
    """The trials as an analysis reads them; what was stopped is a bound, what diverged has no steps."""
    rows = [
        {
            "batch_size": result.config.batch_size,
            "lr": result.config.lr,
            "seed": result.config.seed,
            "steps": math.nan
            if result.status is TrialStatus.DIVERGED
            else result.steps_to_target or float(result.final_step),
            "censored": result.steps_to_target is None,
        }
        for result in results
    ]
    return pd.DataFrame(rows)


def answer(results: Iterable[TrialResult], truth: float, resamples: int) -> dict[str, Any]:
    """``covered``, ``width`` (half, in ln), ``estimate`` over the truth, ``verdict``."""
    found = fit_table(table(results), AnalysisConfig(resamples=resamples)).answers[0]
    low, high = found.interval
    return {
        "estimate": (found.critical_batch_size or math.nan) / truth,
        "verdict": str(found.verdict),
        "covered": (low is None or low <= truth) and (high is None or high >= truth),
        "width": math.log(high / low) / 2 if low and high else math.inf,
    }


def trials(world: Any, way: str, base: Sweep) -> list[TrialResult]:
    """A sweep whose learning rates are chosen by ``search``, or lie on one of :data:`GRIDS`."""
    if way == "search":
        return play(Search(base), world.end, workers=2).results
    factor, results = GRIDS[way], []
    anchor = DEFAULT * factor ** random.Random(f"{world} {way}").uniform(0.0, 1.0)
    for size in base.axes.batch_sizes:
        nearest = round(math.log(world.best_lr(size) / anchor, factor))
        lrs = tuple(float(f"{anchor * factor**power:.6g}") for power in range(nearest - 2, nearest + 3))
        results += play(Search(base.replace(batch_sizes=(size,), lrs=lrs)), world.end, workers=2).results
    return results


def replicate(world: World, way: str, resamples: int) -> dict[str, Any]:
    return answer(trials(world, way, sweep(world)), TRUTH, resamples)


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


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.03, 0.1])
@pytest.mark.parametrize("distance", [1.0, 30.0])
def test_the_interval_has_the_coverage_it_states(noise: float, distance: float) -> None:
    """Of 50 at 95 %, 42 and fewer are found once in 300."""
    share, ratio = covered(50, noise, distance)
    assert share >= 0.85
    assert ratio == pytest.approx(1.0, abs=0.06)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "way"), [("constant", "search"), ("constant", "factor 4"), ("square root", "factor 2")]
)
def test_the_answer_at_the_best_of_all_learning_rates_is_in_its_interval(kind: str, way: str) -> None:
    """Of 40 at 95 %, 33 and fewer are found once in 300."""
    assert way == "search" or way in GRIDS
    power = {"constant": 0.0, "square root": 0.5}[kind]
    found = [replicate(World(1.0, power, 0.03, number), way, 200) for number in range(40)]
    assert sum(one["covered"] for one in found) >= 34
    assert sum(one["covered"] or one["verdict"] != "ok" for one in found) >= 38
