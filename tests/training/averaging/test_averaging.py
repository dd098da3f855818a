"""Averages of the weights: what they are, what validates them, and the closed form of the exponential one."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from cbs.compute import seeding
from cbs.errors import ConfigError
from cbs.optimizers import OPTIMIZERS
from cbs.training.averaging import AVERAGES, EMA, LAWA, averaged_weights, build_averaging, trained_weights
from cbs.training.run import run_trial
from cbs.trial.config import Choice, EvaluationPlan
from cbs.trial.record import TrialResult
from cbs.workloads import build_workload
from tests.factories import quadratic
from tests.references.noisy_quadratic import Quadratic, expected_losses

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


DIMENSION, BATCH_SIZE, LR, STEPS = 2000, 16, 0.35, 120
FLAT = {"dimension": DIMENSION, "spectrum_power": 0.5}


def trial(averaging: Choice | None, *, noise: float = 1.0, seed: int = 0, **changes: Any) -> TrialResult:
    """Every step is validated, none reaches the target."""
    config = quadratic(
        "sgd(momentum=0.0)",
        FLAT | {"noise": noise},
        target=1e-9,
        lr=LR,
        batch_size=BATCH_SIZE,
        seed=seed,
        max_steps=STEPS,
        evaluation=EvaluationPlan(growth=1 + 1e-9, far_growth=1 + 1e-9),
        probe=None,
        averaging=averaging,
    )
    return run_trial(dataclasses.replace(config, **changes))


def values(result: TrialResult) -> np.ndarray:
    return np.array([row.value for row in result.evaluations])


def expected(decay: float, *, noise: float = 1.0, seed: int = 0) -> np.ndarray:
    """Of the trial's own initial weights."""
    with seeding.seeded(seed, "init"):
        model = build_workload(Choice(name="noisy_quadratic", options=FLAT)).build_model()
    start = model.theta.detach().double().square().numpy()
    theory = dataclasses.replace(Quadratic.power_law(DIMENSION, power=0.5, noise=noise), start=start)
    return expected_losses(theory, "averaged", decay, [(LR, BATCH_SIZE)] * STEPS)


@pytest.mark.parametrize("decay", [0.0, 0.95])
def test_equals_the_closed_form_where_there_is_no_noise(decay: float) -> None:
    found = values(trial(Choice(name="ema", options={"decay": decay}), noise=0.0))
    np.testing.assert_allclose(found, expected(decay, noise=0.0), rtol=2e-4)


def test_a_half_life_in_examples_is_the_same_average_at_every_batch_size() -> None:
    half_life = Choice(name="ema", options={"half_life": 160})
    for batch_size, decay in ((16, 2**-0.1), (80, 2**-0.5), (160, 0.5)):
        by_decay = Choice(name="ema", options={"decay": decay})
        one, other = (trial(choice, batch_size=batch_size, max_steps=20) for choice in (half_life, by_decay))
        np.testing.assert_allclose(values(one), values(other), rtol=1e-6)
        assert not np.allclose(values(one), values(trial(None, batch_size=batch_size, max_steps=20)))


def test_small_steps_of_bfloat16_weights_are_not_lost() -> None:
    model = nn.Linear(1, 1, bias=False).bfloat16()
    nn.init.constant_(model.weight, 1.0)
    average = EMA(model, decay=0.999)
    nn.init.constant_(model.weight, 2.0)
    for step in range(1, 694):  # half-life
        average.update(step, 1)
    with average.in_place():
        assert model.weight.dtype is torch.bfloat16
        assert model.weight.item() == pytest.approx(1.5, abs=0.01)
    assert model.weight.item() == 2.0


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({}, "decay or half_life"),
        ({"decay": 0.9, "half_life": 100}, "one of the two"),
        *(({"decay": value}, "decay") for value in (1.0, -0.1, "much", True)),
        *(({"half_life": value}, "half_life") for value in (0, -1, "long", True)),
        ({"dekay": 0.9}, "its options are: decay, half_life"),
    ],
)
def test_bad_options_are_one_clear_line(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word) as caught:
        trial(Choice(name="ema", options=options))
    assert "\n" not in str(caught.value)


def averages(batch_size: int, steps: int, *, checkpoints: int, every_examples: int) -> list[float]:
    """The average after every step of a weight that is the number of steps."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    average = LAWA(model, checkpoints=checkpoints, every_examples=every_examples)
    found = []
    for step in range(1, steps + 1):
        nn.init.constant_(model.weight, step)
        average.update(step * batch_size, batch_size)
        with average.in_place():
            found.append(model.weight.item())
        assert model.weight.item() == step
    return found


def test_the_mean_of_the_latest_checkpoints_of_all_while_there_are_few_of_the_weights_before_the_first() -> None:
    found = averages(4, 12, checkpoints=3, every_examples=8)
    # Checkpoints after steps 2, 4, 6, ...
    assert found == [1, 2, 2, 3, 3, 4, 4, 6, 6, 8, 8, 10]


@pytest.mark.parametrize(
    "options",
    [
        *({"checkpoints": value, "every_examples": 8} for value in (0, 1.5, True, "3")),
        *({"checkpoints": 3, "every_examples": value} for value in (0, 1.5, None)),
    ],
)
def test_bad_options_of_lawa_are_one_clear_line(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="whole number of at least 1") as caught:
        LAWA(nn.Linear(1, 1), **options)
    assert "\n" not in str(caught.value)


def test_other_optimizers_are_left_alone() -> None:
    with averaged_weights(torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)):
        pass


def test_a_frozen_weight_is_no_part_of_a_point() -> None:
    model = nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    assert [value.shape for value in EMA(model, decay=0.9).points[0]] == [(2, 3)]


def test_equals_the_closed_form_in_expectation() -> None:
    """Within 4 standard errors at steps far apart; the weights themselves are elsewhere."""
    decay = 0.95
    averaging, at = Choice(name="ema", options={"decay": decay}), [0, 5, 20, 60, STEPS]

    def ratios(choice: Choice | None, seeds: int) -> np.ndarray:
        return np.stack([(values(trial(choice, seed=seed)) / expected(decay, seed=seed))[at] for seed in range(seeds)])

    found = ratios(averaging, 8)
    error = found.std(axis=0, ddof=1) / 8**0.5
    assert error.max() < 0.01
    assert (np.abs(found.mean(axis=0) - 1.0) < 4 * error + 1e-5).all()
    assert np.abs(ratios(None, 2).mean(axis=0) - 1.0).max() > 0.1


def test_training_goes_on_at_its_own_weights() -> None:
    averaged, plain = trial(Choice(name="ema", options={"decay": 0.9})), trial(None)
    np.testing.assert_array_equal(averaged.steps["train_loss"], plain.steps["train_loss"])
    assert values(averaged)[0] == values(plain)[0]
    assert (values(averaged)[1:] != values(plain)[1:]).all()


def test_equals_torchs_averaged_model() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    average = EMA(model, decay=0.7)
    twin = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.7))
    twin.update_parameters(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, 6):
        optimizer.zero_grad()
        model(torch.randn(5, 3)).square().sum().backward()
        optimizer.step()
        average.update(step, 1)
        twin.update_parameters(model)
    with average.in_place():
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            assert torch.equal(ours, theirs)


def test_checkpoints_are_as_far_apart_at_every_batch_size() -> None:
    # At 3 examples a step, 8, 16 and 24 examples are passed in steps 3, 6 and 8.
    assert averages(3, 8, checkpoints=1, every_examples=8) == [1, 2, 3, 3, 3, 6, 6, 8]
    assert averages(16, 4, checkpoints=2, every_examples=8) == [1, 1.5, 2.5, 3.5]


def test_a_checkpoint_is_a_copy() -> None:
    model = nn.Linear(2, 2)
    average = LAWA(model, checkpoints=2, every_examples=1)
    average.update(1, 1)
    before = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.add_(1.0)
    with average.in_place():
        assert torch.equal(model.weight, before)
