"""Every rule for the batch size against closed forms, and cuts of the learning rate against growth of the batch on
linear regression."""

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from cbs.compute import seeding
from cbs.schedules.batch_size import (
    BATCH_SCHEDULES,
    GRAD_SQ_NORM,
    BatchSchedule,
    ClosedLoop,
    OpenLoop,
    RunSettings,
    build_batch_schedule,
)
from cbs.schedules.batch_size import Stage as Planned
from cbs.schedules.learning_rate import build_schedule
from cbs.training.batch_sizes import SEEN, run_of
from cbs.training.run import run_trial
from cbs.trial.config import Choice, EvaluationPlan, Schedule, TrialConfig
from cbs.trial.record import TrialResult
from cbs.workloads import build_workload
from tests.cases import of_extensions
from tests.factories import quadratic
from tests.kinds import kinds_of
from tests.references.adaptive_batch import best_gamma, steps_and_examples
from tests.references.noisy_quadratic import Quadratic, expected_losses

DIMENSION = 600
WINDOW = 20

CONFIG = quadratic(
    "sgd(momentum=0.0)",
    {"dimension": DIMENSION, "spectrum_power": 0.3},
    target=2.0,
    lr=0.12,
    batch_size=8,
    seed=3,
    max_steps=900,
    evaluation=EvaluationPlan(growth=1.001, far_growth=1.001),
    probe=Choice(name="auto", options={"every": 1}),
)

FALLING = Schedule(name="cosine", decay_examples=1300)
SLOWLY = Schedule(name="cosine", decay_examples=7200)
CLOSED = {"measurements": WINDOW, "cap": 64}

RULES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "constant": ({}, {}),
    "stages": ({"table": "0:8 400:16 1200:48", "lr_exponent": 0.5}, {}),
    "linear_ramp": ({"to": 40, "over_examples": 1500, "increment": 4}, {}),
    "seesaw": ({"alpha": 1.5}, {"schedule": FALLING}),
    "smith": ({"cut": 1.5}, {"schedule": FALLING}),
    "late_switch": ({"to": 64, "at": 0.05}, {}),
    "noise_rule": ({"price": 10.0, **CLOSED}, {}),
    "norm_test": ({"theta": 0.6, **CLOSED}, {}),
    "dual_norm": ({"theta": 0.6, **CLOSED}, {}),
    "doubling": (CLOSED, {}),
}
for rules in of_extensions("RULES"):
    RULES |= rules
"""Options of a rule, and settings of the trial, with which its batch size changes before the target."""


def plain(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options and settings of a rule that nobody has chosen any for."""
    parameters = inspect.signature(BATCH_SCHEDULES[name], eval_str=True).parameters.values()
    must = {each.name: 40 if each.annotation is int else 0.5 for each in parameters if each.default is each.empty}
    looks = {option: value for option, value in CLOSED.items() if option in {each.name for each in parameters}}
    return {option: value for option, value in must.items() if option != "run"} | looks, {"schedule": SLOWLY}


EVERY = {name: RULES.get(name) or plain(name) for name in BATCH_SCHEDULES}


def model_of(config: TrialConfig) -> Quadratic:
    """The quadratic with the very parameters that the trial starts from."""
    workload: Any = build_workload(config.workload)
    with seeding.seeded(config.seed, "init"):
        theta = workload.build_model().theta.detach().double().numpy()
    return Quadratic(
        curvature=workload.curvature.double().numpy(), noise=workload.noise.double().numpy(), start=theta**2,
        count=np.ones(DIMENSION),
    )  # fmt: skip


def planned(config: TrialConfig) -> list[tuple[Planned, float]]:
    """Stage and learning rate of every step of a table of stages, to the end of the budget."""
    schedule, seen, found = schedule_of(config), 0, []
    assert isinstance(schedule, OpenLoop)
    multiplier = schedule.multiplier or build_schedule(config.schedule)
    while seen + (stage := schedule.stage(seen)).batch_size <= config.max_examples:
        seen += stage.batch_size
        found.append((stage, config.lr * stage.lr_factor * multiplier(seen)))
    return found


def schedule_of(config: TrialConfig) -> BatchSchedule:
    return build_batch_schedule(config.batch_schedule, run_of(config, None))


def grad_sq_norms(model: Quadratic, stages: list[tuple[Planned, float]]) -> np.ndarray:
    """Expected |G|^2 at every step, one by one: the slow twin of ``expected_losses``, at another weight."""
    second, found = model.start.copy(), []
    for stage, lr in stages:
        found.append(float((model.curvature**2 * second).sum()))
        second = (1 - lr * model.curvature) ** 2 * second + lr**2 * model.noise / stage.batch_size
    return np.array(found)


def steps_of(config: TrialConfig, losses: np.ndarray) -> float:
    found = config.target.crossing(range(len(losses)), losses)
    assert found is not None
    return found


def of_rule(name: str) -> TrialConfig:
    options, settings = EVERY[name]
    return dataclasses.replace(CONFIG, batch_schedule=Choice(name=name, options=options), **settings)


def losses(model: Quadratic, stages: list[tuple[Planned, float]]) -> np.ndarray:
    return expected_losses(model, "sgd", 0.0, [(lr, stage.batch_size) for stage, lr in stages])


def realised(config: TrialConfig, result: TrialResult) -> list[tuple[Planned, float]]:
    """Stages and learning rates that a trial recorded."""
    multiplier = schedule_of(config).multiplier or build_schedule(config.schedule)
    factors = result.steps.get("lr_factor", np.ones(len(result.steps["step"])))
    rows = zip(result.steps["batch_size"], factors, result.steps["examples"], strict=True)
    return [(Planned(int(size)), config.lr * float(factor) * multiplier(int(seen))) for size, factor, seen in rows]


@pytest.mark.parametrize(
    "name",
    kinds_of([name for name in EVERY if "measurements" not in EVERY[name][0]], ["stages", "linear_ramp", "seesaw"]),
)
def test_a_table_takes_the_steps_of_the_theory(name: str) -> None:
    config, model = of_rule(name), model_of(of_rule(name))
    result = run_trial(config)
    predicted = steps_of(config, losses(model, planned(config)))
    assert result.steps_to_target == pytest.approx(predicted, rel=0.02)
    if name in {*RULES} - {"constant"}:
        switched = result.steps["batch_size"][: int(predicted)]
        assert len(set(switched)) > 1
        # the theory would see a schedule that was not followed
        constant = steps_of(config, losses(model, planned(dataclasses.replace(config, batch_schedule=None))))
        assert abs(predicted / constant - 1) > 0.03


@pytest.mark.parametrize("name", kinds_of([name for name in EVERY if "measurements" in EVERY[name][0]], ["noise_rule"]))
def test_a_rule_that_looks_takes_the_steps_of_the_theory_and_sees_the_truth(name: str) -> None:
    config, model = of_rule(name), model_of(of_rule(name))
    result, rule = run_trial(config), schedule_of(of_rule(name))
    stages = realised(config, result)
    assert len({stage.batch_size for stage, _ in stages}) > (name in RULES)
    assert result.steps_to_target == pytest.approx(steps_of(config, losses(model, stages)), rel=0.02)
    assert isinstance(rule, ClosedLoop)
    windows = grad_sq_norms(model, stages)[: len(stages) // WINDOW * WINDOW].reshape(-1, WINDOW).mean(axis=1)
    truth = windows if rule.looks_at == GRAD_SQ_NORM else float(model.noise.sum()) / windows
    low, value, high = (result.steps[column][WINDOW - 1 :: WINDOW] for column in SEEN)
    np.testing.assert_allclose(value, truth, rtol=0.25)
    inside = (np.nan_to_num(low, nan=0.0) <= truth) & (truth <= np.nan_to_num(high, nan=np.inf))
    assert inside.mean() >= 0.75
    assert np.isfinite(low).any()


CURVATURE = 1.0 / np.arange(1, 41)
EXAMPLES, BATCH, ALPHA = 20_000, 4, 2.0
COSINE = Schedule(name="cosine", decay_examples=EXAMPLES)
RUN = RunSettings(batch_size=BATCH, examples=EXAMPLES, lr_schedule=COSINE)

Steps = Iterator[tuple[float, int]]  # Learning rate and batch size of every step


def risk(steps: Steps, *, normalised: bool, curvature: np.ndarray = CURVATURE, start: float = 1.0) -> tuple[float, int]:
    """Expected excess risk at the end, and the number of steps."""
    second, count = np.full(len(curvature), start), 0
    for lr, batch_size in steps:
        count += 1
        spread = curvature**2 * second + curvature * ((curvature * second).sum() + 1.0)
        if normalised:
            lr /= np.sqrt((curvature**2 * second).sum() + spread.sum() / batch_size)
        second = (1.0 - lr * curvature) ** 2 * second + lr**2 / batch_size * spread
    return 0.5 * float((curvature * second).sum()), count


def steps_of_rule(name: str, lr: float, **options: float) -> Steps:
    """As the rule has it, with the learning rate of the steps themselves."""
    schedule = build_batch_schedule(Choice(name=name, options=options), RUN)
    assert isinstance(schedule, OpenLoop)
    multiplier, seen = schedule.multiplier or build_schedule(COSINE), 0
    while seen + (stage := schedule.stage(seen)).batch_size <= EXAMPLES:
        seen += stage.batch_size
        yield lr * stage.lr_factor * multiplier(seen), stage.batch_size


def cuts() -> tuple[int, ...]:
    """Examples at which the cosine has fallen by another ``ALPHA``."""
    schedule = build_batch_schedule(Choice(name="seesaw", options={"alpha": ALPHA}), RUN)
    assert isinstance(schedule, OpenLoop)
    return schedule.starts


def of_family(a: float, b: float, lr: float) -> Steps:
    """At the k-th cut the learning rate has fallen by a^k and the batch has grown by b^k."""
    starts, seen = np.array(cuts()[:6]), 0
    while True:
        power = float(np.searchsorted(starts, seen, side="right") - 1)
        size = round(BATCH * b**power)
        if seen + size > EXAMPLES:
            return
        seen += size
        yield lr * a**-power, size


def test_the_risk_is_that_of_a_simulation() -> None:
    curvature, rng = np.array([1.0, 0.4, 0.1]), np.random.default_rng(0)
    stages = [(0.2, 2)] * 15 + [(0.1, 5)] * 10
    error = np.ones((20_000, 3))
    for lr, batch_size in stages:
        inputs = rng.standard_normal((len(error), batch_size, 3)) * np.sqrt(curvature)
        wrong = np.einsum("rbd,rd->rb", inputs, error) - rng.standard_normal((len(error), batch_size))
        error -= lr / batch_size * np.einsum("rb,rbd->rd", wrong, inputs)
    losses = 0.5 * (error**2 @ curvature)
    exact, _ = risk(iter(stages), normalised=False, curvature=curvature)
    assert exact == pytest.approx(losses.mean(), abs=4 * losses.std() / np.sqrt(len(losses)))


@pytest.mark.parametrize("lr", [0.03, 0.3])
def test_seesaw_has_the_risk_of_the_cuts_it_replaces_and_takes_a_third_fewer_steps(lr: float) -> None:
    """Exact where steps are short; at the longest of these the batch is no longer far below the noise scale."""
    grown, steps = risk(steps_of_rule("seesaw", lr, alpha=ALPHA), normalised=True)
    cut, all_steps = risk(of_family(ALPHA, 1.0, lr), normalised=True)
    assert grown == pytest.approx(cut, rel=0.05)
    assert 1 - steps / all_steps == pytest.approx(0.378, abs=0.01)
    smooth, _ = risk(steps_of_rule("constant", lr), normalised=True)
    assert smooth / ALPHA < grown < smooth * ALPHA


@pytest.mark.parametrize("lr", [0.01, 0.03])
def test_growth_in_place_of_cuts_has_their_risk_under_sgd(lr: float) -> None:
    """``smith`` is the family's other end, a = 1 and b = alpha; it goes on cutting for as long as a batch fits."""
    cut, _ = risk(of_family(ALPHA, 1.0, lr), normalised=False)
    for rival in (steps_of_rule("smith", lr, cut=ALPHA), of_family(ALPHA**0.5, ALPHA**0.5, lr)):
        assert risk(rival, normalised=False)[0] == pytest.approx(cut, rel=0.1)


PROGRESS = np.linspace(0.0, 1.0, 20_001) ** 2 * 400.0


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_gamma_of_a_noise_scale_that_grows_as_a_power(power: float) -> None:
    # SVHN in appendix D: 10 sqrt(s) gives 24/25
    gamma = best_gamma(PROGRESS, 10.0 * PROGRESS**power)
    assert gamma == pytest.approx((1 + power) / (1 + power / 2) ** 2, rel=1e-4)
    if power == 0.5:
        assert gamma == pytest.approx(24 / 25, rel=1e-4)


@pytest.mark.parametrize("price", [0.5, 30.0, 4000.0])
def test_the_rule_has_that_gamma_at_every_price_and_every_constant_batch_size_has_1(price: float) -> None:
    noise = 10.0 * np.sqrt(PROGRESS) + 1e-9
    fewest, cheapest = PROGRESS[-1], np.trapezoid(noise, PROGRESS)

    def gamma(batch_size: np.ndarray) -> float:
        steps, examples = steps_and_examples(PROGRESS, noise, batch_size)
        return float((steps / fewest - 1) * (examples / cheapest - 1))

    assert gamma(np.sqrt(price * noise)) == pytest.approx(0.96, rel=1e-3)
    assert gamma(np.full_like(noise, price)) == pytest.approx(1.0, rel=1e-9)
    # no other power of the noise scale does better
    assert all(gamma(noise**other) > 0.96 for other in (0.3, 0.7, 1.0))
