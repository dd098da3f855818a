"""Optimizers that evaluate the model: what they are told, and what they say when they are not."""

import pytest
import torch
from torch import nn

from cbs.optimizers.problem import Problem, ProblemOptimizer


class Idle(ProblemOptimizer):
    """Takes its batch and does nothing."""

    def step(self, closure: object = None) -> None:
        self.take_batch()


def idle() -> Idle:
    return Idle(nn.Linear(2, 1).parameters(), {"lr": 0.1})


def test_a_batch_serves_one_step() -> None:
    optimizer = idle()
    optimizer.observe(torch.zeros(3))
    optimizer.step()
    with pytest.raises(RuntimeError, match="Idle needs the batch of the step: call observe"):
        optimizer.step()


def test_a_problem_is_needed() -> None:
    with pytest.raises(RuntimeError, match="call attach"):
        _ = idle().problem


def test_neither_problem_nor_batch_is_state() -> None:
    optimizer = idle()
    optimizer.observe(torch.zeros(3))
    assert set(optimizer.state_dict()) == {"state", "param_groups"}


@pytest.mark.parametrize("frozen", [True, False])
def test_parameters_that_are_frozen_or_unfrozen_later_are_refused(frozen: bool) -> None:
    model = nn.Linear(2, 1)
    model.bias.requires_grad_(frozen)
    optimizer = Idle(model.parameters(), {"lr": 0.1})
    unused = dict.fromkeys(("outputs", "output_losses", "curvature_sample"), lambda *_: torch.zeros(()))
    optimizer.attach(Problem(model=model, **unused))
    optimizer.observe(torch.zeros(3))
    optimizer.step()
    model.bias.requires_grad_(not frozen)
    optimizer.observe(torch.zeros(3))
    with pytest.raises(RuntimeError, match="frozen or unfrozen after Idle was attached"):
        optimizer.step()
