"""What a plan costs, said before the first trial and while it runs, against what the sweep then takes."""

import math
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from analysis.formatting import duration, number
from cbs.compute import device
from cbs.errors import ConfigError
from cbs.trial.config import Choice, EvaluationPlan
from sweeps.launching.policies.precision import Precision
from sweeps.outlook.cost import Cost, StepCost, evaluations, measure_cost, on_gpu, prior_steps
from sweeps.outlook.price import RUNS, CriticalRun, critical_run, price, price_lines, price_report, span
from sweeps.outlook.remaining import outlook
from sweeps.outlook.report import dry_run_lines, dry_run_report
from sweeps.running.resources import Resources
from sweeps.search.forecast import End, play
from sweeps.search.search import Search
from tests.sweeps.simulation import MIN_EXAMPLES, MIN_STEPS, run_search, small_sweep

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


ROOT = Path(__file__).resolve().parents[2]
MIDDLE, LATE = RUNS[0.2], RUNS[0.1]
GPT2 = Choice(name="text", options={"size": "gpt2-small"})
LARGE = {"workload": Choice(name="text", options={"size": "gpt2-xl"}), "optimizers": (Choice(name="adamw"),)}


def expecting(expected: tuple[float, float] | None, **changes: object) -> Search:
    return Search(small_sweep(expected=expected, **changes))


def test_a_run_at_the_critical_batch_size_sees_twice_the_least_examples_in_twice_the_least_steps() -> None:
    run = critical_run(expecting((100.0, 5000.0), workload=GPT2), None)
    assert (run.examples, run.steps) == (2 * 2 * 5000, 200)  # of two optimizers; the steps are those of one
    assert run.flops == 6 * run.parameters * 20_000 * 1024
    assert run.gpu_hours == pytest.approx(run.flops / (0.4 * 989e12) / 3600)
    found = price(MIDDLE, run, 2.5)
    assert found.examples == tuple(20_000 * runs for runs in MIDDLE)
    assert found.gpu_hours is not None
    assert found.dollars == pytest.approx([2.5 * hours for hours in found.gpu_hours])
    assert price(MIDDLE, run).dollars is None


def test_finished_trials_take_the_place_of_what_is_expected() -> None:
    search = expecting((1.0, 1.0))
    run_search(search)
    run = critical_run(search, None)
    assert run.examples == pytest.approx(2 * 2 * MIN_EXAMPLES, rel=0.1)
    assert run.steps == pytest.approx(2 * MIN_STEPS, rel=0.1)


@pytest.mark.parametrize(("sizes", "known"), [((16,), False), ((16, 64), True)])
def test_one_batch_size_does_not_tell_where_the_curve_bends(sizes: tuple[int, ...], known: bool) -> None:
    search = expecting(None, batch_sizes=sizes)
    run_search(search)
    run = critical_run(search, None)
    assert (run.examples is not None) == known
    said = "known once trials have reached the target at two batch sizes" in next(
        price_lines(price_report(search, None, 1))
    )
    assert said != known


def test_seconds_are_those_of_timed_steps_at_the_critical_batch_size() -> None:
    search = expecting((100.0, 5000.0), workload=GPT2)
    cost = Cost(dict.fromkeys(search.sweep.choices, StepCost(fixed=0.5, per_example=0.01, evaluation=0.0)))
    run = critical_run(search, cost)
    assert run.seconds == pytest.approx(2 * 200 * (0.5 + 0.01 * 50))
    (line,) = price_lines(price_report(search, cost, 2))
    assert f"{duration(MIDDLE[1] * 400 / 2)} [" in line
    assert "GPU-hours" not in line  # of another machine
    (line,) = price_lines(price_report(search, cost, 2, 2.5))
    assert "GPU-hours" in line
    assert "dollars" in line


def test_seconds_are_those_of_finished_trials_where_no_step_is_timed() -> None:
    sweep = small_sweep()
    ran = run_search(Search(sweep)).values()
    timed = [result.replace(timing={"seconds": 0.25 * result.final_examples}) for result in ran]
    run = critical_run(Search(sweep, timed), None)
    assert run.seconds == pytest.approx(0.25 * run.examples)
    assert critical_run(Search(sweep, ran), None).seconds is None


@pytest.mark.parametrize(("devices", "wanted", "there"), [(1, "auto", True), (1, "cpu", False), (0, "auto", False)])
def test_hours_of_a_gpu_are_said_of_trials_that_run_on_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, devices: int, wanted: str, there: bool
) -> None:
    monkeypatch.setattr(device, "count", lambda: devices)
    search = expecting((100.0, 5000.0), workload=GPT2, device=wanted)
    untimed = Cost(on_gpu=on_gpu(search.sweep))
    steps = dict.fromkeys(search.sweep.choices, StepCost(36.0, 0.0, 0.0))
    for cost in (untimed, replace(untimed, steps=steps)):
        told = "".join(dry_run_lines(dry_run_report(search.sweep, tmp_path, cost, 1)))
        assert ("hours of an accelerator" in told) == (there and not cost.steps)
        assert ("GPU-hours" in told) == (there and not cost.steps)
        assert "GPU-hours" in "".join(price_lines(price_report(search, cost, 1, 2.5)))  # which was asked for
    run = critical_run(search, replace(untimed, steps=steps))
    assert (run.gpu_hours == pytest.approx(2 * 200 * 36.0 / 3600)) == there
    elsewhere = "".join(dry_run_lines(dry_run_report(search.sweep, tmp_path, None, 1)))
    assert ("hours of an accelerator" in elsewhere) == ("GPU-hours" in elsewhere) == (wanted != "cpu")


def test_a_run_to_a_budget_sees_the_budget() -> None:
    search = expecting(None, budgets=(4096,))
    assert critical_run(search, None) == CriticalRun(examples=2 * 4096)
    assert f"{span(MIDDLE)} runs of the budget of each" in next(price_lines(price_report(search, None, 1)))


def test_the_dry_run_has_one_line_for_both_precisions_and_says_what_the_grid_costs(tmp_path: Path) -> None:
    sweep = small_sweep(expected=(MIN_STEPS, MIN_EXAMPLES))
    report = dry_run_report(sweep, tmp_path, None, 1)
    (line,) = (line for line in dry_run_lines(report) if line.startswith("price "))
    for runs, share in ((MIDDLE, "20%"), (LATE, "10%")):
        assert f"within {share}: {span(runs)} runs at B_crit of each optimizer" in line
    assert "known once" not in line
    grid = number(report["examples"] / (2 * 2 * MIN_EXAMPLES), 2)
    assert any(line.startswith("examples") and f"; {grid} runs at B_crit)" in line for line in dry_run_lines(report))
    assert "runs at B_crit)" not in "".join(dry_run_lines(dry_run_report(small_sweep(), tmp_path, None, 1)))


@pytest.mark.parametrize(
    ("goal", "priced"), [(0.35, ["35%", "20%"]), (0.25, ["20%", "10%"]), (0.1, ["10%"]), (0.05, ["10%"])]
)
def test_priced_are_the_precision_that_is_sought_and_the_next(goal: float, priced: list[str], tmp_path: Path) -> None:
    sweep = small_sweep(expected=(MIN_STEPS, MIN_EXAMPLES))
    (line,) = (
        line for line in Precision(goal=goal).preview(sweep, tmp_path, None, 1).lines if line.startswith("price ")
    )
    assert re.findall(r"within (\d+%)", line) == priced
