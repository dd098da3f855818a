"""A sweep before anything runs: its recipe, its variants, what goes together and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cbs.errors import ConfigError
from cbs.optimizers import OPTIMIZERS
from cbs.registry.choices import parse_choice
from cbs.trial.config import COMMAND, Choice
from cbs.trial.parent import Parent
from cbs.trial.target import Target
from sweeps.launching.launch import output_folder, resolve
from sweeps.launching.policies import POLICIES, Policy
from sweeps.launching.train import limits_of, policy_of
from sweeps.recipes import RECIPES
from sweeps.running.trials import changed, settings
from sweeps.spec.axes import Axes, Cell
from sweeps.spec.combinations import EXCLUDED, NEEDED, Rule, asked_for, refuse
from sweeps.spec.given_rates import parse_lr_rule
from sweeps.spec.lengths import ScheduleRule
from sweeps.spec.spec import UNRESOLVED, Sweep, prototype
from tests.cases import of_extensions
from tests.sweeps.simulation import small_sweep


@pytest.mark.parametrize("name", RECIPES.names())
def test_every_recipe_is_a_sweep_named_after_itself(name):
    sweep = RECIPES[name]()
    assert sweep.name == name
    config = sweep.trial_at(Cell(sweep.axes.optimizers[0].name, sweep.axes.batch_sizes[0], sweep.axes.seeds[0]), 1e-3)
    assert config.max_steps == sweep.budget(sweep.axes.batch_sizes[0])


def test_axes_are_sorted_and_free_of_repeats():
    assert small_sweep(batch_sizes=(64, 4)).axes.batch_sizes == (4, 64)
    for axis in ("batch_sizes", "seeds", "lrs"):
        with pytest.raises(ConfigError, match="twice"):
            small_sweep(**{axis: (1, 1)})
    with pytest.raises(ConfigError, match="twice"):
        small_sweep(optimizers=(Choice(name="sgd", options={"momentum": 0.5}),) * 2)


@pytest.mark.parametrize("axis", ["optimizers", "batch_sizes", "seeds", "lrs"])
def test_an_empty_axis_is_refused(axis):
    with pytest.raises(ConfigError, match="at least one"):
        small_sweep(**{axis: ()})


@pytest.mark.parametrize("batch_size", [0, -4, 2.5])
def test_a_batch_size_must_be_a_positive_whole_number(batch_size):
    with pytest.raises(ConfigError, match="batch size"):
        small_sweep(batch_sizes=(batch_size,))


def test_warmup_in_steps_scales_with_the_batch_and_warmup_in_examples_does_not():
    assert [ScheduleRule(warmup_steps=10).at(b).warmup_examples for b in (4, 64)] == [40, 640]
    assert [ScheduleRule(warmup_examples=100).at(b).warmup_examples for b in (4, 64)] == [100, 100]


def test_the_protocol_leaves_the_axes_out_and_keeps_all_else():
    sweep = small_sweep()
    same = sweep.replace(batch_sizes=(8,), seeds=(7,), lrs=(1e-3,), optimizers=(Choice(name="sgd"),), name="x")
    assert same.protocol_fingerprint == sweep.protocol_fingerprint
    for change in ({"max_steps": 3}, {"prune_factor": None}, {"device": "cpu"}, {"target": UNRESOLVED}):
        assert sweep.replace(**change).protocol_fingerprint != sweep.protocol_fingerprint
    with_option = sweep.replace(optimizers=(Choice(name="adamw", options={"eps": 1e-6}),))
    assert with_option.protocol_fingerprint == sweep.protocol_fingerprint


def test_variants_are_studies_of_their_own():
    variants = tuple(map(parse_choice, ("muon", "muon(nesterov=false)", "adamw(eps=1e-6)")))
    sweep = small_sweep(optimizers=variants, batch_sizes=(4,))
    assert [study.optimizer for study in sweep.studies()] == ["muon", "muon(nesterov=false)", "adamw(eps=1e-06)"]
    assert list(sweep.axes.labels.values()) == ["muon", "muon(nesterov=false)", "adamw"]
    trials = [sweep.trial_at(Cell(study.optimizer, 4, 0), 1e-3) for study in sweep.studies()]
    assert [trial.optimizer for trial in trials] == list(variants)
    assert [Cell.of(trial).study for trial in trials] == sweep.studies()
    assert len({trial.trial_id for trial in trials}) == 3
    assert sweep.lr_grid("muon(nesterov=false)") == sweep.lr_grid("muon") != sweep.lr_grid("adamw(eps=1e-06)")


SWEEP = Sweep(
    name="tiny",
    trial=prototype(workload=Choice(name="noisy_quadratic", options={"dimension": 5})),
    axes=Axes(optimizers=(Choice(name="sgd"), Choice(name="adamw")), batch_sizes=(4,)),
)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"averaging": Choice(name="emma")}, "did you mean ema"),
        ({"averaging": Choice(name="ema")}, "decay or half_life"),
        ({"averaging": Choice(name="lawa", options={"checkpoints": 3})}, "every_examples"),
        ({"schedule": ScheduleRule(name="polynomial", decay_examples=999, options={"power": -1})}, "power"),
        ({"schedule": ScheduleRule(options={"power": 2})}, "'constant'.*its options are: none"),
        (
            {
                "averaging": Choice(name="ema", options={"decay": 0.9}),
                "optimizers": (Choice(name="sgd"), Choice(name="schedule_free")),
            },
            "already averages its weights",
        ),
    ],
)
def test_is_one_clear_line(changes: dict[str, Any], word: str) -> None:
    assert resolve(SWEEP).target is not None
    with pytest.raises(ConfigError, match=word) as caught:
        resolve(SWEEP.replace(**changes))
    assert "\n" not in str(caught.value)


def tiny(**changes: object) -> Sweep:
    base = Sweep(
        name="tiny",
        trial=prototype(workload=Choice(name="noisy_quadratic", options={"dimension": 20})),
        axes=Axes(optimizers=(Choice(name="sgd"),), batch_sizes=(4,)),
    )
    return resolve(base.replace(**changes), 0.2)


def test_options_of_optimizers_share_the_folder_of_the_recipe(tmp_path: Path) -> None:
    base = tiny()
    variant = base.replace(optimizers=(Choice(name="sgd", options={"momentum": 0.5}),))
    assert output_folder(variant, base, tmp_path) == tmp_path / "tiny"


def test_variants_that_train_alike_are_refused() -> None:
    variants = (Choice(name="sgd"), Choice(name="sgd", options={"momentum": OPTIMIZERS["sgd"].defaults["momentum"]}))
    with pytest.raises(ConfigError, match="are the same run"):
        tiny(optimizers=variants)
    betas = list(OPTIMIZERS["adamw"].defaults["betas"])
    with pytest.raises(ConfigError, match="are the same run"):
        tiny(optimizers=(Choice(name="adamw", options={"betas": betas}), Choice(name="adamw")))


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
POLICY_OPTIONS = {name: options for each in of_extensions("POLICY_OPTIONS") for name, options in each.items()}


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


CHANGES: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "torch.set_default_dtype": (
        lambda: torch.set_default_dtype(torch.float64),
        lambda: torch.set_default_dtype(torch.float32),
    ),
    "torch.set_default_device": (lambda: torch.set_default_device("meta"), lambda: torch.set_default_device(None)),
    "torch.set_grad_enabled": (lambda: torch.set_grad_enabled(False), lambda: torch.set_grad_enabled(True)),
    "torch.set_num_threads": (lambda: torch.set_num_threads(2), lambda: torch.set_num_threads(1)),
    "torch.use_deterministic_algorithms": (
        lambda: torch.use_deterministic_algorithms(True),
        lambda: torch.use_deterministic_algorithms(False),
    ),
    "torch.set_float32_matmul_precision": (
        lambda: torch.set_float32_matmul_precision("medium"),
        lambda: [
            setattr(backend.matmul, "fp32_precision", "none")
            for backend in (torch.backends.cuda, torch.backends.mkldnn)
        ],
    ),
    "torch.backends.cudnn": (
        lambda: setattr(torch.backends.cudnn, "benchmark", True),
        lambda: setattr(torch.backends.cudnn, "benchmark", False),
    ),
    "numpy.seterr": (lambda: np.seterr(over="ignore"), lambda: np.seterr(over="warn")),
}


def test_every_setting_has_its_change():
    assert set(CHANGES) == set(settings())


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen_and_what_is_put_back_is_none(name):
    change, back = CHANGES[name]
    before = settings()
    assert changed(before) == []
    try:
        change()
        assert changed(before) == [name]
    finally:
        back()
    assert changed(before) == []
