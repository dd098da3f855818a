"""Buffers and random states come back as they were."""

import random

import numpy as np
import torch
from torch import nn

from cbs.compute.state import State


def test_buffers_come_back() -> None:
    module = nn.BatchNorm1d(3)
    before = State(module)
    assert before.other_buffer(State(module), 0.0) == ""
    module(torch.randn(5, 3))
    assert before.other_buffer(State(module), 0.0) == "running_mean"
    before.restore()
    assert before.other_buffer(State(module), 0.0) == ""
    assert module.running_mean.tolist() == [0, 0, 0]


def test_random_numbers_come_back_where_that_is_asked_for() -> None:
    module = nn.BatchNorm1d(3)
    before, buffers_alone = State(module, random=True), State(module)

    def drawn() -> tuple[float, ...]:
        return random.random(), torch.rand(1).item(), float(np.random.random())

    first = drawn()
    buffers_alone.restore()
    assert not {*drawn()} & {*first}
    before.restore()
    assert drawn() == first


def test_a_buffer_that_another_has_taken_the_place_of_comes_back() -> None:
    module = nn.BatchNorm1d(3)
    own, before = module.running_mean, State(module)
    module.running_mean = module.running_mean + 1
    assert before.other_buffer(State(module), 1e-3) == "running_mean"
    before.restore()
    assert module.running_mean is own
    assert before.other_buffer(State(module), 1e-3) == ""
