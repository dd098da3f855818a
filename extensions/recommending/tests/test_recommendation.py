"""Recommendations against closed forms: with known steps and known seconds the best batch size is known."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from analysis.config import AnalysisConfig
from analysis.estimate.comparison import together
from analysis.estimate.definitions.least_product import least_product
from analysis.estimate.estimates import answers
from analysis.estimate.result import Answer
from analysis.estimate.time_curves import plane
from analysis.formatting import number
from analysis.read.results import load
from analysis.read.throughput import Assumed, StepTime, StepTimeTable
from cbs.errors import ConfigError, ResultsError
from extensions.recommending.plans import Wish, local_curves
from extensions.recommending.recommendations import advise, probabilities_of_best, winner
from tests.factories import Truth, sweep

SIZES = (4, 16, 64, 256, 1024)
LRS = (1e-3, 2e-3, 4e-3)
CLOSE = 1.5e-2  # No steps count as better known than to 1e-3

MIN_STEPS, MIN_EXAMPLES = 200.0, 12800.0
CRITICAL = MIN_EXAMPLES / MIN_STEPS
EXACT = Truth(min_steps=MIN_STEPS, min_examples=MIN_EXAMPLES, lr_at_1=2e-3, lr_power=0.0)


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Answer:
    root = tmp_path_factory.mktemp("exact")
    sweep(root, {"adamw": EXACT}, batch_sizes=SIZES, lrs=LRS, seeds=2, growth=1.5)
    return answers(load(root), AnalysisConfig(resamples=200), noise=False)[0]


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> list[Answer]:
    root = tmp_path_factory.mktemp("noisy")
    truth = dataclasses.replace(EXACT, noise=0.08)
    sweep(root, {"adamw": truth, "muon": truth}, batch_sizes=SIZES, lrs=LRS, seeds=2, growth=1.5)
    found = answers(load(root), AnalysisConfig(resamples=1000), noise=False)
    return [dataclasses.replace(one, draws=its) for one, its in zip(found, together(found), strict=True)]


def rates(devices: int = 1, per_second: float = 100.0, latency: float = 0.0) -> StepTimeTable:
    """A table that follows ``latency + batch_size / (devices * per_second)``, at so many batch sizes that the straight
    lines between them in the logs lie within 1e-5 of it."""
    sizes = np.unique(np.rint(np.geomspace(1, 4096, 2000)).astype(int))
    rows = [
        StepTime(batch_size=int(size), devices=devices, seconds=latency + size / (devices * per_second))
        for size in sizes
    ]
    return StepTimeTable(tuple(rows))


@pytest.mark.parametrize("devices", [1, 4, 16])
@pytest.mark.parametrize("latency", [0.01, 0.05])
def test_the_best_batch_size_and_its_time_in_closed_form(exact: Answer, devices: int, latency: float) -> None:
    """(S_min + E_min/B)(L + B/(n X)) is least at B = sqrt(B_crit L n X), where it is
    (sqrt(S_min L) + sqrt(E_min/(n X)))^2; at the nearest whole batch size it differs by less than 1/B^2."""
    rate = 2000.0
    throughput = Assumed(examples_per_second=rate, latency=latency)
    plan = advise(exact, throughput, Wish(devices=devices)).plans["time"]
    best = math.sqrt(CRITICAL * latency * devices * rate)
    assert plan.devices == devices
    assert plan.batch_size == pytest.approx(best, rel=0.05), "candidates are at most 2.6 % apart"
    seconds = (math.sqrt(MIN_STEPS * latency) + math.sqrt(MIN_EXAMPLES / (devices * rate))) ** 2
    assert plan.seconds.value == pytest.approx(seconds, rel=5e-3)
    assert plan.seconds.interval == (pytest.approx(seconds, rel=CLOSE), pytest.approx(seconds, rel=CLOSE))
    assert plan.steps.value == pytest.approx(MIN_STEPS + MIN_EXAMPLES / plan.batch_size, rel=5e-3)
    assert plan.examples.value == pytest.approx(MIN_STEPS * plan.batch_size + MIN_EXAMPLES, rel=5e-3)
    assert plan.device_hours.value == pytest.approx(devices * plan.seconds.value / 3600)
    assert plan.probability_within_5_percent == 1.0
    assert plan.remarks == ()


def test_the_five_percent_range_is_that_of_the_closed_form(exact: Answer) -> None:
    """T(x B*) / T(B*) = (a^2 + b^2 + a b (x + 1/x)) / (a + b)^2 with a^2 = S_min L, b^2 = E_min/(n X)."""
    latency, rate = 0.05, 2000.0
    plan = advise(exact, Assumed(examples_per_second=rate, latency=latency), Wish(devices=1)).plans["time"]
    a, b = math.sqrt(MIN_STEPS * latency), math.sqrt(MIN_EXAMPLES / rate)
    both = (1.05 * (a + b) ** 2 - a * a - b * b) / (a * b)
    factor = (both + math.sqrt(both * both - 4)) / 2
    best = math.sqrt(CRITICAL * latency * rate)
    assert plan.within_5_percent == (pytest.approx(best / factor, rel=0.03), pytest.approx(best * factor, rel=0.03))


def test_when_a_step_takes_as_long_at_any_batch_size_the_largest_is_best_and_said_to_be_the_last(exact: Answer) -> None:
    flat = StepTimeTable(tuple(StepTime(batch_size=size, seconds=1.0) for size in (4, 512)))
    plan = advise(exact, flat, Wish(devices=1)).plans["time"]
    assert plan.batch_size == 512
    assert plan.seconds.value == pytest.approx(MIN_STEPS + MIN_EXAMPLES / 512, rel=5e-3)
    assert plan.remarks == ("batch size 512 is the largest with a step time: a larger one may be better",)


def test_a_best_beyond_the_measured_batch_sizes_is_said_to_be_extrapolated(exact: Answer) -> None:
    throughput = Assumed(examples_per_second=1e5, latency=1.0)
    plan = advise(exact, throughput, Wish(devices=1)).plans["time"]
    assert plan.batch_size == 1024
    (remark,) = plan.remarks
    best = math.sqrt(CRITICAL * 1e5)
    words = remark.split()
    assert float(words[words.index("takes") - 1]) == pytest.approx(best, rel=0.1)
    assert "not by measurement" in remark
    assert "sweep larger batch sizes" in remark


def test_least_cost_takes_one_device_where_devices_lose_something(exact: Answer) -> None:
    """n T(B*, n) = (sqrt(n S_min L) + sqrt(E_min/X))^2 grows with n."""
    throughput = Assumed(examples_per_second=2000.0, latency=0.05)
    plans = advise(exact, throughput, Wish(devices=16, price=3.0)).plans
    assert (plans["cost"].devices, plans["time"].devices) == (1, 16)
    hours = (math.sqrt(MIN_STEPS * 0.05) + math.sqrt(MIN_EXAMPLES / 2000.0)) ** 2 / 3600
    assert plans["cost"].device_hours.value == pytest.approx(hours, rel=5e-3)
    assert plans["cost"].cost.value == pytest.approx(3.0 * hours, rel=5e-3)
    assert "priced" not in plans


@pytest.mark.parametrize("devices", [2, 8, 32])
def test_a_price_of_time_trades_devices_for_it_as_in_mccandlish_appendix_d(exact: Answer, devices: int) -> None:
    """Where a step always lasts L and a device holds M examples, n devices do best with B = n M, and (n + R) T is
    (B/M + R) L S(B): E + r S with r = R M, least at B = sqrt(r B_crit)."""
    held = 8
    ratio = (devices * held) ** 2 / (held * CRITICAL)
    throughput = Assumed(examples_per_second=1e12, max_batch_per_device=held, latency=1.0)
    plan = advise(exact, throughput, Wish(devices=128, price_ratio=ratio)).plans["priced"]
    assert (plan.devices, plan.batch_size) == (devices, devices * held)
    assert advise(exact, throughput, Wish(devices=128, price_ratio=0.0)).plans["priced"].devices == 1


@pytest.mark.parametrize("exchange", [1.0, 3.0])
def test_least_time_is_the_least_product_of_the_same_draws(noisy: list[Answer], exchange: float) -> None:
    """Where a step takes B^p, S B^p is least where E S^((1 - p)/p) is: with p = 1/2 where S E is."""
    power = 1 / (1 + exchange)
    throughput = StepTimeTable(tuple(StepTime(batch_size=size, seconds=size**power) for size in (1, 4096)))
    plan = advise(noisy[0], throughput, Wish(devices=1)).plans["time"]
    assert noisy[0].draws is not None
    draws = noisy[0].draws
    expected = (draws.log_sizes + (1 + exchange) * draws.mean).argmin()
    assert plan.batch_size == pytest.approx(np.exp(draws.log_sizes[expected]), rel=0.1), "not by the draws' median"
    least = least_product(draws, exchange, span=1.0)
    ends = np.clip(np.quantile(least, [0.025, 0.975]), SIZES[0], SIZES[-1])
    assert plan.best_batch_size_interval == (pytest.approx(ends[0], rel=0.06), pytest.approx(ends[1], rel=0.06))


def test_a_doubling_of_devices_in_closed_form(exact: Answer) -> None:
    throughput, latency, rate = Assumed(examples_per_second=2000.0, latency=0.05), 0.05, 2000.0
    doubling = advise(exact, throughput, Wish(devices=4)).doubling_devices
    before, after = ((math.sqrt(MIN_STEPS * latency) + math.sqrt(MIN_EXAMPLES / (n * rate))) ** 2 for n in (4, 8))
    assert doubling.time_factor.value == pytest.approx(after / before, rel=5e-3)
    assert doubling.cost_factor.value == pytest.approx(2 * after / before, rel=5e-3)


def test_intervals_and_probabilities_come_from_the_draws_of_the_steps(noisy: list[Answer]) -> None:
    answer = noisy[0]
    throughput = Assumed(examples_per_second=2000.0, latency=0.05)
    plan = advise(answer, throughput, Wish(devices=4)).plans["time"]
    steps = np.exp(answer.draws.drawn(np.array([float(plan.batch_size)])))[:, 0]
    seconds = np.sort(steps * (0.05 + plan.batch_size / 8000.0))
    low, high = plan.seconds.interval
    assert (low, high) == (pytest.approx(seconds[25], rel=0.01), pytest.approx(seconds[974], rel=0.01))
    assert 0 < plan.probability_within_5_percent <= 1
    sizes = np.arange(SIZES[0], SIZES[-1] + 1.0)
    each = np.exp(answer.draws.drawn(sizes)) * (0.05 + sizes / 8000.0)
    ends = np.quantile(sizes[each.argmin(axis=1)], [0.025, 0.975])
    assert plan.best_batch_size_interval == (pytest.approx(ends[0], rel=0.05), pytest.approx(ends[1], rel=0.05))


def test_of_two_optimizers_alike_either_is_best_with_about_the_probability_that_its_curve_says(
    noisy: list[Answer],
) -> None:
    plans = [
        advise(answer, Assumed(examples_per_second=2000.0, latency=0.05), Wish(devices=4)).plans["time"]
        for answer in noisy
    ]
    shares = probabilities_of_best(plans)
    assert sum(shares) == pytest.approx(1.0)
    first, second = (plan.objective_draws for plan in plans)
    assert abs(np.corrcoef(np.log(first), np.log(second))[0, 1]) < 0.15, "independent runs: standard error 0.03"
    pairs = np.mean(first[:, None] < second[None])
    assert shares[0] == pytest.approx(pairs, abs=0.06), "1000 pairs: standard error 0.016"


def test_a_loser_whose_learning_rate_lies_at_the_edge_leaves_the_winner_without_a_probability(
    noisy: list[Answer],
) -> None:
    plans = [advise(answer, rates(latency=0.02), Wish(devices=1)).plans["time"] for answer in noisy]
    measured = {plan.optimizer: (1.0, 1e6) for plan in plans}
    best = winner(plans, set(), measured)
    other = next(plan.optimizer for plan in plans if plan.optimizer != best.optimizer)
    assert best.probability is not None
    assert winner(plans, {best.optimizer}, measured) == best, "it can only be better"
    assert winner(plans, {other}, measured) == dataclasses.replace(best, probability=None)


def test_why_nothing_can_be_recommended(exact: Answer, tmp_path: Path) -> None:
    nothing = advise(exact, StepTimeTable((StepTime(batch_size=8, seconds=1.0, optimizer="muon"),)), Wish(devices=1))
    assert nothing.plans == {}
    assert "no step time for adamw" in nothing.remarks[-1]
    far = advise(exact, StepTimeTable((StepTime(batch_size=5000, seconds=1.0),)), Wish(devices=1))
    assert "from 5000 to 5000, and the target was reached from 4 to 1024" in far.remarks[-1]
    sweep(tmp_path, {"adamw": EXACT}, batch_sizes=SIZES, lrs=LRS, growth=1.5, max_steps=20)
    (unreached,) = answers(load(tmp_path), AnalysisConfig(resamples=100), noise=False)
    remarks = advise(unreached, Assumed(examples_per_second=1.0), Wish(devices=1)).remarks
    assert remarks[0].startswith("target not reached")
    assert "without a curve" in remarks[1]


def test_what_cbs_local_wrote_stands_beside_the_recommendation(exact: Answer, tmp_path: Path) -> None:
    throughput, wish = Assumed(examples_per_second=2000.0, latency=0.05), Wish(devices=4)
    alone = advise(exact, throughput, wish, local_curves(tmp_path))
    assert alone.to_json() == advise(exact, throughput, wish).to_json()
    size = max(plan.batch_size for plan in alone.plans.values())
    places = [(None, (None, 0.9 * size)), (0.95 * size, (10.0, None)), (size * 2.0, (None, None)), (None, (4.0, None))]
    checkpoints = [
        {"examples": 100 * 2**index, "critical_batch_size": {"value": value, "interval": ends}}
        for index, (value, ends) in enumerate(places)
    ]
    scope = {"workload": exact.group.workload, "tolerance": 0.02, "metric_unit": "nats", "example_unit": "row"}
    file = tmp_path / "analysis" / "local" / "local.json"
    file.parent.mkdir(parents=True)
    for optimizer in ("muon", exact.group.optimizer):
        curve = {"optimizer": optimizer, "checkpoints": checkpoints}
        file.write_text(json.dumps({"scopes": [scope | {"curves": [curve]}]}))
        remarks = advise(exact, throughput, wish, local_curves(tmp_path)).remarks
        assert len(remarks) == len(alone.remarks) + (2 if optimizer == exact.group.optimizer else 0)
    assert remarks[-2] == (
        "local critical batch size along a run, by rows seen (within 0.02 nats): "
        f"below {number(0.9 * size)} at 100, {number(0.95 * size)} at 200, {number(size * 2.0)} at 400, above 4 at 800"
    )
    assert remarks[-1].startswith("batch sizes above it, which fall behind")
    assert f": {size} up to 200 rows; plan smaller ones" in remarks[-1]
    file.write_text('{"scopes": 3}')
    with pytest.raises(ResultsError, match=r"local\.json is not what 'cbs local' writes"):
        local_curves(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"devices": 0}, "devices must be at least 1"),
        ({"price": 0.0}, "price of a device-hour must be above 0"),
        ({"price": math.nan}, "price of a device-hour"),
        ({"price_ratio": -1.0}, "price ratio must be at least 0"),
    ],
)
def test_a_wish_out_of_its_domain_is_refused(changes: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Wish(**{"devices": 1, **changes})


def test_the_frontier_of_the_plane_has_the_least_time_of_every_number_of_devices(exact: Answer) -> None:
    throughput = Assumed(examples_per_second=2000.0, latency=0.05)
    points = plane(exact, throughput)
    kept = {point["devices"]: point for point in points if point["on_frontier"]}
    for devices, point in kept.items():
        beside = [other for other in points if other["devices"] == devices]
        assert point["seconds"] == min(other["seconds"] for other in beside)
        expected = (MIN_STEPS + MIN_EXAMPLES / point["batch_size"]) * (0.05 + point["batch_size"] / (devices * 2000.0))
        assert point["seconds"] == pytest.approx(expected, rel=5e-3)
        assert point["seconds_low"] == pytest.approx(expected, rel=CLOSE)
        assert point["seconds_high"] == pytest.approx(expected, rel=CLOSE)
    times = [kept[devices]["seconds"] for devices in sorted(kept)]
    assert times == sorted(times, reverse=True)


def halves(spread: float | None) -> StepTimeTable:
    """Step times of two optimizers, muon's a fifth less, each known to a factor at 95 % from five repetitions."""
    rows = []
    for name, factor in (("adamw", 1.0), ("muon", 0.8)):
        for size in SIZES:
            time = factor * (0.01 + size / 1e4)
            interval = None if spread is None else (time / spread, time * spread)
            rows.append(
                StepTime(
                    batch_size=size, seconds=time, optimizer=name, interval=interval, repetitions=5 if spread else 1
                )
            )
    return StepTimeTable(tuple(rows))


def test_step_times_that_are_hardly_known_make_no_winner_certain(noisy: list[Answer]) -> None:
    plans, shares = {}, {}
    for spread in (None, 1.0001, 2.0):
        plans[spread] = [advise(answer, halves(spread), Wish(devices=1)).plans for answer in noisy]
        for objective in ("time", "cost", "examples"):
            each = [entry[objective] for entry in plans[spread]]
            shares[spread, objective] = probabilities_of_best(each)[1]
    assert shares[None, "time"] > 0.97
    assert shares[1.0001, "time"] == pytest.approx(shares[None, "time"], abs=0.02)
    for objective in ("time", "cost"):
        assert 0.6 < shares[2.0, objective] < 0.95
    assert shares[2.0, "examples"] == shares[None, "examples"]
    (exact, _, wide) = (plans[spread][0]["time"] for spread in (None, 1.0001, 2.0))
    assert wide.steps == exact.steps
    assert wide.seconds.value == pytest.approx(exact.seconds.value)
    assert math.log(wide.seconds.interval[1] / wide.seconds.interval[0]) > 4 * math.log(
        exact.seconds.interval[1] / exact.seconds.interval[0]
    )
    assert wide.device_hours.interval[1] == pytest.approx(wide.seconds.interval[1] / 3600)
    assert wide.probability_within_5_percent < 0.9 < exact.probability_within_5_percent
