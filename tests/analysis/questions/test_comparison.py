"""Token ratios and critical batch sizes side by side: closed forms, twins, calibration."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.config import AnalysisConfig
from analysis.estimate.diagnosis import Verdict
from analysis.estimate.estimates import answers
from analysis.estimate.findings import read_scopes
from analysis.estimate.fit_table import fit_table
from analysis.estimate.fitting import fit_curve
from analysis.estimate.fitting.data import Trials
from analysis.estimate.fitting.form_fits import widening
from analysis.estimate.independent import narrowing, shuffled
from analysis.estimate.result import Answer
from analysis.estimate.time_curves import undominated
from analysis.questions.compare.ratios import critical_pair, exceeds, pick_reference, token_ratio
from analysis.questions.compare.tables import rising
from analysis.read.results import load
from cbs.errors import ConfigError
from cbs.registry.choices import Choice
from cbs.trial.store import finite_or_none
from tests.factories import Truth, sweep, tables
from tests.references.comparison import exceeds_by_pairs, undominated_by_pairs

SIZES = (2, 8, 32, 128, 512)
LRS = (1e-3, 2e-3, 4e-3)
BASE = Truth(lr_at_1=2e-3, lr_power=0.0)
NUMBERS = st.one_of(st.sampled_from([0.0, math.inf]), st.integers(1, 5).map(float))


def read(root: Path, **options: object) -> list[Answer]:
    return answers(load(root), AnalysisConfig(**{"resamples": 500, **options}), noise=False)


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    truth = dataclasses.replace(BASE, noise=0.05)
    return made(tmp_path_factory.mktemp("noisy"), {"muon": truth, "adamw": truth})


def made(root: Path, optimizers: dict[str, Truth], **options: object) -> dict[str, Answer]:
    sweep(root, optimizers, **{"batch_sizes": SIZES, "lrs": LRS, "seeds": 2, "growth": 1.5, **options})
    return {answer.group.optimizer: answer for answer in read(root)}


@given(first=st.lists(NUMBERS, min_size=1, max_size=6), second=st.lists(NUMBERS, min_size=1, max_size=6))
def test_exceeding_is_the_share_of_all_pairs(first: list[float], second: list[float]) -> None:
    one, two = np.array(first), np.array(second)
    assert exceeds(one, two) == pytest.approx(exceeds_by_pairs(first, second))
    assert exceeds(one, two) + exceeds(two, one) == pytest.approx(1.0)


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
        assert at.value == pytest.approx(truth)
        assert at.interval == (pytest.approx(truth), pytest.approx(truth))
    assert [at.batch_size for at in ratio.at] == list(SIZES)
    assert (ratio.curve[0].batch_size, ratio.curve[-1].batch_size) == (
        pytest.approx(SIZES[0]),
        pytest.approx(SIZES[-1]),
    )
    for at in ratio.curve:
        truth = (175 + 7381 / at.batch_size) / (80 + 4000 / at.batch_size)
        assert at.value == pytest.approx(truth, rel=1e-6)
        assert at.interval == (pytest.approx(truth, rel=1e-6), pytest.approx(truth, rel=1e-6))
    assert ratio.probability_not_decreasing == 1.0, "50 examples is more than 42"
    assert token_ratio(found["muon"], found["adamw"]).probability_not_decreasing == 0.0


def test_the_interval_is_that_of_two_independent_means(noisy: dict[str, Answer]) -> None:
    """The standard deviations of the two log means add in squares."""
    ratio = token_ratio(noisy["adamw"], noisy["muon"])
    factors = narrowing((noisy["adamw"].fit, noisy["muon"].fit), 0.95)
    deviations = [noisy[name].fit.measured_resamples.std(axis=0) for name in ("adamw", "muon")]
    for place, at in enumerate(ratio.at):
        low, high = at.interval
        width = math.log(high / low) / (2 * 1.96)
        both = math.hypot(*(factor * part[place] for factor, part in zip(factors, deviations, strict=True)))
        assert width == pytest.approx(both, rel=0.15), "500 resamples: two 2.5 % tails to about 5 % each"


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
    assert all(math.isnan(at.interval[0]) and at.interval[1] > 0 for at in token_ratio(at_edge, muon).curve)


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


def test_scopes_keep_targets_apart(tmp_path: Path) -> None:
    # noisy, as learning rates on either side of the best one would take the same steps
    noisy = dataclasses.replace(BASE, noise=0.01)
    sweep(tmp_path, {"adamw": noisy, "muon": noisy}, batch_sizes=SIZES, lrs=LRS, growth=1.3)
    found, notes = read_scopes(tmp_path, AnalysisConfig(resamples=100), [2.4, 2.8])
    assert [[answer.group.optimizer for answer in scope.answers] for scope in found] == [["adamw", "muon"]] * 2
    assert [scope.title for scope in found] == ["validation loss < 2.4", "validation loss < 2.8"]
    assert notes == ()


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


def with_resamples(answer: Answer, name: str, values: Sequence[float]) -> Answer:
    """``answer`` with other resamples of the critical batch size."""
    bounded = [value for value in values if 0 < value < math.inf]
    value = float(np.median(bounded)) if bounded else None
    critical = dataclasses.replace(answer.critical, value=value, resampled=np.asarray(values, dtype=float))
    definitions = {**answer.definitions, "pareto": critical}
    return dataclasses.replace(answer, definitions=definitions, group=dataclasses.replace(answer.group, optimizer=name))


@pytest.mark.parametrize(
    ("first", "second", "probability", "ends"),
    [
        ([1.0] * 100, [2.0] * 100, 0.0, (0.5, 0.5)),
        ([math.inf] * 100, [2.0] * 100, 1.0, (None, None)),
        ([math.inf] * 100, [math.inf] * 100, 0.5, (None, None)),
        ([0.0] * 100, [0.0] * 100, 0.5, (None, None)),
        ([0.0] * 100, [3.0] * 100, 0.0, (None, None)),
        ([math.nan] * 100, [3.0] * 100, None, (None, None)),
        ([math.nan] * 50 + [6.0] * 50, [3.0] * 100, 1.0, (2.0, 2.0)),
    ],
)
def test_resamples_that_are_not_bounded_count_as_that(
    noisy: dict[str, Answer], first: list, second: list, probability: float | None, ends: tuple
) -> None:
    answer = noisy["adamw"]
    pair = critical_pair(with_resamples(answer, "a", first), with_resamples(answer, "b", second))
    assert pair.probability == probability
    assert pair.interval == tuple(end and pytest.approx(end, rel=1e-12) for end in ends)


def test_what_is_told_of_two_optimizers_has_the_graver_verdict(noisy: dict[str, Answer]) -> None:
    for first, second, expected in (
        (Verdict.OK, Verdict.OK, Verdict.OK),
        (Verdict.OK, Verdict.FAR_SEED, Verdict.FAR_SEED),
        (Verdict.OFF_THE_CURVE, Verdict.FAR_SEED, Verdict.OFF_THE_CURVE),
    ):
        one, two = (dataclasses.replace(noisy["adamw"], verdict=each) for each in (first, second))
        assert critical_pair(one, two).verdict is expected
        ratio = token_ratio(one, two)
        assert ratio.verdict is expected
        assert rising(ratio).endswith("by the fitted curves" if expected is Verdict.OK else f"in doubt: {expected}")


def test_the_same_draws_are_not_compared_one_by_one(noisy: dict[str, Answer]) -> None:
    """Were resamples compared one by one, equal noise would make the smaller of two lose with certainty."""
    answer = noisy["adamw"]
    values = answer.critical.resampled
    pair = critical_pair(with_resamples(answer, "a", values * 1.001), with_resamples(answer, "b", values))
    assert pair.probability == pytest.approx(0.5, abs=0.02)
    low, high = pair.interval
    factor = narrowing((answer.fit, answer.fit), 0.95)[0]
    assert math.log(high / low) / (2 * 1.96) == pytest.approx(factor * math.sqrt(2) * np.log(values).std(), rel=0.15)
    mixed = shuffled(values, seed=0)
    assert sorted(mixed) == sorted(values)
    assert abs(np.corrcoef(np.log(mixed), np.log(values))[0, 1]) < 4 / math.sqrt(len(values))
    assert shuffled(values, seed=0, turn=0) is values


def critical(truth: Truth, seeds: int, index: int, like: Answer) -> Answer:
    """An answer drawn from ``truth`` without going through the disk."""
    data = tables(truth, SIZES, seeds, lrs=tuple(1e-4 * 2.0**power for power in range(12)), seed=index)
    measured = [Trials(steps, np.full_like(steps, np.nan), np.ones(steps.shape, dtype=bool)) for steps in data]
    fit = fit_curve(SIZES, measured, config=AnalysisConfig(resamples=150, seed=0))
    value, resampled = fit.estimate.critical, fit.resampled.critical
    made = dataclasses.replace(like.critical, value=finite_or_none(float(value)), resampled=resampled)
    return dataclasses.replace(like, fit=fit, definitions={**like.definitions, "pareto": made})


def probabilities(like: Answer, count: int, *, ratio: float, seeds: int = 3) -> np.ndarray:
    """P(first > second) over pairs of synthetic sweeps whose critical batch sizes are ``ratio`` apart."""
    found = []
    for index in range(count):
        rng = np.random.default_rng(index)
        truth = Truth(noise=rng.uniform(0.03, 0.12), lr_at_1=1e-3 * 2.0 ** rng.uniform(0, 1), lr_power=0.3, lr_max=0.05)
        other = dataclasses.replace(truth, min_examples=truth.min_examples * ratio)
        pair = critical_pair(critical(other, seeds, 2 * index, like), critical(truth, seeds, 2 * index + 1, like))
        assert pair.probability is not None
        found.append(pair.probability)
    return np.array(found)


def check_uniform(found: np.ndarray) -> None:
    """About uniform: the mean within four standard errors, the two 2.5 % tails within four binomial standard errors
    above 5 %. They may be thinner: the noise of a fit is taken as the larger of what seeds and residuals show."""
    count = len(found)
    assert abs(found.mean() - 0.5) < 4 * math.sqrt(1 / 12 / count)
    assert np.mean((found < 0.025) | (found > 0.975)) < 0.05 + 4 * math.sqrt(0.05 * 0.95 / count)
    middle = np.mean((found > 0.25) & (found < 0.75))
    assert 0.5 - 4 * math.sqrt(0.25 / count) < middle < 0.7 + 4 * math.sqrt(0.25 / count)


def test_with_equal_truths_the_probability_is_about_uniform(noisy: dict[str, Answer]) -> None:
    check_uniform(probabilities(noisy["adamw"], 24, ratio=1.0, seeds=3))


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, 3])
def test_with_equal_truths_the_probability_is_about_uniform_over_many_pairs(noisy: dict, seeds: int) -> None:
    """250 pairs. Below 10 % and above 90 % lies a fifth, or about a tenth by what the forms of the curve add to an
    interval, of which 4 % is three standard errors."""
    found = probabilities(noisy["adamw"], 250, ratio=1.0, seeds=seeds)
    check_uniform(found)
    assert np.mean((found < 0.1) | (found > 0.9)) > 0.04


def test_with_truths_three_times_apart_it_is_near_one(noisy: dict[str, Answer]) -> None:
    found = probabilities(noisy["adamw"], 12, ratio=3.0)
    assert np.median(found) > 0.99
    assert found.mean() > 0.95


def test_two_fits_together_have_the_degrees_of_freedom_of_both(noisy: dict[str, Answer]) -> None:
    """Equal variances and n degrees of freedom each make 2 n; one that is all the variance keeps its own."""
    fit = noisy["adamw"].fit
    assert fit is not None
    freedom = fit.freedom
    expected = widening(2 * freedom, 0.95) / widening(freedom, 0.95)
    assert narrowing((fit, fit), 0.95) == pytest.approx([expected, expected])
    quiet = dataclasses.replace(fit, deviation=fit.deviation * 1e-6)
    assert narrowing((fit, quiet), 0.95) == pytest.approx([1.0, 1.0])
    assert narrowing((fit, dataclasses.replace(fit, deviation=0.0)), 0.95) == pytest.approx([1.0, 1.0])
    assert narrowing((fit, None), 0.95) == [1.0, 1.0]
    # of three, the first with twice the weight: variances 4, 1 and 1
    expected = widening(36 / 18 * freedom, 0.99) / widening(freedom, 0.95)
    assert narrowing((fit,) * 3, 0.95, weights=(2.0, -1.0, -1.0), level=0.99) == pytest.approx([expected] * 3)


def bent(exponent: float, critical: float, name: str, rng: np.random.Generator) -> pd.DataFrame:
    """Steps at eight batch sizes, three seeds, 6 % noise."""
    sizes = np.repeat(2.0 ** np.arange(2, 10), 3)
    steps = 400 * (1 + (critical / sizes) ** exponent) * np.exp(0.06 * rng.standard_normal(len(sizes)))
    seeds = np.tile([0, 1, 2], 8)
    return pd.DataFrame({"optimizer": name, "batch_size": sizes, "seed": seeds, "steps": steps})


def test_the_ratio_of_critical_batch_sizes_holds_where_exponents_differ() -> None:
    """0.85 against 1.1, true ratio 1.5: at 95 % fewer than 12 of 15 have probability 0.006. Held at 1 the ratio is
    hardly ever inside, and a third as wide it is not often enough."""
    hits = narrow = straight = 0
    for seed in range(15):
        rng = np.random.default_rng(seed)
        table = pd.concat([bent(0.85, 40.0, "one", rng), bent(1.1, 60.0, "two", rng)])
        one, two = fit_table(table, AnalysisConfig(resamples=150)).answers
        found = critical_pair(two, one)
        low, high = finite(found.interval)
        hits += low <= 1.5 <= high
        middle, half = math.sqrt(low * high), (high / low) ** (1 / 6)
        narrow += middle / half <= 1.5 <= middle * half
        mine, its = (answer.hyperbola.critical_batch_size for answer in (two, one))
        straight += mine.interval[0] / its.interval[1] <= 1.5 <= mine.interval[1] / its.interval[0]
    assert hits >= 12
    assert narrow < 12
    assert straight <= 1


def finite(ends: tuple[float | None, float | None]) -> tuple[float, float]:
    return ends[0] or 1e-9, ends[1] or 1e9
