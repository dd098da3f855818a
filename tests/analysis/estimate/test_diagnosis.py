"""Every warning about a sweep, where it is due and nowhere else; evaluations that pass a target early."""

import dataclasses
import math
import re

import numpy as np
import pytest

from analysis.estimate.diagnosis import MOVES, SUDDEN, WIDE, Doubts, Verdict, doubts_of, judge
from analysis.estimate.draws import Break
from analysis.estimate.early_crossing import early_crossing
from analysis.estimate.studies import Point
from analysis.estimate.study_draws import Drawn, FarSeed
from cbs.trial.target import Target
from tests.analysis.estimate.known import exact, hyperbola

SIZES = (4, 16, 64, 256)
POINTS = [
    Point(
        batch_size=size, steps_to_target=100.0, best_lr=1e-3, at_grid_edge=False, seeds=3, seeds_reached=3,
        status="REACHED",
    )
    for size in SIZES
]  # fmt: skip
WIDTH = 0.6
SEEN = Doubts(beyond=(False, False), width=WIDTH)
JUMP, KINK = Break("jump", 16.0, 64.0, 0.8), Break("kink", 4.0, 64.0, 0.8)


def verdict(points: list[Point] = POINTS, **doubts: object) -> tuple[Verdict, str]:
    return judge(points, dataclasses.replace(SEEN, **doubts), "not reached at all", "loss 3")


def with_each(name: str, values: tuple[object, ...]) -> list[Point]:
    return [dataclasses.replace(point, **{name: value}) for point, value in zip(POINTS, values, strict=True)]


def test_nothing_to_say() -> None:
    assert verdict() == (Verdict.OK, "")
    almost = {
        "sudden": JUMP._replace(chance=SUDDEN), "moved_by_prior": 0.99 * MOVES * WIDTH,
        "moved_by_warmup": 0.99 * MOVES * WIDTH,
    }  # fmt: skip
    assert verdict(**almost) == (Verdict.OK, "")


def test_a_target_that_nothing_reached_has_the_advice_of_the_reading() -> None:
    missed = [dataclasses.replace(point, steps_to_target=None, status="PRUNED") for point in POINTS]
    assert verdict(missed) == (Verdict.NOT_REACHED, "not reached at all")
    found, advice = verdict([*POINTS[:3], missed[3]])
    assert found is Verdict.OK
    assert advice == "not reached at batch size 256 (PRUNED), where loss 3 was"


@pytest.mark.parametrize(
    ("count", "words"), [(1, "1 batch size of the 3 or more that are needed: add"), (2, "add a third"), (3, "")]
)
def test_too_few_batch_sizes(count: int, words: str) -> None:
    found, advice = verdict(POINTS[:count], beyond=(False, False))
    assert found is (Verdict.TOO_FEW_BATCH_SIZES if count < 3 else Verdict.OK)
    assert words in advice


@pytest.mark.parametrize(
    ("beyond", "expected", "words"),
    [
        (
            (True, False),
            Verdict.BELOW,
            "least below batch size 4, the smallest that reached the target: add smaller ones",
        ),
        (
            (False, True),
            Verdict.ABOVE,
            "least above batch size 256, the largest that reached the target: add larger ones",
        ),
    ],
)
def test_a_least_product_that_may_lie_beyond(beyond: tuple[bool, bool], expected: Verdict, words: str) -> None:
    found, advice = verdict(beyond=beyond)
    assert found is expected
    assert words in advice
    assert verdict(beyond=(True, True))[0] is Verdict.BELOW
    # the largest one does not count if nobody got to the target there
    missed = dataclasses.replace(POINTS[3], steps_to_target=None, status="PRUNED")
    advice = verdict([*POINTS[:3], missed], beyond=(False, True))[1]
    assert "above batch size 64, the largest that reached the target: let 256 get there, by more steps" in advice
    advice = verdict([dataclasses.replace(missed, batch_size=1), *POINTS], beyond=(True, True))[1]
    assert "below batch size 4, the smallest that reached the target: let 1 get there" in advice
    assert "above batch size 256, the largest that reached the target: add larger ones" in advice


@pytest.mark.parametrize(
    ("name", "last", "wanted", "said"),
    [
        (
            "resolution",
            1,
            "evaluations too rare",
            "up to 100 % fewer steps may have been enough at batch size 64, 256,",
        ),
        ("lead", 0.5, "evaluations too noisy", "than the run's trend at batch size 64 (10 %), 256 (39 %): validate on"),
    ],
)
def test_evaluations_that_are_too_rare_or_noisy_are_the_verdict(name: str, last: float, wanted: str, said: str) -> None:
    found, advice = verdict(with_each(name, (0, 0.1, 0.11, last)))
    assert found == wanted
    assert said in advice
    assert verdict(with_each(name, (0.1,) * 4)) == (Verdict.OK, "")


def test_a_target_that_is_reached_in_the_warmup_is_the_verdict() -> None:
    found, advice = verdict(with_each("warmup", (0, 99, 100, 250.5)))
    assert found is Verdict.IN_WARMUP
    assert "at batch size 64 (100 steps), 256 (250.5 steps), and sets the steps there" in advice
    assert "warmup" not in verdict(with_each("steps_to_target", (0.0, 100.0, 100.0, 100.0)))[1]
    assert verdict(with_each("warmup", (0, 99, 99, 99))) == (Verdict.OK, "")


@pytest.mark.parametrize(
    ("moved", "words"), [(math.log(2), "differs by a factor of 2:"), (math.inf, "beyond the measured")]
)
def test_a_warmup_that_moves_the_answer_is_the_verdict_though_runs_are_longer(moved: float, words: str) -> None:
    found, advice = verdict(moved_by_warmup=moved)
    assert found == "the warmup decides"
    assert words in advice
    # one sentence is enough where the warmup is longer than a run as well
    assert verdict(with_each("warmup", (0, 0, 0, 200)), moved_by_warmup=moved)[1].count("warmup") == 1


@pytest.mark.parametrize(
    ("moved", "words"), [(math.log(2), "differs by a factor of 2:"), (math.inf, "beyond the measured")]
)
def test_a_prior_that_moves_the_answer_is_the_verdict(moved: float, words: str) -> None:
    found, advice = verdict(moved_by_prior=moved)
    assert found == "the prior decides"
    assert words in advice
    assert verdict(moved_by_prior=moved, width=math.inf)[0] is Verdict.OK


def test_a_best_learning_rate_at_the_edge_is_the_verdict() -> None:
    found, advice = verdict(with_each("at_grid_edge", (False, True, False, True)))
    assert found is Verdict.AT_GRID_EDGE
    assert "at batch size 16 (0.001), 256 (0.001): extend the grid" in advice
    unnamed = [dataclasses.replace(point, best_lr=None, at_grid_edge=None) for point in POINTS]
    assert verdict(unnamed) == (Verdict.OK, "")
    tuned = [dataclasses.replace(POINTS[0], at_axis_edge=("momentum",), tuned="momentum=0.99"), *POINTS[1:]]
    found, advice = verdict(tuned)
    assert found is Verdict.AT_GRID_EDGE
    assert "the best momentum is the lowest or highest tried at batch size 4 (momentum=0.99)" in advice


@pytest.mark.parametrize(("factors", "grows"), [((4, 2, 1.4, 1), 0), ((4, 1, 1.4, 1.3), 0), ((1, 4, 2, 8), 1)])
def test_steps_that_grow_with_the_batch_size_are_off_any_curve(factors: tuple[float, ...], grows: int) -> None:
    found, advice = verdict(with_each("steps_to_target", tuple(100.0 * by for by in factors)))
    assert found is (Verdict.OFF_THE_CURVE if grows else Verdict.OK)
    assert advice.startswith("the steps grow by a factor 8 from batch size 4 to 256: are they" if grows else "")
    # as where examples are counted in place of updates: no smaller batch size would mend that
    found, advice = verdict(with_each("steps_to_target", tuple(100.0 * by for by in factors)), beyond=(True, False))
    assert found is (Verdict.OFF_THE_CURVE if grows else Verdict.BELOW)
    assert ("add smaller" in advice) != bool(grows)


@pytest.mark.parametrize(
    ("steps", "rates", "words"),
    [
        (((800.0, 900.0), (100.0, 110.0)), (1e-3, 8e-3), "learning rate at 4 (0.001) looks too low: try 0.00283 there"),
        (((436.0, 446.0), (100.0, 104.0)), (1e-3, 8e-3), "learning rate at 4 (0.001) looks too low"),
        (((800.0, 900.0), (100.0, 110.0)), (1e-3, 4e-3), ""),  # such curves exist, where the rate rises as usual
        (((400.0, 420.0), (100.0, 110.0)), (1e-3, 8e-3), ""),
        (((250.0, 800.0), (60.0, 190.0)), (1e-3, 8e-3), ""),
    ],
)
def test_a_fall_steeper_than_perfect_scaling_doubts_the_smaller_size(steps, rates, words) -> None:
    """From 4 to 16 by more than a factor of 4, where the learning rate rises by more, too."""
    points = [
        dataclasses.replace(point, steps_per_seed=each, steps_to_target=each[0], seeds=2, best_lr=lr)
        for point, each, lr in zip(POINTS[:2], steps, rates, strict=True)
    ]
    rest = [
        dataclasses.replace(point, steps_per_seed=(each,) * 2, best_lr=rates[1])
        for point, each in zip(POINTS[2:], (80.0, 70.0), strict=True)
    ]
    found, advice = verdict([*points, *rest])
    assert (found is Verdict.OFF_THE_CURVE) is bool(words)
    assert words in advice


def test_one_far_seed_of_three_does_not_make_steps_grow() -> None:
    steps = with_each("steps_per_seed", ((100.0,) * 3, (90.0,) * 3, (80.0,) * 3, (80.0, 80.0, 900.0)))
    assert verdict(steps) == (Verdict.OK, "")


@pytest.mark.parametrize(
    ("sudden", "words"),
    [
        (JUMP, "the steps jump between batch sizes 16 and 64: did these runs train alike? Batch size 32 would show it"),
        (
            KINK,
            "the steps change their course at once between batch sizes 4 and 64, and B_crit may lie at that kink: add "
            "batch sizes between them",
        ),
    ],
)
def test_a_sudden_change_is_off_the_curve(sudden: Break, words: str) -> None:
    assert verdict(sudden=sudden) == (Verdict.OFF_THE_CURVE, words)


def test_a_far_seed_is_named_with_all_that_finds_it() -> None:
    found, advice = verdict(far_seeds=[FarSeed(64, 2, 2.04), FarSeed(256, 0, 11.3), FarSeed(8, 1, 4.2, missed=True)])
    assert found == "one seed far from the others"
    assert "seed 2 at batch size 64 took 2 times the steps of the other seeds" in advice
    assert "seed 0 at batch size 256 took 11 times" in advice
    assert "seed 1 at batch size 8 did not get there in 4.2 times the steps of the other seeds" in advice


def test_one_seed_is_too_few_and_two_are_not() -> None:
    found, advice = verdict(with_each("seeds", (1,) * 4))
    assert found is Verdict.TOO_FEW_SEEDS
    assert "3 or more" in advice
    assert verdict(with_each("seeds", (1, 2, 1, 1)))[0] is Verdict.OK


def test_seeds_that_did_not_get_there_are_a_remark() -> None:
    found, advice = verdict(with_each("seeds_reached", (3, 2, 3, 3)))
    assert (found, advice) == (Verdict.OK, "only some seeds ran to the target at the best LR of batch size 16 (2 of 3)")


@pytest.mark.parametrize(("factor", "expected"), [(0.98, Verdict.OK), (1.02, Verdict.TOO_WIDE)])
def test_an_interval_over_a_decade_is_too_wide(factor: float, expected: Verdict) -> None:
    found, advice = verdict(width=math.log(factor * WIDE))
    assert found is expected
    assert ("spans a factor of 10: four times as many seeds make that about 3.2" in advice) == (factor > 1)


EVERYTHING = {
    "beyond": (True, True), "far_seeds": [FarSeed(64, 2, 2.0)], "sudden": JUMP, "moved_by_prior": math.inf,
    "moved_by_warmup": math.inf, "width": math.log(20),
}  # fmt: skip


def all_at_once(*, grows: bool = True) -> tuple[Verdict, str]:
    worst = [
        dataclasses.replace(
            point, resolution=0.5, lead=0.5, at_grid_edge=True, at_axis_edge=("momentum",), tuned="momentum=0.99",
            seeds=1, seeds_reached=0, steps_to_target=100.0 * by,
        )
        for point, by in zip(POINTS, (1, 4, 2, 8) if grows else (8, 4, 2, 1), strict=True)
    ]  # fmt: skip
    return verdict(worst, **EVERYTHING)


@pytest.mark.parametrize("grows", [True, False])
def test_the_most_serious_comes_first(grows: bool) -> None:
    found, advice = all_at_once(grows=grows)
    assert found is Verdict.COARSE_STEPS
    order = [
        "evaluate more often", "add smaller ones", "add larger ones", "validate on more", "shorten the warmup",
        "extend the grid", "the steps grow", "the steps jump", "seed 2 at batch size 64", "priors half", "one seed:",
        "the interval of the critical batch size",
    ]  # fmt: skip
    places = [advice.find(words) for words in order]
    assert [words for words, place in zip(order, places, strict=True) if place < 0] == (
        ["add smaller ones", "add larger ones"] if grows else ["the steps grow"]
    )
    there = [place for place in places if place >= 0]
    assert there == sorted(there)


def test_every_sentence_is_whole() -> None:
    """Nothing is left to fill in, no number has a dozen digits, and no sentence begins or ends in the middle."""
    for _, advice in (all_at_once(), verdict(sudden=KINK), verdict(POINTS[:1]), verdict(POINTS[:2])):
        assert not re.search(r"[{}]|\bNone\b|\bnan\b|\binf\b|\d\.\d{5}|  |\.\.", advice)
        for sentence in advice.split("; "):
            assert sentence == sentence.strip()
            assert re.fullmatch(r"\S.*[\w)?]", sentence)


def test_screens_which_show_what_stands_before_a_semicolon_say_all_of_a_finding() -> None:
    missed = dataclasses.replace(POINTS[3], steps_to_target=None, status="PRUNED")
    two_far = [FarSeed(64, 2, 2.0), FarSeed(16, 1, 3.0)]
    alone = [verdict(points) for points in (POINTS[:1], POINTS[:2], [*POINTS[:3], missed])]
    alone += [verdict(sudden=KINK), verdict(sudden=JUMP), verdict(far_seeds=two_far), verdict(beyond=(True, False))]
    alone += [verdict(width=math.log(20)), verdict(extrapolated="pareto")]
    assert all(advice and "; " not in advice for _, advice in alone)


def test_gravest() -> None:
    assert Verdict.gravest([Verdict.OK, Verdict.TOO_WIDE, Verdict.ABOVE]) is Verdict.ABOVE
    assert Verdict.gravest([]) is Verdict.OK


@pytest.mark.parametrize(
    ("ends", "beyond", "width"),
    [((20.0, 80.0), (False, False), math.log(4)), ((None, 80.0), (True, False), math.inf),
     ((20.0, None), (False, True), math.inf)],
)  # fmt: skip
def test_doubts_of_draws(ends: tuple[float | None, float | None], beyond: tuple[bool, bool], width: float) -> None:
    draws = dataclasses.replace(exact(hyperbola, count=100), sudden=KINK)
    found = doubts_of(
        Drawn(draws=draws, believed=(), hyperbola=draws, far=(), moved_by_prior=0.1, moved_by_warmup=math.inf),
        ends,
    )  # fmt: skip
    assert (found.beyond, found.width) == (beyond, pytest.approx(width))
    assert found.to_json() == {
        "sudden_change": {"kind": "kink", "below": 4.0, "above": 64.0, "chance": 0.8},
        "far_seeds": [], "moved_by_prior": 0.1, "moved_by_warmup": None,
    }  # fmt: skip


STEPS, BUDGET = 800.0, 4000
TARGET = Target(metric="loss", value=3.0)


def curve(steps: np.ndarray) -> np.ndarray:
    """A power law that passes the target at :data:`STEPS`."""
    return 2.0 + (steps / STEPS) ** -0.3


def leads(steps: np.ndarray, noise: float, *, stopped: bool) -> tuple[np.ndarray, np.ndarray]:
    """By how much 200 noisy curves pass the target too early, and what is expected of each."""
    rng, found = np.random.default_rng(0), []
    for _ in range(200):
        values = curve(steps) + rng.normal(0, noise, len(steps))
        crossing = TARGET.crossing(steps, values)
        seen = np.searchsorted(steps, crossing) + 1 if stopped else len(steps)
        found.append((math.log(STEPS / crossing), early_crossing(steps[:seen], values[:seen], crossing)))
    true, expected = np.array(found).T
    return true, expected


@pytest.mark.parametrize("noise", [0.01, 0.03, 0.1])
@pytest.mark.parametrize("every", [0, 10], ids=["geometric", "every 10"])
def test_what_is_expected_is_what_happens(every: int, noise: float) -> None:
    steps = np.arange(10, BUDGET, 10.0) if every else np.unique(np.round(1.04 ** np.arange(1, 212)))
    true, expected = leads(steps, noise, stopped=False)
    assert expected.mean() == pytest.approx(true.mean(), rel=0.25, abs=0.01)
    true, expected = leads(steps, noise, stopped=True)
    assert 0.55 * true.mean() - 0.01 < expected.mean() < 1.1 * true.mean() + 0.01


@pytest.mark.parametrize("growth", [1.01, 1.04, 1.1])
def test_a_smooth_curve_passes_its_target_when_it_does(growth: float) -> None:
    steps = growth ** np.arange(1, int(math.log(BUDGET) / math.log(growth)))
    assert early_crossing(steps, curve(steps), STEPS) == 0
    cliff = 3.0 + 1 / (1 + (steps / STEPS) ** 12) - 0.5
    assert early_crossing(steps, cliff, STEPS) == 0


def test_few_evaluations_tell_nothing_and_no_trend_tells_the_most() -> None:
    steps, rng = np.arange(400.0, 1600, 20), np.random.default_rng(0)
    flat = 3.0 + rng.normal(0, 0.1, len(steps))
    assert early_crossing(steps, flat, STEPS) == pytest.approx(math.log(2))
    assert early_crossing(steps, np.full(len(steps), 3.0), STEPS) == 0
    assert early_crossing(steps[17:24], flat[17:24], STEPS) == 0
