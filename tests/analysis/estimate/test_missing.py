"""Trials that were never run: they have not failed, and a sweep with holes says the same as a whole one."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest

from analysis.config import AnalysisConfig
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.estimates import Reading, estimates
from analysis.estimate.fit_table import fit_table
from analysis.estimate.fitting.exponent import ALONE
from analysis.estimate.fitting.least_squares import EXPONENTS
from analysis.estimate.fitting.quality import LeaveOneOut
from analysis.estimate.result import Answer
from analysis.estimate.studies import Study
from tests.analysis.estimate.test_seeds import GROUP
from tests.factories import Truth, tables

SIZES = (4, 16, 64, 256, 1024)
CRITICAL, MIN_STEPS = 100.0, 400.0
QUICK = AnalysisConfig(resamples=100)


def sweep(seed: int, *, missing: float, known: bool = True) -> list[Study]:
    """Seven learning rates, three seeds, and so large a share of the trials never run; ``known`` says so, otherwise
    they seem to have failed."""
    truth = Truth(min_steps=MIN_STEPS, min_examples=MIN_STEPS * CRITICAL, noise=0.05, lr_power=0.2, curvature=0.5)
    rng = np.random.default_rng([7, seed])
    found = []
    for size, table in zip(SIZES, tables(truth, SIZES, 3, prune_factor=None, seed=seed), strict=True):
        gone = rng.random(table.shape) < missing
        steps, bound, trials = np.where(gone, np.nan, table), np.full(table.shape, np.nan), np.full(table.shape, -1)
        status = np.where(gone, "" if known else "FAILED", "REACHED").astype(object)
        lrs, exact = 5e-4 * 2.0 ** np.arange(len(table)), np.zeros(table.shape)
        found.append(Study(size, lrs, np.arange(3), steps, status, bound, trials, exact))
    return found


def estimate(studies: list[Study]) -> Answer:
    return next(estimates(GROUP, [Reading(target=GROUP.target, studies=studies)], QUICK, [ALONE]))


def holds(truth: float, interval: tuple[float | None, float | None]) -> bool:
    low, high = interval
    return (low is None or low <= truth) and (high is None or truth <= high)


def test_a_sweep_with_holes_says_the_same_as_a_whole_one() -> None:
    """30 % of the cells of 20 sweeps were never run. At 95 % fewer than 17 hits have probability 0.016. Taken for
    failed they let learning rates win that happened to be run with every seed: estimates are then off by a factor."""
    found = [estimate(sweep(seed, missing=0.3)) for seed in range(20)]
    assert sum(holds(CRITICAL, each.definitions["pareto"].interval) for each in found) >= 17
    assert sum(holds(MIN_STEPS, each.min_steps.interval) for each in found) >= 17
    assert np.median([each.min_steps.value or math.nan for each in found]) == pytest.approx(MIN_STEPS, rel=0.05)
    failed = [estimate(sweep(seed, missing=0.3, known=False)) for seed in range(10)]
    off = [
        np.median([abs(math.log((each.definitions["pareto"].value or math.inf) / CRITICAL)) for each in some])
        for some in (found, failed)
    ]
    assert off[0] < 0.15
    assert off[1] > 0.25


def test_nothing_missing_nothing_changed() -> None:
    """Where all was run, what ``ran`` says is what is taken when it says nothing."""
    whole, told = (estimate(sweep(0, missing=0.0, known=known)) for known in (True, False))
    assert whole.definitions["pareto"].interval == told.definitions["pareto"].interval
    assert whole.points == told.points


PERFECT = [(8, 100000), (16, 50000), (32, 25000), (64, 12500)]


@pytest.mark.parametrize("rows", [PERFECT, PERFECT[:3], [(b, round(s * (b / 8) ** -0.9)) for b, s in PERFECT]])
def test_a_table_of_perfect_scaling_is_short_of_the_saturating_part_and_valid_json(rows: list[tuple[int, int]]) -> None:
    found = fit_table(pd.DataFrame(rows, columns=["batch_size", "steps"]), QUICK)
    (answer,) = found.answers
    assert answer.verdict is Verdict.NO_SATURATION
    assert answer.verdict == "saturating part not reached"
    assert answer.critical_batch_size is None
    assert answer.interval[0] is not None
    assert answer.interval[0] > rows[-1][0]
    assert answer.interval[1] is None
    written = json.loads(json.dumps(found.to_json(), allow_nan=False))["fits"][0]
    assert (written["critical_batch_size"], written["min_steps"], written["examples_at_critical"]) == (None,) * 3
    assert written["hyperbola"]["critical_batch_size"] is None
    low, high = written["leave_one_out"] or (None, None)
    assert low is None or low > rows[-1][0]
    assert high is None


@pytest.mark.parametrize("rows", [[(b, 300) for b, _ in PERFECT], [(8, 300), (16, 300)], PERFECT[:2]])
def test_tables_without_a_bend_are_valid_json(rows: list[tuple[int, int]]) -> None:
    found = fit_table(pd.DataFrame(rows, columns=["batch_size", "steps"]), QUICK)
    assert found.answers[0].verdict in (Verdict.NO_PERFECT_SCALING, Verdict.TOO_FEW_BATCH_SIZES)
    json.dumps(found.to_json(), allow_nan=False)


@pytest.mark.parametrize("exponent", [0.1, 9.0])
def test_an_exponent_at_the_end_of_what_is_looked_for_is_open(exponent: float) -> None:
    sizes = 2.0 ** np.arange(1, 10)
    steps = 1000 * (1 + (30.0 / sizes) ** exponent)
    found = fit_table(pd.DataFrame({"batch_size": sizes, "steps": steps}), QUICK).answers[0]
    assert found.exponent.value is None
    assert found.exponent.interval[0 if exponent < 1 else 1] is None
    assert not set(EXPONENTS) & {found.exponent.value, *found.exponent.interval}


@pytest.mark.parametrize(
    ("critical", "expected"),
    [([40.0, 50.0], (40.0, 50.0)), ([0.0, 50.0], (None, 50.0)), ([40.0, math.inf], (40.0, None)),
     ([math.inf, math.inf], (None, None)), ([0.0, 0.0], (None, None))],
)  # fmt: skip
def test_refits_that_bound_nothing_leave_their_range_open(critical: list[float], expected: tuple[float, float]) -> None:
    assert LeaveOneOut(np.array([2.0, 4.0]), np.array(critical), np.full(2, math.nan)).range == expected
