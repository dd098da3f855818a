"""What is said against an answer, and in which order."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from analysis.estimate.diagnosis import EXCESS_RMS, LACK_OF_FIT, Doubts, Verdict, judge
from analysis.estimate.fitting.misfit import Misfit
from analysis.estimate.fitting.quality import LeaveOneOut
from analysis.estimate.studies import Point

SIZES = (4, 16, 64, 256)
POINTS = [
    Point(batch_size=size, steps_to_target=100.0, best_lr=1e-3, at_grid_edge=False, seeds=3, seeds_reached=3, status="")
    for size in SIZES
]
LEFT_OUT = LeaveOneOut(np.array(SIZES), np.array([40.0, 41.0, 42.0, 43.0]), np.array([0.5, 0.001, 0.001, 0.001]))
SEEN = Doubts(seen=(True, True))
LARGE, SMALL = Misfit(0.0004, 2 * EXCESS_RMS), Misfit(0.0004, 0.5 * EXCESS_RMS)


def verdict(points: list[Point] = POINTS, **doubts: object) -> tuple[Verdict, str]:
    return judge(points, dataclasses.replace(SEEN, **doubts), "", "")


def test_nothing_to_say() -> None:
    assert verdict() == (Verdict.OK, "")
    fine = Misfit(2 * LACK_OF_FIT, 2 * EXCESS_RMS)
    assert verdict(misfit=fine, left_out=LEFT_OUT, ends=(30.0, 60.0)) == (Verdict.OK, "")


def test_points_far_off_the_curve_are_the_verdict() -> None:
    everywhere = dataclasses.replace(LEFT_OUT, misfit=np.full(4, 0.001))
    found, advice = verdict(misfit=LARGE, left_out=everywhere, ends=(30.0, 60.0))
    assert found == "points are off the curve"
    assert f"{200 * EXCESS_RMS:.2g} % (rms) off the curve" in advice
    assert "p = 0.0004" in advice
    assert "without batch size" not in advice


@pytest.mark.filterwarnings("error")
def test_refits_without_a_misfit_of_their_own_name_no_batch_size() -> None:
    undefined = dataclasses.replace(LEFT_OUT, misfit=np.full(4, np.nan))
    found, advice = verdict(misfit=LARGE, left_out=undefined, ends=(30.0, 60.0))
    assert found is Verdict.OFF_THE_CURVE
    assert "without batch size" not in advice


@pytest.mark.parametrize("probability", [1e-3, 1e-12])
@pytest.mark.parametrize("percent", [1, 2, 2.9])
def test_points_a_little_off_the_curve_are_a_remark_however_sure(percent: float, probability: float) -> None:
    found, advice = verdict(misfit=Misfit(probability, percent / 100), ends=(30.0, 60.0))
    assert found is Verdict.OK
    words = f"the points lie {percent:.2g} % (rms) off the curve, beyond what seeds explain (p = {probability:.1g})"
    assert advice.startswith(words)


def test_steps_that_are_known_too_coarsely_are_the_verdict() -> None:
    blurred = [
        dataclasses.replace(point, resolution=part) for point, part in zip(POINTS, (0, 0.1, 0.11, 1), strict=True)
    ]
    found, advice = verdict(blurred)
    assert found == "evaluations too rare"
    assert "up to 100 % fewer steps may have been enough at batch size 64, 256," in advice
    assert verdict([dataclasses.replace(point, resolution=0.1) for point in POINTS]) == (Verdict.OK, "")


def test_evaluations_that_pass_the_target_by_luck_are_the_verdict() -> None:
    lucky = [dataclasses.replace(point, lead=by) for point, by in zip(POINTS, (0, 0.1, 0.11, 0.5), strict=True)]
    found, advice = verdict(lucky)
    assert found == "evaluations too noisy"
    assert "earlier than the run's trend at batch size 64 (10 %), 256 (39 %): validate on more" in advice
    assert verdict([*lucky[:2], *POINTS[2:]]) == (Verdict.OK, "")


def test_a_target_that_is_reached_in_the_warmup_is_the_verdict() -> None:
    slow = [dataclasses.replace(point, warmup=by) for point, by in zip(POINTS, (0, 99, 100, 250.5), strict=True)]
    found, advice = verdict(slow)
    assert found == "target reached in the warmup"
    assert "at batch size 64 (100 steps), 256 (250.5 steps), and sets the steps there" in advice
    at_once = [dataclasses.replace(POINTS[0], steps_to_target=0.0), *POINTS[1:]]
    assert "warmup" not in verdict(at_once)[1]
    assert verdict([*slow[:2], *POINTS[2:]]) == (Verdict.OK, "")


@pytest.mark.parametrize(("factors", "grows"), [((4, 2, 1.4, 1), 0), ((4, 1, 1.4, 1.3), 0), ((1, 4, 2, 8), 1)])
def test_steps_that_grow_with_the_batch_size_are_off_any_curve(factors: tuple[float, ...], grows: int) -> None:
    steps = [dataclasses.replace(point, steps_to_target=100.0 * by) for point, by in zip(POINTS, factors, strict=True)]
    found, advice = verdict(steps)
    assert found is (Verdict.OFF_THE_CURVE if grows else Verdict.OK)
    assert advice.startswith("the steps grow by a factor 8 from batch size 4 to 256: are they" if grows else "")


def test_a_misfit_that_chance_explains_is_not_mentioned() -> None:
    assert verdict(misfit=Misfit(1.01 * LACK_OF_FIT, 10.0)) == (Verdict.OK, "")


@pytest.mark.parametrize(("misfit", "expected"), [(LARGE, Verdict.OFF_THE_CURVE), (SMALL, Verdict.OK)])
def test_one_batch_size_off_the_curve_is_named(misfit: Misfit, expected: Verdict) -> None:
    found, advice = verdict(misfit=misfit, left_out=LEFT_OUT, ends=(30.0, 60.0))
    assert found is expected
    assert "not without batch size 4 (p = 0.5)" in advice


@pytest.mark.parametrize(
    ("ends", "critical", "words"),
    [
        ((41.5, 60.0), LEFT_OUT.critical, "without batch size 4 the critical one is 40"),
        ((30.0, 42.5), LEFT_OUT.critical, "without batch size 256 the critical one is 43"),
        ((30.0, 60.0), np.array([40.0, 41.0, 42.0, np.inf]), "without batch size 256 the critical one is not bounded"),
        ((30.0, 60.0), np.array([0.0, 41.0, 42.0, 43.0]), "without batch size 4 the critical one is not bounded"),
    ],
)
def test_one_batch_size_that_decides(ends: tuple[float, float], critical: np.ndarray, words: str) -> None:
    found, advice = verdict(left_out=dataclasses.replace(LEFT_OUT, critical=critical), ends=ends)
    assert found == "one batch size decides the fit"
    assert words in advice


def test_an_open_interval_holds_everything_on_that_side() -> None:
    left_out = dataclasses.replace(LEFT_OUT, critical=np.array([40.0, 41.0, 42.0, np.inf]))
    assert verdict(left_out=left_out, ends=(30.0, None))[0] is Verdict.OK
    assert verdict(left_out=left_out, ends=(None, None))[0] is Verdict.OK


def test_a_far_seed_is_named_with_all_that_finds_it() -> None:
    found, advice = verdict(far_seeds=[(64, 2, 2.04), (256, 0, 11.3)])
    assert found == "one seed far from the others"
    assert "seed 2 at batch size 64 took 2 times the steps of the other seeds" in advice
    assert "seed 0 at batch size 256 took 11 times" in advice


def test_the_most_serious_comes_first() -> None:
    edge = [dataclasses.replace(point, at_grid_edge=True, seeds=1) for point in POINTS]
    found, advice = verdict(
        edge, misfit=LARGE, left_out=LEFT_OUT, ends=(41.5, 60.0), seen=(False, True), far_seeds=[(64, 2, 2.0)]
    )
    assert found is Verdict.NO_PERFECT_SCALING
    order = [
        "add smaller ones",
        "extend the grid",
        "off the curve",
        "seed 2 at batch size 64",
        "without batch size 4 the critical",
        "one seed",
    ]
    places = [advice.index(words) for words in order]
    assert places == sorted(places)


def test_runs_without_a_learning_rate_are_not_at_an_edge() -> None:
    unnamed = [dataclasses.replace(point, best_lr=None, at_grid_edge=None) for point in POINTS]
    assert verdict(unnamed) == (Verdict.OK, "")
