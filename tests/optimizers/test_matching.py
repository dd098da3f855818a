"""Which geometry suits which optimizer."""

import pytest
import torch
from torch import nn

from cbs.errors import ConfigError
from cbs.noise_scale import GEOMETRIES
from cbs.optimizers import OPTIMIZERS, CompositeOptimizer, optimizer
from cbs.optimizers.matching import geometry_of, leaves, matched


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


def test_a_subclass_is_what_it_derives_from() -> None:
    assert matched(third_party("MyVeryOwn", torch.optim.SGD)) == "l2"
    assert matched(third_party("Lioness", torch.optim.SGD)) == "l1"


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


def test_what_several_entries_speak_for_is_spectral_first_and_adam_last() -> None:
    assert matched(third_party("LionMuon")) == "nuclear"
    assert matched(third_party("AdamSGD")) == "l2"
    assert matched(third_party("ScheduleFreeSGD")) == "l2"


def test_a_class_of_a_library_is_what_the_catalogue_says() -> None:
    assert matched(third_party("Yogi")) == OPTIMIZERS["yogi"].geometry == "l1"
    assert matched(third_party("DASH")) == "nuclear"


def test_a_class_may_say_so_itself() -> None:
    optimizer = third_party("Novel")
    type(optimizer).geometry = "nuclear"  # type: ignore[attr-defined]
    assert matched(optimizer) == "nuclear"


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
