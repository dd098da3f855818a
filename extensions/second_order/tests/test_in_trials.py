"""Optimizers that evaluate the model themselves, in whole trials, and what cannot be asked of them."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import nn

from analysis import analyze
from analysis.present.figures import FIGURES
from cbs.errors import ConfigError
from cbs.optimizers import OPTIMIZERS, build_optimizer
from cbs.training.loop import TrainingLoop
from cbs.training.ranks import Ranks
from cbs.training.run import run_trial
from cbs.trial.config import Choice
from cbs.workloads import build_workload
from sweeps.launching.launch import resolve
from tests.analysis.present.test_figures_of_papers import QUICK, drawn
from tests.factories import Truth, sweep
from tests.sweeps.test_spec import SWEEP
from tests.training.ranks_worker import TEXT as SHARDED
from tests.training.ranks_worker import trial
from tests.training.test_run import config_with
from tests.trial.test_checkpoint import TEXT, assert_resumes_to_the_same_bytes, config

NAMES = pytest.mark.parametrize("name", ["gauss_newton", "sophia"])


@NAMES
def test_a_resumed_trial_leaves_the_same_bytes(name: str, tmp_path: Path) -> None:
    assert_resumes_to_the_same_bytes(config(name), build_workload(TEXT), tmp_path, kills=(11,))


def test_gradients_of_its_own_are_not_clipped_in_silence() -> None:
    own = Choice(name="gauss_newton")
    with pytest.raises(ConfigError, match="gradients of its own"):
        run_trial(config_with(clip_norm=1.0, optimizer=own))
    with pytest.raises(ConfigError, match="gradients of its own") as caught:
        resolve(SWEEP.replace(clip_norm=1.0, optimizers=(Choice(name="sgd"), own)))
    assert "\n" not in str(caught.value)


def test_several_workers_are_refused() -> None:
    asked = dataclasses.replace(trial("adamw"), optimizer=Choice(name="sophia"))
    with pytest.raises(ConfigError, match="evaluates the model itself"):
        TrainingLoop(asked, build_workload(SHARDED), torch.device("cpu"), Ranks(0, 2, False))


@NAMES
def test_a_decay_that_is_not_applied_in_every_step_has_no_half_life(name: str) -> None:
    choice = Choice(name=name, options={"beta2_half_life": 8})
    with pytest.raises(ConfigError, match=f"'{name}' has no second moment"):
        build_optimizer(choice, nn.Linear(2, 2), 0.1)
    assert "beta2_half_life" not in OPTIMIZERS[name].options_in_examples


def test_steps_stand_against_both_batch_sizes_of_a_method_with_inner_steps(tmp_path: Path) -> None:
    names = {f"gauss_newton(inner_batch_size={size})": Truth(min_steps=20.0 + size) for size in (8, 32)}
    sweep(tmp_path, names, variants=True, batch_sizes=(64, 256), lrs=(2e-3, 4e-3))
    answers = analyze(tmp_path, QUICK).answers
    kind = FIGURES["inner_batch"]
    table = kind.compute(answers)
    assert len(table) == 2 * 2 * 2
    for panel, own in table.groupby("panel"):
        across, line = ("batch_size", "inner_batch_size")[:: 1 if "total" in panel else -1]
        assert list(own["x"]) == list(own[across])
        assert list(own["line"]) == list(own[line])
    first = table[(table["batch_size"] == 64) & (table["inner_batch_size"] == 8)]
    (eight,) = [answer for answer in answers if answer.group.choice.options["inner_batch_size"] == 8]
    assert set(first["steps"]) == {eight.points[0].steps_to_target}
    assert len(drawn("inner_batch", table).axes) == 2
    assert kind.compute(answers[:1]).empty, "one inner batch size alone"
    sweep(tmp_path / "plain", batch_sizes=(64, 256), lrs=(2e-3, 4e-3))
    assert kind.compute(analyze(tmp_path / "plain", QUICK).answers).empty
