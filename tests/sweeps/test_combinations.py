"""What combines with what: every row of the table refuses, and everything that a sweep can ask for is seen."""

import dataclasses
from pathlib import Path
from typing import Any, ClassVar

import pytest

from cbs.errors import ConfigError
from cbs.registry.choices import Choice
from cbs.trial.config import COMMAND
from cbs.trial.parent import Parent
from cbs.trial.target import Target
from sweeps.launching.asked import limits_of, policy_of
from sweeps.launching.policies import POLICIES, Policy
from sweeps.spec.combinations import EXCLUDED, NEEDED, Rule, asked_for, refuse
from sweeps.spec.lr_rule import parse_lr_rule
from sweeps.spec.spec import Sweep
from tests.sweeps.simulation import small_sweep

ASKED: dict[str, dict[str, Any]] = {
    "--lrs": {"lrs": (0.1, 0.2)},
    "--lrs RULE": {"lr_rule": parse_lr_rule("sqrt:1e-3@4")},
    "--axis": {"tuned": {"adamw": ["eps"]}},
    "--schedule": {"batch_schedules": (Choice(name="seesaw"),)},
    "--budget": {"budgets": (100_000,)},
    "--set target.METRIC": {"further_targets": (Target(metric="training_loss", value=1.0),)},
    "--set search=grid": {"method": "grid"},
    "--set within": {"within": 0.1},
    "--from-checkpoint": {"parent": Parent(source="x", examples=1, digest="0" * 16)},
    "--set device=cpu": {"device": "cpu"},
    "--command": {"workload": Choice(name=COMMAND)},
}
OF_RUNS: dict[str, dict[str, Any]] = {
    "--from": {"source": Path("there")},
    "--max-time": {"limits": limits_of("2h", None)},
    "--max-examples": {"limits": limits_of(None, 1e6)},
}
POLICY_OPTIONS: dict[str, dict[str, Any]] = {"telescope": {"widths": "16..64"}}


def asking(*names: str) -> tuple[Sweep, dict[str, Any]]:
    """A sweep that asks for these, and how its policy is checked."""
    changes = {key: value for name in names for key, value in ASKED.get(name, {}).items()}
    given = {"limits": limits_of(None, None), "source": None}
    return small_sweep(**changes), given | {
        key: value for name in names for key, value in OF_RUNS.get(name, {}).items()
    }


@pytest.mark.parametrize("name", ASKED)
def test_a_sweep_is_seen_to_ask_for_it(name: str) -> None:
    assert asked_for(asking(name)[0]) == {name}
    assert asked_for(small_sweep()) == set()


def test_a_branch_does_not_ask_for_a_checkpoint() -> None:
    started, _ = asking("--from-checkpoint")
    assert asked_for(started.replace(trunk=(16, 1e-3))) == set()


@pytest.mark.parametrize("rule", EXCLUDED, ids=lambda rule: f"{rule.one} {rule.other}")
def test_two_that_exclude_each_other_are_refused(rule: Rule) -> None:
    with pytest.raises(ConfigError, match=f"^{rule.one} does not go with {rule.other}: .*; leave one of the two out$"):
        refuse({rule.one, rule.other})
    refuse({rule.one}, needed=())
    refuse({rule.other}, needed=())
    if {rule.one, rule.other} <= set(ASKED):
        sweep, given = asking(rule.one, rule.other)
        with pytest.raises(ConfigError, match=f"^{rule.one} does not go with {rule.other}"):
            POLICIES.make("once").check(sweep, **given)


@pytest.mark.parametrize("rule", NEEDED, ids=lambda rule: f"{rule.one} {rule.other}")
def test_what_needs_something_else_is_refused_without_it(rule: Rule) -> None:
    needs = {row.other for row in NEEDED if row.one == rule.one}
    with pytest.raises(ConfigError, match=f"^{rule.one} needs {rule.other}: .*; give both, or leave {rule.one} out$"):
        refuse({rule.one, *needs} - {rule.other})
    refuse({rule.one, *needs})


def policies() -> list[tuple[str, str]]:
    return [(name, other) for name in POLICIES for other in POLICIES[name].excludes]


@pytest.mark.parametrize(("name", "other"), policies())
def test_a_policy_refuses_what_it_excludes(name: str, other: str) -> None:
    policy: Policy = POLICIES.make(name, **POLICY_OPTIONS.get(name, {}))
    assert other in {*ASKED, *OF_RUNS}
    sweep, given = asking(other, *policy.needs)
    with pytest.raises(ConfigError, match=f"^{policy.asked_as} does not go with {other}: {policy.excludes[other]}"):
        policy.check(sweep, **given)


def test_a_policy_refuses_to_be_without_what_it_needs() -> None:
    for policy in (POLICIES.make(name, **POLICY_OPTIONS.get(name, {})) for name in POLICIES):
        sweep, given = asking()
        for other, why in policy.needs.items():
            with pytest.raises(ConfigError, match=f"^{policy.asked_as} needs {other}: {why}"):
                policy.check(sweep, **given)


@pytest.mark.parametrize("given", [(0.1, None, "once"), (None, 30.0, "once"), (None, 30.0), (0.1, 30.0, None)], ids=str)
def test_options_of_two_policies_are_refused(given: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigError, match=r"--max-runs|--set policy"):
        policy_of(*given, budget=given[0] is not None)


def test_a_policy_of_ones_own_has_rows_of_its_own() -> None:
    class Mine(type(POLICIES.make("once"))):  # type: ignore[misc]
        asked_as = "mine"
        excludes: ClassVar[dict[str, str]] = {"--lrs": "it has its own"}

    sweep, given = asking("--lrs")
    with pytest.raises(ConfigError, match=r"^mine does not go with --lrs: it has its own; leave one of the two out$"):
        Mine().check(sweep, **given)
    Mine().check(dataclasses.replace(sweep, axes=small_sweep().axes), **given)
