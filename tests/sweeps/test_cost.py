"""What a plan says before a sweep and while it runs, against what the sweep then takes."""

import math
import time

import pytest
import torch
from torch import nn

from cbs.compute import device
from cbs.errors import ConfigError
from cbs.trial.config import Choice, EvaluationPlan
from sweeps.outlook.cost import Cost, StepCost, evaluations, measure_cost, on_gpu, prior_steps
from sweeps.outlook.remaining import outlook
from sweeps.running.resources import Resources
from sweeps.search.forecast import End, play
from sweeps.search.search import Search
from tests.sweeps.simulation import small_sweep

STEP = StepCost(fixed=0.002, per_example=0.0001, evaluation=0.0)
COST = Cost({"adamw": STEP, "merit": STEP})
FAULTY = "tests.sweeps.faulty:workload"
EXPECTED = (100.0, 3000.0)


def world(distance: float, curvature: float = 0.25):
    """How trials really end: the best learning rate lies ``distance`` times the default and follows the root of B."""

    def end(config):
        default = 4e-3 if config.optimizer.name == "adamw" else 8e-3
        gap = math.log(config.lr / (default * distance * (config.batch_size / 16) ** 0.4))
        if gap > math.log(10):
            return End(20.0, reached=False, distance=math.inf)
        steps = (110 + 2800 / config.batch_size) * math.exp(curvature * gap**2)
        if steps > config.max_steps:
            return End(config.max_steps, reached=False, distance=1 - config.max_steps / steps)
        return End(steps)

    return end


def pace(config):
    return STEP.seconds(config.batch_size, 1.0)


@pytest.mark.parametrize("distance", [1.0, 8.0, 100.0])
@pytest.mark.parametrize("seeds", [(0,), (0, 1, 2)])
def test_a_plan_is_within_40_percent_of_what_the_sweep_takes(distance, seeds):
    """Whatever the distance of the best learning rate, of which the plan knows nothing."""
    sweep = small_sweep(expected=EXPECTED, seeds=seeds, max_steps=1000, max_examples=30_000)
    _, planned = outlook(sweep, (), COST, 2)
    taken = play(Search(sweep), world(distance), workers=2, seconds_per_step=pace, overhead=0.1)
    assert planned.examples == pytest.approx(taken.examples, rel=0.4 if distance < 100 else 0.6)
    assert planned.seconds == pytest.approx(taken.seconds, rel=0.4 if distance < 100 else 0.6)


def test_halfway_the_time_left_is_known_from_what_was_seen():
    sweep = small_sweep(expected=EXPECTED, max_steps=1000, max_examples=30_000)
    search = Search(sweep)
    half = play(search, world(3.0), workers=2, seconds_per_step=pace, most=25)
    _, left = outlook(sweep, half.results, COST, 2)
    whole = play(Search(sweep), world(3.0), workers=2, seconds_per_step=pace)
    assert left.examples == pytest.approx(whole.examples - half.examples, rel=0.3)


def test_a_step_costs_a_fixed_part_and_a_part_per_example():
    assert STEP.seconds(100, 10.0) == pytest.approx(10 * (0.002 + 0.01))


@pytest.mark.parametrize("steps", [1, 10, 100, 3000])
def test_evaluations_are_those_of_the_plan(steps):
    """The distance falls with the logarithm of the step, and the ratio of two evaluations with the distance."""
    plan, step, count = EvaluationPlan(growth=1.1, far_growth=1.5, near_fraction=0.2), 0, 1
    while step < steps:
        ratio = min(1.5, max(1.1, 1.5 ** math.log(steps / step))) if step else 1.0
        step, count = max(step + 1, math.ceil(step * ratio)), count + 1
    assert evaluations(plan, steps) == count


def test_the_prior_is_the_recipes_expectation_within_the_budget_else_the_budget():
    sweep = small_sweep()
    assert prior_steps(sweep, 4) == sweep.budget(4)
    assert prior_steps(sweep.replace(expected=EXPECTED), 4) == 850.0
    assert prior_steps(sweep.replace(expected=(1e9, 0.0)), 4) == sweep.budget(4)


def test_measured_cost_is_positive_and_costs_little():
    # So far apart that the larger takes longer however busy the machine is.
    sweep = small_sweep(batch_sizes=(4, 2**11))
    started = time.process_time()
    cost = measure_cost(sweep, most_seconds=120.0)
    assert time.process_time() - started < 15.0
    assert set(cost.steps) == {"adamw", "merit"}
    for step in cost.steps.values():
        assert step.per_example > 0.0
        assert step.evaluation > 0.0
    assert (cost.told, cost.parameters, cost.on_gpu) == ((), 1000, on_gpu(sweep))


def test_a_target_that_is_there_already_is_refused():
    from dataclasses import replace

    sweep = small_sweep()
    with pytest.raises(ConfigError, match="reached before the first step"):
        measure_cost(sweep.replace(target=replace(sweep.target, value=1e9)))


class Refusing(torch.optim.SGD):
    """Fails in its step with an error that says nothing to a person."""

    def step(self, closure=None):
        raise KeyError("exp_avg")


class Broken(nn.Module):
    def forward(self, inputs):
        raise IndexError("on purpose")


class Evaluating(Refusing):
    """Its step evaluates a model, which fails."""

    def step(self, closure=None):
        Broken()(torch.zeros(3))


@pytest.mark.parametrize(
    ("workload", "optimizer", "words"),
    [
        ("noisy_quadratic", "Refusing", "optimizer 'OWN' fails in its first step: KeyError: 'exp_avg'"),
        ("noisy_quadratic", "Evaluating", "workload 'noisy_quadratic' fails in its first step: IndexError: on purpose"),
        (FAULTY, "torch.optim:SGD", f"workload '{FAULTY}' fails in its first step: ValueError: on purpose"),
    ],
)
def test_a_first_step_that_fails_names_who_is_at_fault(workload, optimizer, words):
    own = optimizer if ":" in optimizer else f"{__name__}:{optimizer}"
    acts = {"acts": {"1": "raise"}, "after": 0} if workload == FAULTY else {}
    choices = Choice(name=own), Choice(name="sgd")
    with pytest.raises(ConfigError) as refusal:
        measure_cost(small_sweep(workload=Choice(name=workload, options=acts), optimizers=choices, batch_sizes=(1,)))
    assert str(refusal.value) == words.replace("OWN", own)


@pytest.mark.parametrize(
    ("resources", "gpus", "expected"),
    [
        ({"workers": 1}, 0, 1),
        ({"workers": 1, "gpus_per_trial": 0.5}, 8, 1),
        ({"gpus_per_trial": 2.0}, 2, 1),
        ({"address": "auto"}, 0, 0),
        ({"address": "auto", "workers": 12}, 4, 12),
    ],
)
def test_trials_at_a_time(resources, gpus, expected, monkeypatch):
    monkeypatch.setattr(device, "count", lambda: gpus)
    assert Resources(**resources).parallel(gpus) == expected
