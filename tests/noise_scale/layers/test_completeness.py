from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.noise_scale.layers.completeness import Completeness
from cbs.noise_scale.probe import Probe


class Model(nn.Module):
    """A tied table, a layer used twice, own parameters and a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, 8)
        self.positions = nn.Embedding(6, 8)
        self.gain = nn.Parameter(torch.ones(8))
        self.inner = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.tokens.weight
        self.strength = 0.0

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        x = x + self.inner(self.norm(self.inner(x) * self.gain))
        x = x + self.lstm(x)[0]
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(x) + self.strength * self.inner.weight.sum()


def skip_without(mode: str) -> None:
    """Some processors have no recurrent layers under autocast, with or without a probe."""
    try:
        with torch.autocast("cpu", torch.bfloat16, enabled=mode == "autocast"):
            nn.LSTM(8, 8, batch_first=True)(torch.ones(1, 1, 8))
    except RuntimeError as error:
        pytest.skip(f"this processor cannot: {error}")


@pytest.mark.parametrize("source", ["split", "per_example"])
@pytest.mark.parametrize("mode", ["autocast", "bfloat16"])
def test_low_precision_is_no_difference(mode: str, source: str) -> None:
    skip_without(mode)
    torch.manual_seed(0)
    model = Model()
    plain = Model()
    plain.load_state_dict(model.state_dict())
    ids = torch.randint(11, (6, 6))
    if mode == "bfloat16":
        model, plain = model.bfloat16(), plain.bfloat16()
    with Probe(model, source=source) as probe:
        for _ in range(3):
            for each in (model, plain):
                each.zero_grad()
                with torch.autocast("cpu", torch.bfloat16, enabled=mode == "autocast"):
                    loss = each(ids).float().square().mean()
                loss.backward()
            moments = probe.step()["l2"]
            assert bool(moments.noise.isfinite().all())
        for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
            difference = torch.linalg.vector_norm(mine.grad.float() - other.grad.float())
            # Some ten layers, each with roundings at other places.
            assert difference <= 20 * torch.finfo(torch.bfloat16).eps * torch.linalg.vector_norm(other.grad.float())


@pytest.mark.parametrize("strength", [0.1, 1.0])
@pytest.mark.parametrize("mode", ["autocast", "bfloat16", "float32"])
def test_use_elsewhere_is_an_error_in_any_precision(mode: str, strength: float) -> None:
    skip_without(mode)
    torch.manual_seed(0)
    model = Model().to(torch.bfloat16 if mode == "bfloat16" else torch.float32)
    model.strength = strength
    with Probe(model, source="split") as probe:
        with torch.autocast("cpu", torch.bfloat16, enabled=mode == "autocast"):
            loss = model(torch.randint(11, (6, 6))).float().square().mean()
        loss.backward()
        with pytest.raises(ConfigError, match=r"'inner\.weight'.*outside the layer"):
            probe.step()


class Late(nn.Module):
    """Penalises the weights of a layer, used once or twice, from some step on, before or after the layer runs."""

    def __init__(self, uses: int, *, before: bool) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 1)
        self.uses, self.before, self.strength = uses, before, 0.0

    def forward(self, x: Tensor) -> Tensor:
        early = self.inner.weight.square().sum() if self.strength and self.before else 0.0
        for _ in range(self.uses):
            x = torch.tanh(self.inner(x))
        late = self.inner.weight.square().sum() if self.strength and not self.before else 0.0
        return self.head(x).squeeze(1) + self.strength * (early + late)


@pytest.mark.parametrize("source", ["split", "per_example"])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("uses", [1, 2])
def test_use_elsewhere_from_a_later_step_on_is_an_error(uses: int, before: bool, source: str) -> None:
    """Autograd adds what comes later to the layer's own gradient in place."""
    torch.manual_seed(0)
    model = Late(uses, before=before)
    with Probe(model, source=source) as probe:
        for step in range(4):
            model.strength = 0.01 * (step == 3)
            model.zero_grad()
            model(torch.randn(6, 4)).square().mean().backward()
            if step < 3:
                assert probe.step()["l2"].sizes.big == 6
        with pytest.raises(ConfigError, match=r"'inner\.weight'.*outside the layer"):
            probe.step()


def test_more_uses_from_a_later_step_on_are_none_elsewhere() -> None:
    torch.manual_seed(0)
    model = Late(1, before=True)
    with Probe(model, source="split") as probe:
        for uses in (1, 1, 2, 2, 1, 3):
            model.uses = uses
            model.zero_grad()
            model(torch.randn(6, 4)).square().mean().backward()
            assert probe.step()["l2"].sizes.big == 6


def test_the_rounding_of_additions_is_allowed_and_no_more() -> None:
    parts = [torch.randn(1000).bfloat16() for _ in range(3)]
    total = parts[0] + parts[1] + parts[2]
    for factor, wrong in ((1.0, False), (1.05, True)):
        completeness = Completeness(["weight"])
        for part in parts:
            completeness.returned(0, part)
        error = completeness.check(0, total * factor)
        assert ("'weight'" in str(error)) if wrong else error is None
