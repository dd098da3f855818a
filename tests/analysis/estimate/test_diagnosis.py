"""What is said against an answer, and in which order."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from analysis.estimate.diagnosis import LACK_OF_FIT, Doubts, Verdict, judge
from analysis.estimate.fitting.power import PowerEstimate
from analysis.estimate.fitting.quality import LeaveOneOut
from analysis.estimate.studies import Point

SIZES = (4, 16, 64, 256)
POINTS = [
    Point(batch_size=size, steps_to_target=100.0, best_lr=1e-3, at_grid_edge=False, seeds=3, seeds_reached=3, status="")
    for size in SIZES
]
LEFT_OUT = LeaveOneOut(np.array(SIZES), np.array([40.0, 41.0, 42.0, 43.0]), np.array([0.5, 0.001, 0.001, 0.001]))
POWER = PowerEstimate(
    exponent=0.61,
    exponent_interval=(0.5, 0.72),
    min_steps=100.0,
    critical=88.0,
    critical_interval=(60.0, 120.0),
    residual_rms=0.02,
)


def verdict(doubts: Doubts | None = None, points: list[Point] = POINTS) -> tuple[Verdict, str]:
    return judge(points, (True, True), "", "", doubts)


def test_nothing_to_say() -> None:
    assert verdict() == (Verdict.OK, "")
    assert verdict(Doubts(lack_of_fit=2 * LACK_OF_FIT, left_out=LEFT_OUT, ends=(30.0, 60.0))) == (Verdict.OK, "")


def test_a_curve_that_is_not_the_hyperbola_says_how_it_differs() -> None:
    everywhere = dataclasses.replace(LEFT_OUT, lack_of_fit=np.full(4, 0.001))
    found, advice = verdict(Doubts(lack_of_fit=0.0004, left_out=everywhere, power_law=POWER, ends=(30.0, 60.0)))
    assert found == "curve is not the hyperbola"
    assert "p = 0.0004" in advice
    assert "alpha = 0.61 [0.5, 0.72]" in advice
    assert "88" in advice
    assert "without batch size" not in advice


def test_one_batch_size_off_the_curve_is_named() -> None:
    found, advice = verdict(Doubts(lack_of_fit=0.0004, left_out=LEFT_OUT, ends=(30.0, 60.0)))
    assert found is Verdict.NOT_THE_HYPERBOLA
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
    doubts = Doubts(left_out=dataclasses.replace(LEFT_OUT, critical=critical), ends=ends)
    found, advice = verdict(doubts)
    assert found == "one batch size decides"
    assert words in advice


def test_an_open_interval_holds_everything_on_that_side() -> None:
    left_out = dataclasses.replace(LEFT_OUT, critical=np.array([40.0, 41.0, 42.0, np.inf]))
    assert verdict(Doubts(left_out=left_out, ends=(30.0, None)))[0] is Verdict.OK
    assert verdict(Doubts(left_out=left_out, ends=(None, None)))[0] is Verdict.OK


def test_the_most_serious_comes_first() -> None:
    edge = [dataclasses.replace(point, at_grid_edge=True, seeds=1) for point in POINTS]
    doubts = Doubts(lack_of_fit=1e-4, left_out=LEFT_OUT, ends=(41.5, 60.0))
    found, advice = judge(edge, (False, True), "", "", doubts)
    assert found is Verdict.NO_PERFECT_SCALING
    order = [
        "add smaller ones",
        "extend the grid",
        "off the hyperbola",
        "without batch size 4 the critical",
        "one seed",
    ]
    places = [advice.index(words) for words in order]
    assert places == sorted(places)


def test_runs_without_a_learning_rate_are_not_at_an_edge() -> None:
    unnamed = [dataclasses.replace(point, best_lr=None, at_grid_edge=None) for point in POINTS]
    assert verdict(points=unnamed) == (Verdict.OK, "")
