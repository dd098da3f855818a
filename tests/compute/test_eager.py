"""Trials do without torch's compiler, and optimizers do the same without the wrapper that imports it."""

import functools
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch.optim import Optimizer

from cbs.optimizers.contract import building_plainly, unwrapped
from cbs.training.run import run_trial
from cbs.trial.record import TrialStatus
from tests.factories import quadratic

CONFIG = quadratic("merit", {"dimension": 5}, target=1e-3, lr=0.01, batch_size=4, seed=0, max_steps=3, probe=None)

IN_A_NEW_PROCESS = """
import dataclasses, sys
from cbs.registry.choices import Choice
from cbs.training.run import run_trial
from tests.compute.test_eager import CONFIG
run_trial(dataclasses.replace(CONFIG, probe=Choice(name="split")))  # a second pass looks for random numbers
print("torch._dynamo" in sys.modules)
"""


def test_a_trial_calls_no_wrapper(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("add_param_group", "zero_grad"):

        @functools.wraps(unwrapped(getattr(Optimizer, name)))
        def wrapper(*_: Any, **__: Any) -> None:
            raise AssertionError("called")

        monkeypatch.setattr(Optimizer, name, wrapper)
    with pytest.raises(AssertionError):
        torch.optim.SGD(torch.nn.Linear(2, 1).parameters())
    assert run_trial(CONFIG).status is TrialStatus.BUDGET_EXHAUSTED


def test_torch_is_left_as_it_was() -> None:
    before = Optimizer.add_param_group
    with building_plainly():
        assert Optimizer.add_param_group is unwrapped(before)
    assert Optimizer.add_param_group is before
    with pytest.raises(TypeError), building_plainly():
        int(None)  # type: ignore[call-overload]
    assert Optimizer.add_param_group is before
    assert unwrapped(unwrapped) is unwrapped


@pytest.mark.slow
def test_a_process_that_trains_does_not_import_the_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", IN_A_NEW_PROCESS], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
