"""Buffers and random states come back as they were."""

from __future__ import annotations

import random

import torch
from torch import nn

from cbs.noise_scale.state import State


def test_buffers_come_back() -> None:
    module = nn.BatchNorm1d(3)
    before = State(module)
    assert not before.changed()
    module(torch.randn(5, 3))
    assert before.changed()
    before.restore()
    assert not before.changed()
    assert module.running_mean.tolist() == [0, 0, 0]


def test_random_numbers_come_back_where_that_is_asked_for() -> None:
    module = nn.BatchNorm1d(3)
    before, buffers_alone = State(module, random=True), State(module)
    first = random.random(), torch.rand(1).item()
    buffers_alone.restore()
    assert (random.random(), torch.rand(1).item()) != first
    before.restore()
    assert (random.random(), torch.rand(1).item()) == first
