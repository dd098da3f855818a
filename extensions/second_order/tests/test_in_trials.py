"""Optimizers that evaluate the model themselves, in whole trials, and what cannot be asked of them."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import nn

from cbs.errors import ConfigError
from cbs.optimizers import OPTIMIZERS, build_optimizer
from cbs.optimizers.matching import leaves, matched
from cbs.training.loop import TrainingLoop
from cbs.training.ranks import Ranks
from cbs.training.run import run_trial
from cbs.trial.config import Choice
from cbs.workloads import build_workload
from sweeps.launching.launch import resolve
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


def test_a_composite_of_the_registry_is_what_it_is_registered_as() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    built = build_optimizer(Choice(name="gauss_newton"), model, 0.1)
    assert type(leaves(built)[0]).__name__ == "Muon"
    assert matched(built) == "l2"


@NAMES
def test_a_decay_that_is_not_applied_in_every_step_has_no_half_life(name: str) -> None:
    choice = Choice(name=name, options={"beta2_half_life": 8})
    with pytest.raises(ConfigError, match=f"'{name}' has no second moment"):
        build_optimizer(choice, nn.Linear(2, 2), 0.1)
    assert "beta2_half_life" not in OPTIMIZERS[name].options_in_examples


def test_several_inner_steps_have_no_timescale() -> None:
    # lr * weight_decay is not the share of a weight that a step takes.
    choice = Choice(name="gauss_newton", options={"weight_decay_timescale": 100})
    with pytest.raises(ConfigError, match="'gauss_newton' has no decoupled weight decay"):
        build_optimizer(choice, nn.Linear(2, 2), 1.0)
