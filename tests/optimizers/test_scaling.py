"""Options in examples: half-life of the second moment, timescale of weight decay."""

import math

import pytest
import torch
from torch import nn

from cbs.errors import ConfigError
from cbs.noise_scale import GEOMETRIES
from cbs.optimizers import OPTIMIZERS, CompositeOptimizer, build_optimizer, optimizer
from cbs.optimizers.matching import geometry_of, leaves, matched
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


@pytest.mark.parametrize("name", ["lion", "torch.adamax", "pytorch_optimizer.adan", "pytorch_optimizer.pnm"])
def test_another_decay_than_that_of_squared_gradients_in_every_step_has_no_half_life(name: str) -> None:
    choice = Choice(name=name, options={"beta2_half_life": 8})
    with pytest.raises(ConfigError, match=f"'{name}' has no second moment"):
        build_optimizer(choice, nn.Linear(2, 2), 0.1)
    assert "beta2_half_life" not in OPTIMIZERS[name].options_in_examples


def test_weight_decay_averages_over_the_timescale() -> None:
    # lr * weight_decay is the share of an old weight that a step forgets, B / timescale.
    options = resolved({"weight_decay_timescale": 10_000}, batch_size=50, lr=2e-3)
    assert 2e-3 * options["weight_decay"] == pytest.approx(50 / 10_000)  # type: ignore[operator]


@pytest.mark.parametrize("value", [0, -1, "long", True, None])
@pytest.mark.parametrize("option", ["beta2_half_life", "weight_decay_timescale"])
def test_bad_values(option: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{option} of 'adamw' must be a number of examples above 0"):
        resolved({option: value})


def test_two_weight_decays_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match="give weight_decay or weight_decay_timescale, not both"):
        resolved({"weight_decay": 0.1, "weight_decay_timescale": 100})


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


def third_party(name: str, base: type[torch.optim.Optimizer] = torch.optim.Optimizer) -> torch.optim.Optimizer:
    kind = type(name, (base,), {})
    parameters = [nn.Parameter(torch.zeros(2, 2))]
    return kind(parameters, {}) if base is torch.optim.Optimizer else kind(parameters, lr=0.1)


@pytest.mark.parametrize(
    ("name", "geometry"),
    [
        *((name, "l2") for name in ("SGD", "ASGD")),
        *((name, "l1") for name in ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad", "Adadelta")),
        *((name, "l1") for name in ("Adafactor", "SparseAdam", "Rprop")),
        ("Muon", "nuclear"),
    ],
)
def test_optimizers_of_torch(name: str, geometry: str) -> None:
    parameter = nn.Parameter(torch.zeros(2, 2))
    assert matched(getattr(torch.optim, name)([parameter])) == geometry


@pytest.mark.parametrize(
    ("name", "geometry"),
    [
        ("LARS", "l2"),
        ("SGDW", "l2"),
        ("NormalizedSGD", "l2"),
        ("SGDScheduleFree", "l2"),
        ("SignSGD", "l1"),
        ("Signum", "l1"),
        ("Lion8bit", "l1"),
        ("FusedAdam", "l1"),
        ("DeepSpeedCPUAdam", "l1"),
        ("AdamWScheduleFree", "l1"),
        ("FusedLAMB", "l1"),
        ("SingleDeviceMuonWithAuxAdam", "nuclear"),
        ("Scion", "nuclear"),
        ("DistributedShampoo", "nuclear"),
    ],
)
def test_third_parties_are_known_by_name(name: str, geometry: str) -> None:
    assert matched(third_party(name)) == geometry


def test_an_optimizer_that_is_registered_needs_to_say_it_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    class Directional(torch.optim.SGD):
        """Its name says nothing, and its base class something else."""

    class Derived(Directional):
        pass

    parameters = [nn.Parameter(torch.zeros(2, 2))]
    optimizers = [Directional(parameters, lr=0.1), Derived(parameters, lr=0.1), third_party("FusedOurs")]
    assert [geometry_of(type(entry)) for entry in optimizers] == ["l2", "l2", None]

    def build(model: nn.Module, lr: float) -> torch.optim.Optimizer:
        """One."""
        return Directional(model.parameters(), lr=lr)

    monkeypatch.setattr(OPTIMIZERS, "_entries", dict(OPTIMIZERS._entries))
    declare = optimizer("ou_rs", lr_grid=(0.1, 0.2), family="sign", geometry={Directional: "l1"}, paper="none")
    declare(build)
    assert (OPTIMIZERS["ou_rs"].geometry, OPTIMIZERS["ou_rs"].known_as) == ("l1", ("ours",))
    assert [matched(entry) for entry in optimizers] == ["l1", "l1", "l1"]


def test_of_several_parts_the_first_that_is_not_adam_decides() -> None:
    matrix, vector, other = (nn.Parameter(torch.zeros(2, 2)) for _ in range(3))
    adam, muon = torch.optim.AdamW([vector]), torch.optim.Muon([matrix])
    assert matched(CompositeOptimizer([adam, muon])) == "nuclear"
    adam, sgd = torch.optim.AdamW([vector]), torch.optim.SGD([other])
    assert matched(CompositeOptimizer([adam, sgd])) == "l2"
    assert matched(CompositeOptimizer([torch.optim.AdamW([vector])])) == "l1"


def test_a_wrapper_is_what_it_wraps() -> None:
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

    inner = torch.optim.Muon([nn.Parameter(torch.zeros(2, 2))])
    assert matched(Wrapper(Wrapper(inner))) == "nuclear"
    assert leaves(Wrapper(inner)) == [inner]


def test_an_unknown_optimizer_is_a_config_error_that_says_what_to_do() -> None:
    with pytest.raises(ConfigError) as caught:
        matched(torch.optim.LBFGS([nn.Parameter(torch.zeros(2))]))
    message = str(caught.value)
    assert "LBFGS" in message
    assert "geometry='l2'" in message
    assert all(name in message for name in GEOMETRIES.names())
    assert "\n" not in message
