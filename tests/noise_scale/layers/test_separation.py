"""Examples that mix are found out, whatever the model returns."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._pytree import tree_leaves

from cbs.errors import ConfigError
from cbs.noise_scale.probe import Probe

EXAMPLES = 4


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
        return {"logits": super().forward(x)}


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


class Pairs(nn.Module):
    """Two inputs go through one layer in one call; only the loss comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(EXAMPLES, 6)
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        both = self.encoder(torch.cat([x, x.flip(1)])).relu().chunk(2)
        return cross_entropy(self.head(torch.cat(both, 1)), torch.arange(len(x)) % 3)


class TimeMajor(nn.Module):
    """Rows are sorted by time; only the loss comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(1, 3)

    def forward(self, x: Tensor) -> Tensor:
        return cross_entropy(self.inner(x.T.reshape(-1, 1)), torch.arange(x.numel()) % 3)


@pytest.mark.parametrize("source", ["split", "per_example"])
@pytest.mark.parametrize(
    "kind",
    [Contrasted, Named, ContrastedOwn, lambda: TimeFirst(1), lambda: TimeFirst(3), Pairs, TimeMajor],
)
def test_examples_that_reach_each_other_are_an_error(kind: Callable[[], nn.Module], source: str) -> None:
    torch.manual_seed(0)
    model = kind()
    with Probe(model, source=source) as probe:
        sum(leaf.sum() for leaf in tree_leaves(model(torch.randn(EXAMPLES, EXAMPLES)))).backward()
        with pytest.raises(ConfigError, match=r"(depends on others|does not depend on the examples).*'accumulation'"):
            probe.step()


def step(probe: Probe, model: nn.Module, x: Tensor) -> Any:
    model.zero_grad()
    model(x).square().mean().backward()
    return probe.step()


def test_the_check_leaves_no_trace() -> None:
    class Drawing(nn.Module):
        """All that a second forward pass could change: random numbers of two kinds and a buffer."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3))
            self.norm = nn.Linear(3, 3)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return nn.functional.dropout(self.norm(x), 0.3) * random.random()

    results = []
    for watched in (False, True):
        torch.manual_seed(0)
        random.seed(0)
        model = Drawing()
        probe = Probe(model, source="split") if watched else None
        for _ in range(3):
            model.zero_grad()
            model(torch.randn(EXAMPLES, 3)).square().mean().backward()
            if probe is not None:
                assert probe.step()["l2"].sizes.groups == 2
                assert probe.caveat == ""
        results.append((model.norm.weight.grad, model.calls, torch.get_rng_state(), random.getstate()))
    for plain, seen in zip(*results, strict=True):
        # Gradients of two halves are added up: one rounding.
        torch.testing.assert_close(seen, plain, rtol=1e-5, atol=0) if isinstance(plain, Tensor) else None
    assert torch.equal(results[0][2], results[1][2])
    assert results[0][3] == results[1][3]


def test_the_check_waits_for_a_pass_that_is_measured() -> None:
    torch.manual_seed(0)
    model = Contrasted()
    probe = Probe(model, source="split", every=2)
    probe.start_at(1)
    assert step(probe, model, torch.randn(EXAMPLES, EXAMPLES)) == {}
    with pytest.raises(ConfigError, match="depends on others"):
        step(probe, model, torch.randn(EXAMPLES, EXAMPLES))


class Experts(nn.Module):
    """Every example goes to one of two experts, which see only theirs, in turn while ``even``."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        self.even = True

    def forward(self, x: Tensor) -> Tensor:
        chosen = torch.zeros(len(x), dtype=torch.long) if self.even else (x[:, 0] > 0).long()
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            if (chosen == index).any():
                out[chosen == index] = expert(x[chosen == index].repeat_interleave(EXAMPLES, 0))[::EXAMPLES]
        return out


def test_what_examples_do_to_each_other_later_is_found_in_a_later_check() -> None:
    torch.manual_seed(0)
    model = Experts()
    probe = Probe(model, source="split")
    x = torch.tensor([[1.0, 2, 3], [-1, 2, 1], [2, 1, 1], [-3, 1, 0]])
    for _ in range(2):
        step(probe, model, x)
    model.even = False
    for _ in range(2):
        step(probe, model, x)
    with pytest.raises(ConfigError, match=r"depends on (others|all examples)|does not depend"):
        step(probe, model, x)


def test_what_could_not_be_checked_is_said() -> None:
    class Counted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 3)
            self.seen: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            if self.seen is not None:
                assert torch.equal(x, self.seen), "strange examples"
            self.seen = x
            return self.inner(x)

    model = Counted()
    probe = Probe(model, source="split")
    assert step(probe, model, torch.randn(EXAMPLES, 3)) is not None
    assert probe.caveat.startswith(
        "whether examples mix was not checked: the model does not run on other examples: str"
    )

    outer = nn.Sequential(nn.Linear(3, 3))
    empty = Probe(nn.ModuleList([outer]), source="split", count=lambda args, kwargs: EXAMPLES)
    empty._model.forward = lambda x: None
    empty._model(torch.ones(EXAMPLES, 3))
    outer(torch.randn(EXAMPLES, 3)).sum().backward()
    empty.step()
    assert "no layer runs within the forward pass" in empty.caveat
