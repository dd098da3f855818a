from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from cbs.errors import ConfigError
from cbs.noise_scale.probe import Probe

EXAMPLES = 4


class Relative(nn.Module):
    """A table of pairs of positions, with as many positions as examples."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 1)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])
        return (x.unsqueeze(1) * self.table(places[:, None] - places + 3)[..., 0]).sum(-1)


class Contrasted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(EXAMPLES, 3)

    def forward(self, x: Tensor) -> Tensor:
        features = self.inner(x)
        return features @ features.T


class TimeFirst(nn.Module):
    """Attention over the first dimension."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times
        self.inner = nn.Linear(EXAMPLES, 3)

    def forward(self, x: Tensor) -> Tensor:
        keys = self.inner(x.repeat(self.times, 1))
        weights = (keys @ keys.T).tril()
        return weights @ keys


class Named(Contrasted):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"loss": x.sum(), "logits": super().forward(x)}


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(EXAMPLES))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gain


class ContrastedOwn(Contrasted):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Own()


@pytest.mark.parametrize(
    "kind", [Relative, Contrasted, Named, ContrastedOwn, lambda: TimeFirst(1), lambda: TimeFirst(3)]
)
def test_examples_that_reach_each_other_are_an_error(kind: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = kind()
    error = r"(depends on others|does not depend on the examples).*'accumulation'"
    with Probe(model, source="split") as probe:
        sum(leaf.sum() for leaf in tree_leaves(model(torch.randn(EXAMPLES, EXAMPLES)))).backward()
        with pytest.raises(ConfigError, match=error):
            probe.step()


def test_the_check_leaves_no_trace() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    with Probe(model, source="split") as probe:
        output = model(torch.randn(EXAMPLES, 3))
        assert all(parameter.grad is None for parameter in model.parameters())
        assert probe.step() is None
        output.square().sum().backward()
        assert probe.step()["l2"].sizes.groups == 2


def test_the_check_waits_for_a_pass_that_is_measured() -> None:
    torch.manual_seed(0)
    model = Contrasted()
    probe = Probe(model, source="split", every=2)
    probe.start_at(1)
    model(torch.randn(EXAMPLES, EXAMPLES)).sum().backward()
    assert probe.step() == {}
    model.zero_grad()
    model(torch.randn(EXAMPLES, EXAMPLES)).sum().backward()
    with pytest.raises(ConfigError, match="depends on others"):
        probe.step()
