"""Options in examples: half-life of the second moment, timescale of weight decay."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cbs.errors import ConfigError
from cbs.optimizers import OPTIMIZERS, build_optimizer
from cbs.optimizers.scaling import decay_at, resolve
from cbs.trial.config import Choice

DEFAULTS = {"betas": (0.9, 0.99), "weight_decay": 0.0}


def resolved(options: dict[str, object], batch_size: int = 1, lr: float = 1e-3) -> dict[str, object]:
    return resolve(Choice(name="adamw", options=options), DEFAULTS, lr=lr, batch_size=batch_size)


def half_life_of(beta2: float, batch_size: int) -> float:
    """Examples after which a squared gradient counts half."""
    return -batch_size / math.log2(beta2)


def test_published_half_life() -> None:
    # Marek et al. 2025: 0.95 at a batch of 512 becomes 0.99990 at a batch of 1.
    half_life = half_life_of(0.95, 512)
    assert round(decay_at(1, half_life), 5) == 0.99990
    assert decay_at(512, half_life) == pytest.approx(0.95, rel=1e-12)


@given(beta2=st.floats(0.5, 0.9999), batch_size=st.integers(1, 4096), factor=st.integers(1, 64))
def test_beta2_is_a_power_of_the_batch_size(beta2: float, batch_size: int, factor: int) -> None:
    grown = decay_at(factor * batch_size, half_life_of(beta2, batch_size))
    assert grown == pytest.approx(beta2**factor, rel=1e-9, abs=1e-300)


def test_half_the_weight_is_left_after_a_half_life() -> None:
    options = resolved({"beta2_half_life": 4096}, batch_size=64)
    beta1, beta2 = options["betas"]  # type: ignore[misc]
    assert beta1 == 0.9
    assert beta2 ** (4096 / 64) == pytest.approx(0.5)


def test_further_betas_are_kept() -> None:
    defaults = {"betas": (0.9, 0.99, 0.999)}
    choice = Choice(name="ademamix", options={"beta2_half_life": 8})
    assert resolve(choice, defaults, lr=1.0, batch_size=8)["betas"] == [0.9, 0.5, 0.999]


@pytest.mark.parametrize("name", ["lion", "torch.adamax", "pytorch_optimizer.adan", "pytorch_optimizer.pnm"])
def test_another_decay_than_that_of_squared_gradients_in_every_step_has_no_half_life(name: str) -> None:
    choice = Choice(name=name, options={"beta2_half_life": 8})
    with pytest.raises(ConfigError, match=f"'{name}' has no second moment"):
        build_optimizer(choice, nn.Linear(2, 2), 0.1)
    assert "beta2_half_life" not in OPTIMIZERS[name].options_in_examples


def test_first_beta_is_kept() -> None:
    assert resolved({"betas": [0.5, 0.7], "beta2_half_life": 8}, batch_size=8)["betas"] == [0.5, 0.5]


def test_weight_decay_averages_over_the_timescale() -> None:
    # lr * weight_decay is the share of an old weight that a step forgets, B / timescale.
    options = resolved({"weight_decay_timescale": 10_000}, batch_size=50, lr=2e-3)
    assert 2e-3 * options["weight_decay"] == pytest.approx(50 / 10_000)  # type: ignore[operator]


def test_other_options_pass_through() -> None:
    assert resolved({"eps": 1e-6}) == {"eps": 1e-6}


@pytest.mark.parametrize("value", [0, -1, "long", True, None])
@pytest.mark.parametrize("option", ["beta2_half_life", "weight_decay_timescale"])
def test_bad_values(option: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{option} of 'adamw' must be a number of examples above 0"):
        resolved({option: value})


def test_two_weight_decays_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match="give weight_decay or weight_decay_timescale, not both"):
        resolved({"weight_decay": 0.1, "weight_decay_timescale": 100})


def test_an_optimizer_without_the_option() -> None:
    with pytest.raises(ConfigError, match="'sgd' has no betas, so beta2_half_life means nothing for it"):
        resolve(Choice(name="sgd", options={"beta2_half_life": 8}), {"momentum": 0.9}, lr=1.0, batch_size=1)


@pytest.mark.parametrize("name", ["sgd", "adam", "merit"])
def test_a_timescale_needs_decoupled_decay(name: str) -> None:
    # In the gradient of Adam or inside a trust ratio lr * weight_decay is not the share of a weight that a step takes.
    choice = Choice(name=name, options={"weight_decay_timescale": 100})
    with pytest.raises(ConfigError, match=f"'{name}' has no decoupled weight decay"):
        build_optimizer(choice, nn.Linear(2, 2), 1.0)


@pytest.mark.parametrize(
    ("options", "understood"),
    [({}, False), ({"decoupled": True}, True), ({"decoupled": True, "fixed_decay": True}, False)],
)
def test_an_option_may_say_whether_decay_is_decoupled(options: dict[str, object], understood: bool) -> None:
    choice = Choice(name="nadam", options={**options, "weight_decay_timescale": 100})
    defaults = {**DEFAULTS, "decoupled": False, "fixed_decay": False}

    def result() -> dict[str, object]:
        return resolve(choice, defaults, True, "decoupled", lr=0.5, batch_size=50)

    if understood:
        assert result()["weight_decay"] == 1.0
    else:
        with pytest.raises(ConfigError, match="no decoupled weight decay"):
            result()
