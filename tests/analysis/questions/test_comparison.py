"""Token ratios and critical batch sizes side by side: closed forms and twins."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.config import AnalysisConfig
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.estimates import answers
from analysis.estimate.result import Answer
from analysis.estimate.time_curves import undominated
from analysis.questions.compare.optimizers import critical_pairs, pick_reference, token_ratio
from analysis.questions.compare.tables import rising
from analysis.read.results import load
from cbs.errors import ConfigError
from cbs.registry.choices import Choice
from tests.factories import Truth, sweep
from tests.references.comparison import undominated_by_pairs

SIZES = (2, 8, 32, 128, 512)
LRS = (1e-3, 2e-3, 4e-3)
BASE = Truth(lr_at_1=2e-3, lr_power=0.0)
CLOSE = 1.5e-2  # No steps count as better known than to 1e-3


def read(root: Path, **options: object) -> list[Answer]:
    return answers(load(root), AnalysisConfig(**{"resamples": 500, **options}), noise=False)


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    truth = dataclasses.replace(BASE, noise=0.05)
    return made(tmp_path_factory.mktemp("noisy"), {"muon": truth, "adamw": truth})


def made(root: Path, optimizers: dict[str, Truth], **options: object) -> dict[str, Answer]:
    sweep(root, optimizers, **{"batch_sizes": SIZES, "lrs": LRS, "seeds": 2, "growth": 1.5, **options})
    return {answer.group.optimizer: answer for answer in read(root)}


@given(points=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), min_size=1, max_size=12))
def test_the_frontier_is_what_no_other_point_beats(points: list[tuple[int, int]]) -> None:
    devices, seconds = (list(map(float, column)) for column in zip(*points, strict=True))
    assert undominated(np.array(devices), np.array(seconds)).tolist() == undominated_by_pairs(devices, seconds)


def test_without_noise_the_ratio_is_that_of_the_truths(tmp_path: Path) -> None:
    muon = dataclasses.replace(BASE, min_steps=80.0, min_examples=4000.0)
    found = made(tmp_path, {"adamw": BASE, "muon": muon})
    ratio = token_ratio(found["adamw"], found["muon"])
    for at in ratio.at:
        truth = (175 + 7381 / at.batch_size) / (80 + 4000 / at.batch_size)
        assert at.value == pytest.approx(truth, rel=CLOSE)
        assert at.measured == pytest.approx(truth)
        assert at.interval == (pytest.approx(truth, rel=CLOSE), pytest.approx(truth, rel=CLOSE))
    assert [at.batch_size for at in ratio.at] == list(SIZES)
    assert (ratio.curve[0].batch_size, ratio.curve[-1].batch_size) == (
        pytest.approx(SIZES[0]),
        pytest.approx(SIZES[-1]),
    )
    for at in ratio.curve:
        truth = (175 + 7381 / at.batch_size) / (80 + 4000 / at.batch_size)
        assert at.value == pytest.approx(truth, rel=CLOSE)
        assert at.interval == (pytest.approx(truth, rel=CLOSE), pytest.approx(truth, rel=CLOSE))
    assert ratio.probability_not_decreasing == 1.0, "50 examples is more than 42"
    assert token_ratio(found["muon"], found["adamw"]).probability_not_decreasing == 0.0


def test_the_interval_is_that_of_two_independent_curves(noisy: dict[str, Answer]) -> None:
    """The standard deviations of the draws of both logarithms add in squares."""
    ratio = token_ratio(noisy["adamw"], noisy["muon"])
    deviations = [noisy[name].draws.drawn(np.array(SIZES)).std(axis=0) for name in ("adamw", "muon")]
    for place, at in enumerate(ratio.at):
        low, high = at.interval
        width = math.log(high / low) / (2 * 1.96)
        both = math.hypot(*(part[place] for part in deviations))
        assert width == pytest.approx(both, rel=0.15), "500 draws: two 2.5 % tails to about 5 % each"


@pytest.mark.parametrize("edges", [{"at_grid_edge": True}, {"at_axis_edge": ("momentum",)}])
def test_an_optimum_at_the_edge_leaves_the_end_open_on_its_side(
    noisy: dict[str, Answer], edges: dict[str, Any]
) -> None:
    """The reference may need fewer examples than were measured, so that the ratio may be any lower."""
    muon, adamw = noisy["muon"], noisy["adamw"]
    edge = tuple(dataclasses.replace(point, **edges if point.batch_size == 32 else {}) for point in adamw.points)
    at_edge = dataclasses.replace(adamw, points=edge)
    whole = token_ratio(adamw, muon).at
    for found, side in ((token_ratio(at_edge, muon).at, 0), (token_ratio(muon, at_edge).at, 1)):
        for at in found:
            assert (at.interval[side] is None) is (at.batch_size == 32)
            assert at.interval[1 - side] is not None
    assert [at.value for at in token_ratio(at_edge, muon).at] == [at.value for at in whole]
    assert all(at.interval[0] is None and at.interval[1] > 0 for at in token_ratio(at_edge, muon).curve)


def test_only_batch_sizes_that_both_reached_are_compared(tmp_path: Path) -> None:
    sweep(tmp_path / "a", {"adamw": BASE}, batch_sizes=(2, 8, 32), lrs=LRS, growth=1.3, name="one")
    found = made(tmp_path / "b", {"adamw": BASE, "slow": dataclasses.replace(BASE, min_steps=600.0)}, max_steps=500)
    assert token_ratio(found["adamw"], found["slow"]).at == ()
    assert token_ratio(found["adamw"], found["slow"]).curve == ()
    assert token_ratio(found["adamw"], found["slow"]).probability_not_decreasing is None
    (single,) = read(tmp_path / "a")
    ratio = token_ratio(found["adamw"], single)
    assert [at.batch_size for at in ratio.at] == [32]
    assert ratio.probability_not_decreasing is None


def test_the_reference_is_the_one_asked_for_else_adamw_else_the_first(noisy: dict[str, Answer]) -> None:
    found = list(noisy.values())
    assert pick_reference(found, "muon").group.optimizer == "muon"
    assert pick_reference(found, None).group.optimizer == "adamw"
    assert pick_reference(found, "lamb").group.optimizer == "adamw"
    others = [answer for answer in found if answer.group.optimizer != "adamw"]
    assert pick_reference(others, None).group.optimizer == "muon"
    twins = [
        dataclasses.replace(
            answer,
            group=dataclasses.replace(
                answer.group, optimizer=f"adamw(eps={eps})", choice=Choice(name="adamw", options={"eps": eps})
            ),
        )
        for answer, eps in zip(found, (1, 2), strict=True)
    ]
    assert pick_reference(twins, "adamw(eps=2)").group.optimizer == "adamw(eps=2)"
    with pytest.raises(ConfigError, match="several optimizers"):
        pick_reference(twins, "adamw")


def test_what_is_told_of_two_optimizers_has_the_graver_verdict(noisy: dict[str, Answer]) -> None:
    for first, second, expected in (
        (Verdict.OK, Verdict.OK, Verdict.OK),
        (Verdict.OK, Verdict.FAR_SEED, Verdict.FAR_SEED),
        (Verdict.OFF_THE_CURVE, Verdict.FAR_SEED, Verdict.OFF_THE_CURVE),
    ):
        one, two = (dataclasses.replace(noisy["adamw"], verdict=each) for each in (first, second))
        assert {pair.verdict for pair in critical_pairs([one, two])} == {expected}
        ratio = token_ratio(one, two)
        assert ratio.verdict is expected
        assert (str(expected) in rising(ratio)) is (expected is not Verdict.OK)


def test_every_pair_is_compared_in_both_orders(noisy: dict[str, Answer]) -> None:
    found = {(pair.larger, pair.smaller): pair for pair in critical_pairs([*noisy.values()])}
    one, two = found["adamw", "muon"], found["muon", "adamw"]
    assert one.probability + two.probability == pytest.approx(1.0)
    assert one.ratio * two.ratio == pytest.approx(1.0, rel=0.05)
    assert one.interval[0] * two.interval[1] == pytest.approx(1.0, rel=0.1)
    sizes = [noisy[name].critical.drawn for name in ("adamw", "muon")]
    assert one.ratio == pytest.approx(np.median(sizes[0]) / np.median(sizes[1]), rel=0.1)
    width = math.log(one.interval[1] / one.interval[0]) / (2 * 1.96)
    assert width == pytest.approx(math.hypot(*(np.log(each).std() for each in sizes)), rel=0.2)
