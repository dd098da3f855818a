"""The price of an answer before its first trial: what is known of a run at B_crit, and what is said to be unknown."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.formatting import duration, number
from cbs.compute import device
from cbs.registry.choices import Choice
from sweeps.launching.policies.precision import Precision
from sweeps.outlook.cost import Cost, StepCost, on_gpu
from sweeps.outlook.price import (
    RUNS,
    CriticalRun,
    critical_run,
    price,
    price_lines,
    price_report,
    span,
)
from sweeps.outlook.report import dry_run_lines, dry_run_report
from sweeps.search.search import Search
from tests.sweeps.simulation import MIN_EXAMPLES, MIN_STEPS, run_search, small_sweep

ROOT = Path(__file__).resolve().parents[2]
MIDDLE, LATE = RUNS[0.2], RUNS[0.1]
GPT2 = Choice(name="text", options={"size": "gpt2-small"})
LARGE = {"workload": Choice(name="text", options={"size": "gpt2-xl"}), "optimizers": (Choice(name="adamw"),)}


def expecting(expected: tuple[float, float] | None, **changes: object) -> Search:
    return Search(small_sweep(expected=expected, **changes))


def test_a_run_at_the_critical_batch_size_sees_twice_the_least_examples_in_twice_the_least_steps() -> None:
    run = critical_run(expecting((100.0, 5000.0), workload=GPT2), None)
    assert (run.examples, run.steps) == (2 * 2 * 5000, 200)  # of two optimizers; the steps are those of one
    assert run.parameters is not None
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
    assert run.examples is not None
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
