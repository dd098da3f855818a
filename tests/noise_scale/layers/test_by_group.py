from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.noise_scale.layers import group_by_group
from cbs.noise_scale.probe import Probe
from tests.references.per_example import assert_exact, watch

# Double precision leaves rounding of sums of some thousand products.
RTOL = 1e-11
EXAMPLES = 6


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True)


def recurrent() -> nn.Module:
    return nn.GRU(8, 8, num_layers=2, dropout=0.3, batch_first=True)


@pytest.mark.parametrize("build", [encoder, recurrent])
def test_dropout_is_refused_in_training(build: Callable[[], nn.Module]) -> None:
    """Its masks would be others than without us."""
    torch.manual_seed(0)
    model, x = nn.Sequential(build()), torch.randn(EXAMPLES, 5, 8)

    def step() -> Tensor:
        torch.manual_seed(1)
        found = model(x)
        found = found[0] if isinstance(found, tuple) else found
        found.square().sum().backward()
        return found

    with pytest.raises(ConfigError, match="has dropout, and its groups would draw other random numbers"):
        Probe(model, source="split")
    wanted = step()
    model.eval()
    with Probe(model, source="split") as probe:
        model.zero_grad()
        step()
        assert probe.step() is not None
        model.train()
        assert torch.equal(step(), wanted)
        with pytest.raises(ConfigError, match="has dropout, and its groups would draw other random numbers"):
            probe.step()


@pytest.mark.parametrize("few", [0, 8])
@pytest.mark.parametrize("first", [True, False])
def test_attention_with_masks(first: bool, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_by_group, "FEW_GROUPS", few)

    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.MultiheadAttention(8, 2, batch_first=first, add_bias_kv=True)

        def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
            mask = torch.zeros(EXAMPLES, EXAMPLES, dtype=torch.bool).triu(1)  # as many places as examples
            x = x if first else x.transpose(0, 1)
            output, weights = self.inner(x, x, x, key_padding_mask=hidden, attn_mask=mask)
            return (output if first else output.transpose(0, 1)).sum(2) + weights.sin().sum(2)

    torch.manual_seed(0)
    x, hidden = torch.randn(EXAMPLES, EXAMPLES, 8).double(), torch.zeros(EXAMPLES, EXAMPLES, dtype=torch.bool)
    hidden[2, 4:] = True
    for source in ("split", "per_example"):
        assert_exact(
            Attending().double(), lambda model: model(x, hidden).square().sum(1), source=source, groups=4, rtol=RTOL
        )


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_a_recurrent_layer_has_its_own_weights_again(kind: type[nn.RNNBase]) -> None:
    model = nn.Sequential(kind(8, 8, batch_first=True))
    watcher = watch(model)
    model(torch.randn(EXAMPLES, 5, 8))[0].sum().backward()
    assert all(map(lambda own, weight: own is weight, model[0]._flat_weights, model.parameters()))
    watcher.detach()
    deepcopy(model)


def test_sequences_that_are_no_examples_are_an_error() -> None:
    class Memory(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.randn(2 * EXAMPLES, 5, 8)
            self.inner = nn.GRU(8, 8, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return x * self.inner(self.table)[0].mean((0, 1))

    model = Memory()
    with Probe(model, source="split") as probe:
        model(torch.randn(EXAMPLES, 8)).square().sum().backward()
        with pytest.raises(ConfigError, match="'inner' sees does not depend on the examples"):
            probe.step()
