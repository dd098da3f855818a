"""Optimizers that evaluate the model: what they are told, and what they say when they are not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cbs.optimizers.problem import ProblemOptimizer
from cbs.optimizers.weights import averaged_weights


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


class TwoPoints(torch.optim.SGD):
    """Has the modes of a schedule-free method."""

    mode = "train"

    def eval(self) -> None:
        self.mode = "eval"

    def train(self) -> None:
        self.mode = "train"


def test_weights_are_switched_for_a_block_and_back_after_an_error() -> None:
    optimizer = TwoPoints(nn.Linear(2, 1).parameters(), lr=0.1)
    with averaged_weights(optimizer):
        assert optimizer.mode == "eval"
    assert optimizer.mode == "train"
    with pytest.raises(KeyError), averaged_weights(optimizer):
        raise KeyError("validation failed")
    assert optimizer.mode == "train"


def test_other_optimizers_are_left_alone() -> None:
    with averaged_weights(torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)):
        pass
