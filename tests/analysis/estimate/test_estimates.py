"""From draws to the numbers of an answer: on hyperbolas known in closed form, and on published curves."""

import math

import numpy as np
import pandas as pd
import pytest

from analysis.config import AnalysisConfig
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.estimates import Reading, doublings, estimates
from analysis.estimate.result import Answer
from analysis.questions.analyze.figures.pareto import LEAST, ThreePieces, three_pieces
from analysis.questions.fit.table_fit import fit_table
from tests.analysis.estimate.known import CRITICAL, GROUP, SIZES, exact, hyperbola, noisy, study
from tests.certified import mccandlish2018, zhang2024

QUICK = AnalysisConfig(resamples=300)


def estimate(values: np.ndarray, config: AnalysisConfig = QUICK) -> Answer:
    studies = [study(int(size), row[None]) for size, row in zip(SIZES, values, strict=True)]
    return next(estimates(GROUP, [Reading(target=GROUP.target, studies=studies)], config))


def test_what_doubling_buys_on_the_hyperbola() -> None:
    """From B to 2 B: steps by ``(1 + c / 2B) / (1 + c / B)``, which at B = c is a quarter fewer for half as many
    examples more."""
    found = doublings(exact(hyperbola), 0.95)
    assert [each.batch_size for each in found] == SIZES[:-1].tolist()
    for each in found:
        ratio = (1 + CRITICAL / (2 * each.batch_size)) / (1 + CRITICAL / each.batch_size)
        assert each.steps_saved.value == pytest.approx(1 - ratio, abs=0.005)
        assert each.examples_added.value == pytest.approx(2 * ratio - 1, abs=0.01)
        for quantity in (each.steps_saved, each.examples_added):
            low, high = quantity.interval
            assert low is not None
            assert high is not None
            assert low <= quantity.value <= high
            assert high - low < 0.05
    at_critical = doublings(exact(lambda sizes: hyperbola(sizes, critical=32.0)), 0.95)[4]
    assert (at_critical.steps_saved.value, at_critical.examples_added.value) == pytest.approx((0.25, 0.5), abs=0.005)


def test_only_what_was_measured_is_doubled() -> None:
    sizes = np.array([4.0, 32.0, 48.0, 256.0])
    found = doublings(exact(hyperbola, sizes), 0.95)
    assert [each.batch_size for each in found] == [4, 32, 48]
    assert doublings(exact(hyperbola, np.array([4.0, 6.0])), 0.95) == ()


def test_the_value_is_the_median_of_the_draws_and_the_interval_their_percentiles() -> None:
    found = estimate(noisy(np.random.default_rng(0), 0.05))
    drawn = found.critical.drawn
    assert drawn.shape == (QUICK.resamples,)
    assert found.critical_batch_size == np.quantile(drawn, 0.5, method="nearest")
    assert found.interval == tuple(np.quantile(drawn, [0.025, 0.975], method="nearest"))
    wider = estimate(noisy(np.random.default_rng(0), 0.05), AnalysisConfig(resamples=300, confidence=0.5)).interval
    assert found.interval[0] < wider[0] < wider[1] < found.interval[1]  # type: ignore[operator]


def test_a_far_seed_is_the_verdict_and_the_interval_allows_both() -> None:
    values = noisy(np.random.default_rng(0), 0.05)
    values[7, 1] += math.log(3)
    found = estimate(values)
    assert found.verdict is Verdict.FAR_SEED
    assert "seed 1 at batch size 256 took" in found.advice
    low, high = found.interval
    assert low is not None
    assert high is not None
    assert low < CRITICAL < high
    (row,) = found.to_json()["far_seeds"]
    assert (row["batch_size"], row["seed"]) == (256, 1)


def test_worked_points_of_the_paper() -> None:
    """Steps at a quarter, one and four times B_crit; the curve through three points is known to about a tenth."""
    rows = [
        (share * mccandlish2018.CRITICAL, steps * mccandlish2018.MIN_STEPS) for share, steps, _ in mccandlish2018.POINTS
    ]
    (answer,) = fit_table(pd.DataFrame(rows, columns=["batch_size", "steps"]), QUICK).answers
    assert answer.critical_batch_size == pytest.approx(mccandlish2018.CRITICAL, rel=0.1)
    assert answer.hyperbola is not None
    assert answer.hyperbola.min_examples.value == pytest.approx(mccandlish2018.MIN_EXAMPLES, rel=0.05)


@pytest.mark.parametrize("row", zhang2024.ROWS, ids=lambda row: row.model)
def test_published_curves(row: zhang2024.Row) -> None:
    """The authors fit the hyperbola by least squares of ln steps, its critical batch size is b/a: the medians of
    the hyperbola's draws are within 1 % of all that they print. The least product needs no asymptote, and lies at 2180,
    2960 and 4890 where they have 2191, 3240 and 5433: up to 10 % lower, within its interval."""
    printed = {"overhead": 0.2, "reference_batch": 256.0, "hyperbola": True}
    config = AnalysisConfig(options={"overhead": printed})
    table = pd.DataFrame({"batch_size": zhang2024.BATCH_SIZES, "steps": row.steps})
    (answer,) = fit_table(table, config).answers
    assert answer.hyperbola is not None
    assert answer.hyperbola.min_steps.value == pytest.approx(row.a, rel=0.01)
    assert answer.hyperbola.min_examples.value == pytest.approx(row.b, rel=0.01)
    assert answer.hyperbola.critical_batch_size.value == pytest.approx(row.ratio, rel=0.01)
    assert answer.definitions["overhead"].value == pytest.approx(row.overhead, rel=0.01)
    assert answer.critical_batch_size == pytest.approx(row.ratio, rel=0.15)
    low, high = answer.interval
    assert low is not None
    assert high is not None
    assert low < row.ratio < high
    # the law with a free exponent is an extrapolation: here 20 % lower, and off by more than its interval at one size
    assert answer.definitions["pareto"].value == pytest.approx(row.ratio, rel=0.3)
    assert answer.verdict is Verdict.TOO_FEW_SEEDS
    assert 0.9 < answer.exponent.value < 1.3  # type: ignore[operator]


TRUTH = ThreePieces(200.0, 600.0, (400.0, 900.0), 10_000.0, 0.05)


def test_pieces_meet_with_equal_slopes_and_are_what_the_formulas_say() -> None:
    for joint in TRUTH.joints:
        low, at, high = TRUTH.examples(joint + np.array([-1e-4, 0.0, 1e-4]))
        assert at == pytest.approx(low, rel=1e-6)
        assert (high - at) == pytest.approx(at - low, rel=1e-3)
    steps = np.array([250.0, 300.0, 350.0])
    inverse = TRUTH.examples(steps)
    ratio = (inverse[0] - inverse[1]) / (inverse[1] - inverse[2])  # of B / (S - S_min), whatever B_0
    assert ratio == pytest.approx((1 / 50 - 1 / 100) / (1 / 100 - 1 / 150))
    assert np.diff(TRUTH.examples(np.array([1000.0, 2000.0])))[0] / 1000 == pytest.approx(TRUTH.min_batch_size)
    assert TRUTH.examples(np.array([600.0]))[0] == 10_000.0
    assert TRUTH.best_batch_size == pytest.approx(10_000 / 600)


def test_points_on_pieces_give_them_back() -> None:
    steps = np.array([215.0, 240.0, 300.0, 380.0, 480.0, 600.0, 800.0, 1100.0, 1600.0, 2500.0])
    found = three_pieces(steps, TRUTH.examples(steps))
    assert found is not None
    np.testing.assert_allclose(found.examples(steps), TRUTH.examples(steps), rtol=0.01)
    assert found.best_batch_size == pytest.approx(TRUTH.best_batch_size, rel=0.05)
    assert found.min_batch_size == pytest.approx(TRUTH.min_batch_size, rel=0.1)


def test_six_parameters_need_more_points_than_six() -> None:
    steps = np.geomspace(215.0, 2500.0, LEAST - 1)
    assert three_pieces(steps, TRUTH.examples(steps)) is None
