from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.noise_scale.probe import Probe
from tests.references.per_example import assert_exact

# Double precision leaves rounding of sums of some thousand products.
RTOL = 1e-12

CONVOLUTIONS = {
    "1d": (nn.Conv1d(4, 6, 3), (9,)),
    "2d": (nn.Conv2d(4, 6, 3, padding=1), (6, 5)),
    "3d": (nn.Conv3d(4, 2, 2, stride=2), (4, 5, 4)),
    "strided": (nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0)), (7, 5)),
    "dilated": (nn.Conv2d(4, 6, 3, dilation=2, padding=2), (6, 6)),
    "grouped": (nn.Conv2d(4, 6, 3, groups=2, bias=False), (6, 6)),
    "depthwise": (nn.Conv1d(4, 4, 3, groups=4, padding=1), (6,)),
    "same": (nn.Conv1d(4, 6, 4, padding="same"), (6,)),
    "valid": (nn.Conv1d(4, 6, 4, padding="valid"), (6,)),
    "reflect": (nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), (6, 6)),
    "circular": (nn.Conv1d(4, 6, 4, padding="same", padding_mode="circular"), (6,)),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_every_option(name: str) -> None:
    torch.manual_seed(0)
    convolution, spatial = CONVOLUTIONS[name]
    x = torch.randn(6, 4, *spatial).double()
    for source in ("split", "per_example"):
        model = nn.Sequential(nn.Conv1d(4, 4, 1) if len(spatial) == 1 else nn.Identity(), convolution).double()
        model.zero_grad()
        assert_exact(model, lambda model: model(x).square().flatten(1).sum(1), source=source, rtol=RTOL)


def test_a_single_example_without_a_batch_dimension_is_an_error() -> None:
    model = nn.Conv2d(4, 6, 3)
    with Probe(model, source="split") as probe:
        model(torch.randn(4, 6, 6)).sum().backward()
        with pytest.raises(ConfigError, match=r"does not run while.*without a batch dimension"):
            probe.step()


class Standardised(nn.Conv2d):
    """Keeps ``forward`` and changes what it calls."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(input, weight / torch.linalg.vector_norm(weight), bias)


@pytest.mark.parametrize("source", ["split", "per_example"])
def test_a_subclass_that_computes_something_else_is_left_to_the_fallback(source: str) -> None:
    torch.manual_seed(0)
    model, x = Standardised(2, 3, 3).double(), torch.randn(6, 2, 5, 5).double()
    assert_exact(model, lambda model: model(x).square().sum((1, 2, 3)), source=source, groups=3, rtol=RTOL)
