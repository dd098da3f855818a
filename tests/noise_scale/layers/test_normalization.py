from __future__ import annotations

import pytest
import torch
from torch import nn

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


@pytest.mark.parametrize("source", ["split", "per_example", "norm_layers"])
@pytest.mark.parametrize("name", LAYERS)
def test_gains_and_biases(name: str, source: str) -> None:
    torch.manual_seed(0)
    layer, shape = LAYERS[name]
    layer = layer.double()
    layer.zero_grad()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    x, weights = 3 + torch.randn(7, *shape).double(), torch.randn(7, *shape).double()
    model = nn.Sequential(nn.Linear(shape[-1], shape[-1]).double(), layer)
    assert_exact(model, lambda model: (model(x).sin() * weights).flatten(1).sum(1), source=source, groups=3, rtol=RTOL)
