"""Configurations: checked when built, lossless as dictionaries, identified by a fingerprint."""

import dataclasses
import json
import math
import string
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cbs.errors import ConfigError
from cbs.trial.config import OF_TRAINER, Choice, EvaluationPlan, Schedule, TrialConfig
from cbs.trial.parent import Parent
from cbs.trial.target import Target

BASE: dict[str, Any] = {
    "workload": Choice(name="noisy_quadratic", options={"dimension": 10}),
    "optimizer": Choice(name="sgd", options={"momentum": 0.9}),
    "lr": 0.1,
    "batch_size": 8,
    "seed": 0,
    "target": Target(metric="validation_loss", value=0.1),
    "max_steps": 100,
}
CONFIG = TrialConfig(**BASE)

names = st.text("abcdefgh_", min_size=1, max_size=8)
scalars = (
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False) | names
)
options = st.dictionaries(names, scalars | st.lists(scalars, max_size=3), max_size=3)
choices = st.builds(Choice, name=names, options=options)
whole = st.integers(1, 10**9)
finite = st.floats(-1e9, 1e9)


@st.composite
def configs(draw: st.DrawFn) -> TrialConfig:
    warmup = draw(st.integers(0, 1000))
    growth = draw(st.floats(1.001, 3))
    return TrialConfig(
        workload=draw(choices),
        optimizer=draw(choices),
        lr=draw(st.floats(1e-12, 1e3)),
        batch_size=draw(whole),
        seed=draw(st.integers(0, 2**40)),
        target=Target(metric=draw(names), value=draw(finite), direction=draw(st.sampled_from(["below", "above"]))),
        max_steps=draw(whole),
        micro_batch_size=draw(st.none() | whole),
        schedule=Schedule(
            name=draw(names),
            warmup_examples=warmup,
            decay_examples=draw(st.none() | st.integers(warmup + 1, 10**9)),
            final_fraction=draw(st.floats(0, 1)),
            options=draw(options),
        ),
        clip_norm=draw(st.none() | st.floats(0, 1e9)),
        averaging=draw(st.none() | choices),
        evaluation=EvaluationPlan(
            growth=growth, far_growth=growth + draw(st.floats(0, 2)), near_fraction=draw(st.floats(0, 2))
        ),
        probe=draw(st.none() | st.builds(Choice, name=names)),
        diagnostics=tuple(draw(st.lists(names, unique=True, max_size=3))),
        diagnostics_every=draw(st.integers(1, 100)),
        compile=draw(st.booleans()),
        stops_at_target=draw(st.booleans()),
        metrics=tuple(draw(st.lists(names, unique=True, max_size=3))),
        device=draw(st.sampled_from(["auto", "cpu", "cuda"])),
        divergence_factor=draw(st.floats(1.01, 100)),
    )


@given(config=configs())
def test_round_trip_through_json(config: TrialConfig) -> None:
    again = TrialConfig.from_dict(json.loads(json.dumps(config.to_dict(), allow_nan=False)))
    assert again == config
    assert again.fingerprint == config.fingerprint


CHANGES: dict[str, Any] = {
    "workload": Choice(name="noisy_quadratic", options={"dimension": 11}),
    "optimizer": Choice(name="sgd"),
    "lr": 0.1000001,
    "batch_size": 9,
    "seed": 1,
    "target": Target(metric="validation_loss", value=0.1, direction="above"),
    "max_steps": 101,
    "parent": Parent(source="weights.pt", examples=0, digest="0" * 16),
    "further_targets": (Target(metric="gradient_norm", value=0.1),),
    "micro_batch_size": 8,
    "schedule": Schedule(warmup_examples=1),
    "batch_schedule": Choice(name="seesaw"),
    "clip_norm": 1.0,
    "averaging": Choice(name="ema", options={"decay": 0.9}),
    "evaluation": EvaluationPlan(near_fraction=0.26),
    "stops_at_target": False,
    "metrics": ("gradient_norm",),
    "probe": None,
    "diagnostics": ("max_attention_logit",),
    "diagnostics_every": 2,
    "precision": "bfloat16",
    "compile": True,
    "device": "cpu",
    "divergence_factor": 5.5,
    "unknown": ("precision",),
}


def test_every_field_changes_the_fingerprint() -> None:
    assert set(CHANGES) == {field.name for field in dataclasses.fields(TrialConfig)}
    changed = [dataclasses.replace(CONFIG, **{name: value}) for name, value in CHANGES.items()]
    fingerprints = {CONFIG.fingerprint, *(config.fingerprint for config in changed)}
    assert len(fingerprints) == len(CHANGES) + 1
    assert len({CONFIG.trial_id, *(config.trial_id for config in changed)}) == len(CHANGES) + 1


def test_what_nobody_told_is_stored_as_unknown_and_nothing_else_is_kept_of_it() -> None:
    told = dataclasses.replace(CONFIG, schedule=Schedule(warmup_examples=80), clip_norm=1.0, precision="bfloat16")
    one = dataclasses.replace(told, unknown=OF_TRAINER)
    assert {name: one.to_dict()[name] for name in OF_TRAINER} == dict.fromkeys(OF_TRAINER, "unknown")
    assert "warmup" not in json.dumps(one.to_dict())
    again = TrialConfig.from_dict(json.loads(json.dumps(one.to_dict())))
    assert again == one == dataclasses.replace(CONFIG, unknown=OF_TRAINER)
    assert again.fingerprint == one.fingerprint != CONFIG.fingerprint
    with pytest.raises(ConfigError, match="lr must be known"):
        dataclasses.replace(CONFIG, unknown=("lr",))
    for name in ("target", "batch_size"):
        with pytest.raises(ConfigError):
            TrialConfig.from_dict(CONFIG.to_dict() | {name: "unknown"})


def test_settings_that_mean_the_same_have_one_fingerprint_which_stays() -> None:
    assert CONFIG.fingerprint == "7d939cd205ec1362"
    assert dataclasses.replace(CONFIG, clip_norm=0).fingerprint == CONFIG.fingerprint
    assert dataclasses.replace(CONFIG, batch_schedule=Choice(name="constant")).fingerprint == CONFIG.fingerprint
    assert (
        dataclasses.replace(CONFIG, clip_norm=1).fingerprint == dataclasses.replace(CONFIG, clip_norm=1.0).fingerprint
    )
    powers = {dataclasses.replace(CONFIG, schedule=Schedule(options={"power": power})).fingerprint for power in (1, 2)}
    assert len({CONFIG.fingerprint, *powers}) == 3
    one, other = (dataclasses.replace(CONFIG, diagnostics=names) for names in (("b", "a"), ["a", "b"]))
    assert one.to_dict()["diagnostics"] == ["a", "b"]
    assert one.fingerprint == other.fingerprint


def test_fingerprint_does_not_depend_on_spelling_or_process() -> None:
    respelled = dataclasses.replace(
        CONFIG,
        optimizer=Choice(name="sgd", options={"momentum": 0.9}),
        target=Target(value=0.1, metric="validation_loss"),
    )
    assert respelled.fingerprint == CONFIG.fingerprint
    assert dataclasses.replace(CONFIG, lr=1).fingerprint == dataclasses.replace(CONFIG, lr=1.0).fingerprint
    ordered = Choice(name="x", options={"a": 1, "b": (2, 3)}), Choice(name="x", options={"b": [2, 3], "a": 1})
    assert ordered[0] == ordered[1]
    script = (
        "import json, sys; from cbs.trial.config import TrialConfig; "
        "print(TrialConfig.from_dict(json.loads(sys.argv[1])).fingerprint)"
    )
    arguments = [sys.executable, "-c", script, json.dumps(CONFIG.to_dict())]
    other = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert other.stdout.strip() == CONFIG.fingerprint


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("lr", value) for value in (0, -0.1, math.nan, math.inf, "0.1", None, True)),
        *(("batch_size", value) for value in (0, -1, 1.5, 8.0, True, "8", None)),
        *(("max_steps", value) for value in (0, 2.5, math.inf)),
        *(("seed", value) for value in (-1, 0.5, True)),
        *(("micro_batch_size", value) for value in (0, 1.5)),
        ("stops_at_target", 1),
        *(("divergence_factor", value) for value in (1.0, math.nan, math.inf)),
        *(("diagnostics", value) for value in ("max_attention_logit", ("a", "a"), ("",), (3,), None)),
        *(("diagnostics_every", value) for value in (0, 1.5)),
        *(("clip_norm", value) for value in (-1.0, math.nan, math.inf, "1", True)),
        ("precision", "float16"),
        ("device", "tpu"),
    ],
)
def test_bad_values_are_refused_in_one_line_that_names_the_field(field: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        TrialConfig(**{**BASE, field: value})
    assert field in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("part", "bad"),
    [
        (Choice, {"name": ""}),
        (Choice, {"name": "x", "options": {"a": object()}}),
        (Choice, {"name": "x", "options": {"a": math.nan}}),
        (Schedule, {"warmup_examples": -1}),
        (Schedule, {"warmup_examples": 1.5}),
        (Schedule, {"warmup_examples": 10, "decay_examples": 10}),
        (Schedule, {"decay_examples": 10.5}),
        (Schedule, {"final_fraction": 1.1}),
        (Schedule, {"options": {"power": math.nan}}),
        (Schedule, {"final_fraction": math.nan}),
        (EvaluationPlan, {"growth": 1.0}),
        (EvaluationPlan, {"growth": math.nan}),
        (EvaluationPlan, {"far_growth": math.inf}),
        (EvaluationPlan, {"growth": 1.2, "far_growth": 1.1}),
        (EvaluationPlan, {"near_fraction": -0.1}),
    ],
)
def test_bad_parts_are_refused_in_one_line(part: type, bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        part(**bad)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [{"colour": 1}, {"target": None}, {"target": {"metric": "loss"}}, {"schedule": {"name": "constant", "x": 1}}],
)
def test_dictionaries_of_another_shape_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="not a trial configuration"):
        TrialConfig.from_dict({**CONFIG.to_dict(), **change})
    with pytest.raises(ConfigError, match="lr"):
        TrialConfig.from_dict({key: value for key, value in CONFIG.to_dict().items() if key != "lr"})


def test_a_trial_id_is_a_name_of_a_folder() -> None:
    config = TrialConfig(**BASE | {"optimizer": Choice(name="my_module:Mine/2", options={"eps": 1e-6})})
    assert config.trial_id.startswith("my_module_Mine_2-b")
    assert set(config.trial_id) <= set(string.ascii_letters + string.digits + "_-.")


def places(share: Callable[[int], float], plan: EvaluationPlan = EvaluationPlan()) -> list[int]:  # noqa: B008
    """Steps of the evaluations of a metric with a ``share`` of its distance left, up to the first past the target."""
    at, before = [0, 1], None
    while share(at[-1]) > 0:
        latest = at[-1], share(at[-1])
        at.append(plan.next_step(*latest, before))
        before = latest
    return at


def test_evaluations_far_from_the_target_are_few_and_near_it_close_together() -> None:
    steps = places(lambda step: 1 - math.log(step) / math.log(300))
    assert steps[:5] == [0, 1, 3, 8, 20]
    assert len(steps) <= 12
    assert 300 <= steps[-1] <= 1.05 * steps[-2] + 1


@pytest.mark.parametrize("last", [100, 317, 1000])
@pytest.mark.parametrize("power", [0.3, 1.0])
def test_a_metric_that_falls_quickly_is_not_evaluated_far_behind_the_target(last: int, power: float) -> None:
    """Without the line through the latest two it would be by up to two thirds."""
    steps = places(lambda step: 1 - (step / last) ** power)
    assert last <= steps[-1] <= 1.05 * max(steps[-2], last) + 1


def test_a_metric_that_does_not_come_nearer_is_evaluated_by_its_distance_alone() -> None:
    plan = EvaluationPlan()
    for share in (0.05, 0.2, 0.8):
        for before in ((50, share), (50, share / 2), (50, math.nan)):
            assert plan.next_step(100, share, before) == plan.next_step(100, share)
