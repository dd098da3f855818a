"""Every layer kind against one backward pass per group."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cbs.noise_scale.layers import recorder
from tests.references.per_example import Elementwise, Euclidean, assert_exact

EXAMPLES = 6
SOURCES = [("split", 2), ("split", 4), ("per_example", 0)]
# Double precision leaves rounding of sums of some thousand products.
RTOL = 1e-11


class Everything(nn.Module):
    """Two towers, images and tokens with positions and a tied head, all layer kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.group_norm = nn.GroupNorm(2, 4)
        self.image_out = nn.Linear(4, 8)
        self.tokens = nn.Embedding(11, 8, padding_idx=0)
        self.positions = nn.Embedding(5, 8)
        self.gain = nn.Parameter(torch.ones(8))
        self.norm = nn.LayerNorm(8)
        self.conv_time = nn.Conv1d(8, 8, 3, padding=1, groups=2)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.rms = nn.RMSNorm(8)
        self.shared = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor, images: Tensor) -> Tensor:
        seen = self.image_out(torch.relu(self.group_norm(self.conv(images))).mean((2, 3)))
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1])[None]) * self.gain + seen[:, None]
        x = x + self.conv_time(self.norm(x).mT).mT
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = self.shared(torch.tanh(self.shared(x)))
        return self.head(self.rms(x).flatten(0, 1)).view(*ids.shape, -1)


def everything(dtype: torch.dtype) -> tuple[Everything, Callable[[nn.Module], Tensor]]:
    torch.manual_seed(0)
    model = Everything().to(dtype)
    ids = torch.randint(1, 11, (EXAMPLES, 5))
    ids[0, 3:] = ids[2, 1:] = 0
    targets = torch.randint(1, 11, (EXAMPLES, 5))
    targets[ids == 0] = -100
    images = torch.randn(EXAMPLES, 3, 6, 6, dtype=dtype)

    def losses(model: nn.Module) -> Tensor:
        tokens = cross_entropy(model(ids, images).mT, targets, reduction="none")
        return tokens.sum(1) / (targets != -100).sum()

    return model, losses


@pytest.mark.parametrize("geometries", [(Euclidean(),), (Euclidean(), Elementwise())], ids=["norms", "values"])
@pytest.mark.parametrize(("source", "groups"), SOURCES)
def test_all_kinds_together(source: str, groups: int, geometries: tuple[Euclidean, ...]) -> None:
    model, losses = everything(torch.float64)
    assert_exact(model, losses, source=source, groups=groups, rtol=RTOL, geometries=geometries)


@pytest.mark.parametrize(("source", "groups"), SOURCES)
def test_all_kinds_together_in_single_precision(source: str, groups: int) -> None:
    model, losses = everything(torch.float32)
    # Rounding of float32 along some ten layers.
    assert_exact(model, losses, source=source, groups=groups, rtol=1e-5)


@pytest.mark.parametrize(("source", "groups"), SOURCES)
def test_blocks_of_one_group(source: str, groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "BLOCK_BYTES", 1)
    monkeypatch.setattr(recorder, "HELD_BYTES", 1)
    model, losses = everything(torch.float64)
    assert_exact(model, losses, source=source, groups=groups, rtol=RTOL)


@pytest.mark.parametrize("frozen", ["tokens.weight", "conv.weight", "norm.bias", "attention.in_proj_weight", "gain"])
def test_frozen_parameters_are_left_out(frozen: str) -> None:
    model, losses = everything(torch.float64)
    model.get_parameter(frozen).requires_grad_(False)
    assert_exact(model, losses, source="split", rtol=RTOL)


def test_a_geometry_that_covers_some_parameters_only() -> None:
    class Matrices(Elementwise):
        def covers(self, index: int) -> bool:
            return index % 3 == 1

    class Norms(Euclidean):
        def covers(self, index: int) -> bool:
            return index % 4 == 1

    model, losses = everything(torch.float64)
    assert_exact(model, losses, source="split", rtol=RTOL, geometries=(Matrices(), Norms()))
