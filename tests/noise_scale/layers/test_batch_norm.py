from __future__ import annotations

import pytest
import torch
from torch import nn

from cbs.errors import ConfigError
from cbs.noise_scale.probe import Probe
from tests.references.per_example import assert_exact

RTOL = 1e-11
"""Double precision leaves rounding of sums of some hundred products."""


def build(**options: bool) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, **options), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    model(torch.randn(8, 3, 4, 4))  # statistics
    return model.eval()


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("source", ["split", "per_example"])
def test_evaluation_mode_is_exact(source: str, affine: bool) -> None:
    x = torch.randn(6, 3, 4, 4).double()
    assert_exact(build(affine=affine).double(), lambda model: model(x).square().sum(1), source=source, rtol=RTOL)


@pytest.mark.parametrize("options", [{}, {"affine": False}])
def test_training_mode_is_refused_at_once(options: dict[str, bool]) -> None:
    with pytest.raises(ConfigError, match=r"layer '1' \(BatchNorm2d\) mixes the examples.*'accumulation'"):
        Probe(build(**options).train(), source="split")


def test_statistics_of_the_batch_are_refused_in_evaluation_mode_too() -> None:
    with pytest.raises(ConfigError, match="mixes the examples"):
        Probe(build(track_running_stats=False), source="split")


@pytest.mark.parametrize("options", [{}, {"affine": False}])
def test_training_mode_later_on_is_found_in_the_first_pass(options: dict[str, bool]) -> None:
    model = build(**options)
    with Probe(model, source="split") as probe:
        for measured in (True, False):
            model.train(not measured)
            model(torch.randn(6, 3, 4, 4)).square().sum().backward()
            if measured:
                assert probe.step() is not None
        with pytest.raises(ConfigError, match=r"'1' \(BatchNorm2d\) is in training mode now.*'accumulation'"):
            probe.step()
