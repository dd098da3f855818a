from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.noise_scale.probe import Probe
from cbs.text.gpt import GPT, GPTShape
from tests.references.per_example import Euclidean, assert_exact


def model() -> GPT:
    torch.manual_seed(0)
    return GPT(GPTShape(width=8, layers=2, heads=2, context=6), 11).double()


def losses(model: nn.Module) -> Tensor:
    return model(torch.arange(24).view(4, 6) % 11).square().sum((1, 2))


def test_norms_of_the_watched_layers() -> None:
    # Double precision leaves rounding of sums of some thousand products.
    assert_exact(model(), losses, source="norm_layers", rtol=1e-11, geometries=(Euclidean(),))


def test_only_normalisation_layers_are_watched() -> None:
    watched = model()
    with Probe(watched, source="norm_layers") as probe:
        losses(watched).sum().backward()
        moments = probe.step()["l2"]
    assert [probe.names[index] for index in moments.indices] == [
        name for name in probe.names if name.endswith("norm.weight")
    ]
    assert len(moments.noise) == 5
    assert "forward" not in vars(watched.head)


def test_a_normalisation_layer_of_a_persons_own() -> None:
    class MyRMSNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return x / x.square().mean(-1, keepdim=True).sqrt() * self.gain

    torch.manual_seed(0)
    x = torch.randn(5, 3, 4).double()
    own = nn.Sequential(nn.Linear(4, 4), MyRMSNorm()).double()
    assert_exact(own, lambda model: model(x).sin().sum((1, 2)), source="norm_layers", rtol=1e-11)


def test_a_model_without_normalisation_layers_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"'norm_layers' needs a normalisation layer.*'split'"):
        Probe(nn.Linear(3, 3), source="norm_layers")
