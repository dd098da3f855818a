"""Sweeps at equal budgets: what is asked for, refused and run, and how ``--precision`` adds trials to them."""

import dataclasses
from pathlib import Path

import pytest

from cbs.errors import ConfigError, ResultsError
from cbs.registry.choices import Choice, parse_choice
from cbs.training.run import run_trial
from cbs.trial.config import TrialConfig
from cbs.trial.record import TrialStatus
from cbs.trial.store import Store
from sweeps.folder.manifest import union
from sweeps.launching.launch import resolve
from sweeps.launching.loop import follow
from sweeps.launching.policies import Once, SweepReport
from sweeps.outlook.report import outcome_lines
from sweeps.search.search import Limits, Search
from sweeps.spec.given_rates import parse_lr_rule
from sweeps.spec.lengths import ScheduleRule, in_examples, parse_budgets
from sweeps.spec.spec import UNRESOLVED, Sweep
from tests.sweeps.alone import swept, without_ray
from tests.sweeps.simulation import small_sweep


def tiny(**changes: object) -> Sweep:
    """SGD on a small noisy quadratic, two sizes of a learning rate that the rule says."""
    base = small_sweep(budgets=(400,), batch_sizes=(4, 32), seeds=(0,), target=UNRESOLVED).replace(
        workload=dataclasses.replace(small_sweep().trial.workload, options={"dimension": 20}),
        optimizers=(dataclasses.replace(small_sweep().axes.optimizers[0], name="sgd"),),
        schedule=ScheduleRule(warmup_steps=1),
        lr_rule=parse_lr_rule("linear:0.02@4"),
    )
    return base.replace(**changes)


def ran_once(asked: Sweep, folder: Path, limits: Limits | None = None) -> SweepReport:
    """As ``cbs sweep`` does, in this process and without timing a step first."""
    with without_ray():
        return follow(Once(), resolve(asked), folder, swept, limits or Limits())


def test_a_batch_schedule_is_at_its_budget_after_the_last_step_that_fits(tmp_path):
    """A step of 64 after 364 of 400 examples does not; the constant batch size sees them all."""
    late = tiny(batch_sizes=(4,), batch_schedules=(Choice(name="constant"), parse_choice("late_switch(to=64)")))
    report = ran_once(late, tmp_path)
    known, scheduled = report.content["studies"]
    assert known["value"] is not None
    assert scheduled["value"] is not None
    assert (known["most_examples"], scheduled["most_examples"]) == (400, 364)
    assert not any("no trial" in line for line in outcome_lines(report.content))


@pytest.mark.parametrize(
    ("text", "amounts", "tokens"),
    [
        ("2e6", (2e6,), False),
        ("4e6,1e6", (1e6, 4e6), False),
        ("64M tokens", (64e6,), True),
        ("16M, 64M tokens", (16e6, 64e6), True),
        ("1.5B examples", (1.5e9,), False),
        ("200k", (2e5,), False),
    ],
)
def test_budgets_are_examples_or_tokens(text, amounts, tokens):
    assert parse_budgets(text) == (amounts, tokens)


@pytest.mark.parametrize("text", ["", "many", "-5", "0", "1e6,1000k", "64Mtokens", "1e6,,2e6", "inf", "nan tokens"])
def test_other_budgets_are_refused_in_one_line(text):
    with pytest.raises(ConfigError, match=r"^--budget [^\n]+$"):
        parse_budgets(text)


def test_tokens_become_examples_where_an_example_has_any():
    assert in_examples((64e6,), True, 128) == (500_000,)
    assert in_examples((64e6,), False, 128) == (64_000_000,)
    with pytest.raises(ConfigError, match="examples of this workload have none"):
        in_examples((64e6,), True, None)
    with pytest.raises(ConfigError, match="two of the budgets are 1 examples"):
        in_examples((100, 101), True, 100)


@pytest.mark.parametrize(
    ("text", "at_64"), [("sqrt:4e-3@16", 8e-3), ("linear:4e-3@16", 0.016), ("64:5e-3,16:1e-3", 5e-3)]
)
def test_a_rule_says_the_learning_rate_of_every_batch_size(text, at_64):
    rule = parse_lr_rule(text)
    assert rule.at(64) == pytest.approx(at_64)
    assert parse_lr_rule(str(rule)) == rule


@pytest.mark.parametrize(
    "text", ["", "sqrt", "sqrt:1e-3", "sqrt:1e-3@0", "sqrt:-1@4", "cube:1@4", "64:", "64:1,64:2", "1.5:1", "64:nan"]
)
def test_other_rules_are_refused_in_one_line(text):
    with pytest.raises(ConfigError, match=r"^(a rule for learning rates|learning rates) [^\n]+$"):
        parse_lr_rule(text)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"budgets": (31,)}, "a budget of 31 examples is less than one batch of 32"),
        ({"schedule": ScheduleRule(warmup_steps=100)}, "the warmup takes 3,200 examples at batch size 32"),
        ({"schedule": ScheduleRule(name="cosine", warmup_steps=1, decay_examples=401)}, "decays for 401 examples"),
        ({"within": -0.1}, "within, a difference of the metric, must be above 0"),
        ({"batch_sizes": (4, 64), "lr_rule": parse_lr_rule("4:0.1")}, "no learning rate for batch size 64"),
    ],
)
def test_what_cannot_be_met_is_refused(changes, said):
    with pytest.raises(ConfigError, match=said):
        tiny(**changes)


def test_a_budget_is_met_as_closely_as_batches_allow():
    assert tiny(batch_sizes=(32,)).budget(32) == 12  # 384 of 400, nearer than 416
    assert tiny(batch_sizes=(32,), budgets=(410,)).budget(32) == 13
    assert tiny().unmet == {32: 384}
    assert tiny(budgets=(320,)).unmet == {}


def test_no_trial_is_pruned_and_the_protocol_says_that_none_stops_at_the_target():
    assert tiny(prune_factor=1.3).prune_factor is None
    assert tiny().protocol()["stops_at_target"] is False
    assert "stops_at_target" not in small_sweep().protocol()
    other = tiny(budgets=(800,), within=0.5, lr_rule=parse_lr_rule("4:0.1,32:0.2"))
    assert other.protocol_fingerprint == tiny().protocol_fingerprint
    assert union(tiny().axes.to_json(), other.axes.to_json())["budgets"] == [400, 800]
    assert union(tiny().axes.to_json(), other.axes.to_json())["lr_rule"] == ["linear:0.02@4", "4:0.1,32:0.2"]


@pytest.fixture(scope="module")
def config() -> TrialConfig:
    (cell, *_) = Search(resolve(tiny())).cells()
    return resolve(tiny()).trial_at(cell, 0.02)


def test_a_trial_trains_past_its_target_until_the_budget_is_spent(config):
    easy = dataclasses.replace(config, target=dataclasses.replace(config.target, value=1e9), probe=None)
    result = run_trial(easy)
    assert result.status is TrialStatus.BUDGET_EXHAUSTED
    assert result.steps_to_target is None
    assert result.final_examples == 400
    assert result.message.startswith("trained to its budget; last validation_loss ")
    stops = run_trial(dataclasses.replace(easy, stops_at_target=True))
    assert stops.status is TrialStatus.REACHED
    assert stops.final_examples == 0


def test_a_trial_that_blows_up_has_diverged_whether_or_not_its_target_was_passed(config):
    for value in (0.1, 1e9):
        target = dataclasses.replace(config.target, value=value)
        result = run_trial(dataclasses.replace(config, target=target, lr=50.0, max_steps=400, probe=None))
        assert result.status is TrialStatus.DIVERGED


def test_all_budgets_of_a_sweep_run_into_one_folder_and_are_told_apart(tmp_path):
    asked = tiny(budgets=(200, 400), schedule=ScheduleRule(name="linear", warmup_steps=1))
    report, again = ran_once(asked, tmp_path / "a"), ran_once(asked, tmp_path / "a")
    assert again.content["studies"] == report.content["studies"]
    assert [(s["budget"], s["batch_size"]) for s in report.content["studies"]] == [
        (200, 4), (200, 32), (400, 4), (400, 32)
    ]  # fmt: skip
    assert all(study["value"] > 0 and not study["at_grid_edge"] for study in report.content["studies"])
    assert report.content["statuses"] == {"BUDGET_EXHAUSTED": 4}
    heads = [line for line in report.lines if "after" in line]
    assert [head.split("validation_loss ")[1] for head in heads] == ["after 200 examples", "after 400 examples"]
    assert report.lines[-1] == f"next: cbs budget {tmp_path / 'a'}"
    assert {f"whole batches are {met} at batch size 32" for met in (192, 384)} <= set(report.lines)
    store = Store(tmp_path / "a")
    assert store.manifest()["axes"]["budgets"] == [200, 400]
    assert {result.final_examples for result in store.results()} == {192, 200, 384, 400}


def test_at_a_constant_rate_one_run_serves_both_budgets(tmp_path):
    report = ran_once(tiny(budgets=(200, 400)), tmp_path / "a")
    assert report.content["statuses"] == {"BUDGET_EXHAUSTED": 2}
    values = {(s["budget"], s["batch_size"]): s["value"] for s in report.content["studies"]}
    assert values[200, 4] > values[400, 4]
    with without_ray(), pytest.raises(ResultsError, match="choose another folder"):
        swept(resolve(tiny(budgets=()), 0.2), tmp_path / "a")


def test_a_dry_run_counts_every_trial_to_its_budget(tmp_path):
    asked = resolve(tiny(budgets=(200, 400)))
    lines = Once().preview(asked, tmp_path, None, 1).lines
    assert "budget        200 400 examples" in lines
    assert "whole batches are 384 at batch size 32" in lines
    assert any(line.startswith("examples      784 (every trial to its budget)") for line in lines)
    assert lines[-1].startswith("the smaller budgets are read from the same trials")
    decaying = resolve(tiny(budgets=(200, 400), schedule=ScheduleRule(name="linear", warmup_steps=1)))
    report = Once().preview(decaying, tmp_path, None, 1)
    assert report.content["examples"] == 392 + 784 - 0
    assert report.lines[-1] == "in all        about 4 trials, 1,176 examples"


def test_axes_of_a_folder_are_joined_optimizers_as_they_came_and_numbers_in_order():
    one = {"optimizers": ["sgd", "adamw"], "batch_sizes": [8, 32], "lrs": None, "seeds": [2]}
    other = {"optimizers": ["lamb", "adamw"], "batch_sizes": [16, 8], "lrs": [0.1], "seeds": [1]}
    joined = {"optimizers": ["sgd", "adamw", "lamb"], "batch_sizes": [8, 16, 32], "lrs": None, "seeds": [1, 2]}
    assert union(one, other) == joined
    assert union(one | {"lrs": [0.2]}, other)["lrs"] == [0.1, 0.2]
