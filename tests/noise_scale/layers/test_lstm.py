from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.noise_scale.layers import lstm
from cbs.noise_scale.layers.lstm import LSTM
from cbs.noise_scale.probe import Probe
from tests.references.per_example import assert_exact, watch

# Double precision leaves rounding of sums of some thousand products.
RTOL = 1e-11

OPTIONS: dict[str, dict[str, Any]] = {
    "one layer": {},
    "two layers": {"num_layers": 2},
    "both directions": {"num_layers": 2, "bidirectional": True},
    "without bias": {"bias": False},
    "time first": {"batch_first": False},
    "projections": {"proj_size": 2},
}


class Recurrent(nn.Module):
    """Reads all outputs, from zero or given states."""

    def __init__(self, *, states: bool, **options: Any) -> None:
        super().__init__()
        self.states = states
        self.inner = nn.LSTM(4, 3, **{"batch_first": True, **options})

    def forward(self, x: Tensor) -> Tensor:
        inner = self.inner
        layers = inner.num_layers * (2 if inner.bidirectional else 1)
        h, c = (x[:, place, : size or 3].expand(layers, -1, -1) for place, size in ((0, inner.proj_size), (1, 0)))
        x = x if inner.batch_first else x.transpose(0, 1)
        output, (h, c) = inner(x, (h.contiguous(), c.contiguous()) if self.states else None)
        output = output if inner.batch_first else output.transpose(0, 1)
        return output.square().flatten(1).sum(1) + h.sin().sum((0, 2)) + c.cos().sum((0, 2))


@pytest.fixture(params=[0, 8], ids=["through time", "group by group"])
def few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lstm, "FEW_GROUPS", request.param)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_every_option(name: str, states: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 5, 4).double()
    model = nn.Sequential(nn.Linear(4, 4), Recurrent(states=states, **OPTIONS[name])).double()

    def losses(model: nn.Module) -> Tensor:
        torch.manual_seed(1)
        return model(x)

    for source in ("split", "per_example"):
        model.zero_grad()
        assert_exact(model, losses, source=source, groups=3, rtol=RTOL)


def test_projections_alone_are_left_to_another_kind() -> None:
    kinds = [type(watch(Recurrent(states=False, **OPTIONS[name]))._layers[0]) for name in ("two layers", "projections")]
    assert kinds[0] is LSTM
    assert kinds[1] is not LSTM


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("frozen", ["weight_ih_l0", "weight_hh_l1", "bias_hh_l0"])
def test_frozen_parameters(frozen: str) -> None:
    torch.manual_seed(0)
    model = Recurrent(states=False, num_layers=2).double()
    model.inner.get_parameter(frozen).requires_grad_(False)
    x = torch.randn(6, 5, 4).double()
    assert_exact(model, lambda model: model(x), source="split", rtol=RTOL)


@pytest.mark.usefixtures("few")
def test_packed_sequences_are_an_error_and_have_their_gradient() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.LSTM(4, 3, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 4, 2]), batch_first=True)
            return self.inner(packed)[0].data

    model = Packed()
    with Probe(model, source="split") as probe:
        model(torch.randn(3, 5, 4)).sum().backward()
        assert model.inner.weight_hh_l0.grad is not None
        with pytest.raises(ConfigError, match=r"'inner' is given a packed sequence.*accumulation"):
            probe.step()
