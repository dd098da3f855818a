"""The exponential moving average: the closed form through the whole loop, and torch's own."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from cbs.compute import seeding
from cbs.errors import ConfigError
from cbs.training.averaging.ema import EMA
from cbs.training.run import run_trial
from cbs.trial.config import Choice, EvaluationPlan
from cbs.trial.record import TrialResult
from cbs.workloads import build_workload
from tests.factories import quadratic
from tests.references.noisy_quadratic import Quadratic, expected_losses

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


def test_a_half_life_in_examples_is_the_same_average_at_every_batch_size() -> None:
    half_life = Choice(name="ema", options={"half_life": 160})
    for batch_size, decay in ((16, 2**-0.1), (80, 2**-0.5), (160, 0.5)):
        by_decay = Choice(name="ema", options={"decay": decay})
        one, other = (trial(choice, batch_size=batch_size, max_steps=20) for choice in (half_life, by_decay))
        np.testing.assert_allclose(values(one), values(other), rtol=1e-6)
        assert not np.allclose(values(one), values(trial(None, batch_size=batch_size, max_steps=20)))


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
