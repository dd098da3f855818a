"""``auto`` takes micro-batches where the model, or its first step, shows that it must."""

import pytest
import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.noise_scale import NoiseScaleMeter
from cbs.noise_scale.probe import NoiseScaleWarning, Probe


class Mixing(nn.Module):
    """Centres every feature over the batch while it ``mixes``."""

    def __init__(self, *, mixes: bool = True) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.last = nn.Linear(3, 1)
        self.mixes = mixes

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        return self.last(hidden - hidden.mean(0) if self.mixes else hidden)


def train(noise_scale: NoiseScaleMeter, model: nn.Module, steps: int, parts: int = 2) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        for x in torch.randn(8, 3, generator=generator).chunk(parts):
            (model(x).square().mean() / parts).backward()
        noise_scale.step()
        model.zero_grad()


def test_it_falls_back_after_the_first_step_and_says_so() -> None:
    torch.manual_seed(0)
    model = Mixing()
    noise_scale = NoiseScaleMeter(model)
    assert noise_scale.probe.source == "split"
    train(noise_scale, model, 21)
    found = noise_scale.estimate()
    assert noise_scale.probe.source == "accumulation"
    assert noise_scale.probe.micro_batches == 2
    assert found.steps == 20
    assert "measured with 'accumulation'" in found.note
    assert "the model's output for one example depends on others" in found.note


def test_with_one_micro_batch_there_is_nothing_to_measure_and_the_note_says_why() -> None:
    model = Mixing()
    noise_scale = NoiseScaleMeter(model)
    train(noise_scale, model, 3, parts=1)
    found = noise_scale.estimate()
    assert found.value is None
    assert "two micro-batches or more in a step" in found.note


@pytest.mark.parametrize("source", ["auto", "split"])
def test_after_the_first_step_it_raises_nothing_unless_it_was_named(source: str) -> None:
    model = Mixing(mixes=False)
    noise_scale = NoiseScaleMeter(model, source=source)
    train(noise_scale, model, 2)

    def clipped() -> None:
        model(torch.randn(8, 3)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        noise_scale.step()

    if source == "split":
        with pytest.raises(ConfigError, match="clipped"):
            clipped()
        return
    with pytest.warns(NoiseScaleWarning, match="a step is left out"):
        clipped()
    assert noise_scale.estimate().steps == 2
    assert "1 steps left out: .grad is" in noise_scale.estimate().note


def test_a_source_that_was_asked_for_is_not_replaced() -> None:
    model = Mixing()
    noise_scale = NoiseScaleMeter(model, source="split")
    with pytest.raises(ConfigError, match="depends on others"):
        train(noise_scale, model, 1)
    assert noise_scale.probe.source == "split"


def test_the_first_measured_step_decides() -> None:
    torch.manual_seed(0)
    model = Mixing()
    probe = Probe(model, every=3)
    seen = []
    for _ in range(7):
        model.zero_grad()
        for x in torch.randn(8, 3).chunk(2):
            (model(x).square().mean() / 2).backward()
        seen.append(bool(probe.step()))
    assert seen == [False, False, False, True, False, False, True]
    assert probe.source == "accumulation"
