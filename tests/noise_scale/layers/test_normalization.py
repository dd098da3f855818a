from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.noise_scale.probe import Probe
from tests.references.per_example import assert_exact

# Double precision leaves rounding of sums of some thousand products.
RTOL = 1e-11

LAYERS = {
    "layer_norm": (nn.LayerNorm(6), (4, 6)),
    "without bias": (nn.LayerNorm(6, bias=False), (4, 6)),
    "several dimensions": (nn.LayerNorm((4, 6), eps=0.1), (3, 4, 6)),
    "one row": (nn.LayerNorm(6), (6,)),
    "rms_norm": (nn.RMSNorm(6), (4, 6)),
    "rms_norm eps": (nn.RMSNorm((4, 6), eps=0.1), (4, 6)),
    "group_norm": (nn.GroupNorm(2, 4), (4, 3, 5)),
    "group_norm of vectors": (nn.GroupNorm(2, 6, eps=0.1), (6,)),
}


@pytest.mark.parametrize("source", ["split", "per_example"])
@pytest.mark.parametrize("name", LAYERS)
def test_gains_and_biases(name: str, source: str) -> None:
    torch.manual_seed(0)
    layer, shape = LAYERS[name]
    layer = layer.double()
    layer.zero_grad()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    x, weights = 3 + torch.randn(6, *shape).double(), torch.randn(6, *shape).double()
    model = nn.Sequential(nn.Linear(shape[-1], shape[-1]).double(), layer)
    assert_exact(model, lambda model: (model(x).sin() * weights).flatten(1).sum(1), source=source, groups=3, rtol=RTOL)


class Patches(nn.Module):
    """Normalises two halves of every image, which follow one another."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 1)
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        halves = x.unflatten(2, (2, -1)).transpose(1, 2).flatten(0, 1)
        return self.norm(self.first(halves)).unflatten(0, (len(x), 2)).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("frozen", ["", "weight", "bias"])
@pytest.mark.parametrize("source", ["split", "per_example"])
def test_several_rows_of_an_example_are_normalised_in_groups(source: str, frozen: str) -> None:
    torch.manual_seed(0)
    model, x = Patches().double(), torch.randn(6, 2, 4, 3).double()
    for name, parameter in model.norm.named_parameters():
        nn.init.normal_(parameter).requires_grad_(name != frozen)
    assert_exact(model, lambda model: model(x).sin().sum((1, 2)), source=source, groups=3, rtol=RTOL)


def test_rows_that_are_no_examples_are_an_error_and_have_their_gradient() -> None:
    class Fewer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.GroupNorm(2, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(x[:-1])

    model, x = Fewer(), torch.randn(6, 4, 3)
    wanted = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    with Probe(model, source="split") as probe:
        model(x).square().sum().backward()
        torch.testing.assert_close([parameter.grad for parameter in model.parameters()], list(wanted))
        with pytest.raises(ConfigError, match=r"in layer 'norm' apart: an output has 5 rows for 6 examples"):
            probe.step()
