"""Which weights are validated, and that training has its own back afterwards."""

import dataclasses

import pytest
import torch
from torch import nn

from cbs.errors import ConfigError
from cbs.optimizers import OPTIMIZERS
from cbs.training.averaging import AVERAGES, averaged_weights, build_averaging, trained_weights
from cbs.training.averaging.ema import EMA
from cbs.training.run import run_trial
from cbs.trial.config import Choice
from tests.factories import quadratic

OPTIONS = {"ema": {"decay": 0.5}, "lawa": {"checkpoints": 2, "every_examples": 1}}


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


def test_a_schedule_free_method_trains_on_from_the_same_bits_after_an_evaluation() -> None:
    torch.manual_seed(0)
    model = nn.Linear(7, 5)
    optimizer = OPTIMIZERS["schedule_free"].build(model, lr=0.03)
    trained_weights(optimizer)
    for _ in range(5):
        model.zero_grad()
        model(torch.randn(4, 7)).square().mean().backward()
        optimizer.step()
        before = [weight.detach().clone() for weight in model.parameters()]
        with averaged_weights(optimizer):
            evaluated = [weight.detach().clone() for weight in model.parameters()]
        assert all(map(torch.equal, before, model.parameters()))
    assert not any(map(torch.equal, before, evaluated))


def test_other_optimizers_are_left_alone() -> None:
    with averaged_weights(torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)):
        pass


@pytest.mark.parametrize("name", AVERAGES.names())
def test_the_average_stands_in_the_model_for_a_block_even_where_that_fails(name: str) -> None:
    model = nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    optimizer = torch.optim.SGD([model.weight], lr=0.1)
    average = build_averaging(Choice(name=name, options=OPTIONS[name]), model, optimizer)
    for step in (1, 2):
        with torch.no_grad():
            model.weight.add_(1.0)
        average.update(step, 1)
    trained, place = model.weight.detach().clone(), model.weight.data_ptr()
    with pytest.raises(KeyError), averaged_weights(optimizer, average):
        raise KeyError("validation failed")
    assert torch.equal(model.weight, trained)
    assert model.weight.data_ptr() == place
    with averaged_weights(optimizer, average):
        first = model.weight.detach().clone()
    assert not torch.equal(first, trained)
    with averaged_weights(optimizer, average):
        assert torch.equal(model.weight, first)


@pytest.mark.parametrize("name", AVERAGES.names())
def test_running_statistics_are_averaged_with_the_weights_and_nothing_else_is(name: str) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(2)
            self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))

    model = Masked()
    average = AVERAGES[name](model, **OPTIONS[name])
    for step in (1, 2):
        model.norm(torch.full((4, 2), 10.0 * step) + torch.randn(4, 2))
        average.update(step, 1)
    one, two = (10.0 * 0.1, 10.0 * 0.1 * 0.9 + 20.0 * 0.1)
    wanted = 0.5 * (0.5 * one) + 0.5 * two if name == "ema" else (one + two) / 2
    mean, seen = model.norm.running_mean.clone(), model.norm.num_batches_tracked.item()
    with average.in_place():
        torch.testing.assert_close(model.norm.running_mean, torch.full((2,), wanted), atol=0.2, rtol=0.0)
        assert model.norm.num_batches_tracked.item() == seen == 2
        assert model.mask.tolist() == [0.0, -torch.inf]
    assert torch.equal(model.norm.running_mean, mean)


def test_an_optimizer_that_averages_by_itself_takes_no_average_beside() -> None:
    config = quadratic(
        "schedule_free",
        {"dimension": 5},
        target=0.1,
        lr=0.01,
        batch_size=4,
        seed=0,
        max_steps=3,
        averaging=Choice(name="ema", options={"decay": 0.9}),
    )
    with pytest.raises(ConfigError, match="already averages its weights") as caught:
        run_trial(config)
    assert "\n" not in str(caught.value)
    assert len(run_trial(dataclasses.replace(config, averaging=None)).evaluations) > 1
    with pytest.raises(ConfigError, match="did you mean ema"):
        run_trial(dataclasses.replace(config, averaging=Choice(name="emma")))


def test_a_frozen_weight_is_no_part_of_a_point() -> None:
    model = nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    assert [value.shape for value in EMA(model, decay=0.9).points[0]] == [(2, 3)]
