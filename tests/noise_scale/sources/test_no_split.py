"""Passes that cannot be split by examples are an error in one line, or ``auto`` takes micro-batches; others that look
like them are not."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from cbs.errors import ConfigError
from cbs.noise_scale import NoiseScaleMeter
from cbs.noise_scale.probe import NoiseScaleWarning, Probe
from tests.noise_scale.sources.tiny_gpt import RTOL, batch, gpt, losses, norms
from tests.references.per_example import assert_exact, watch


class Functional(nn.Module):
    """Uses a weight of a layer that it also calls, or does not."""

    def __init__(self, *, calls: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3, bias=False)
        self.calls = calls

    def forward(self, x: Tensor) -> Tensor:
        return linear(self.inner(x) if self.calls else x, self.inner.weight)


@pytest.mark.parametrize("calls", [True, False])
def test_a_parameter_used_outside_its_layer(calls: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 3).double()
    assert_exact(Functional(calls=calls).double(), lambda model: model(x).square().sum(1), source="split", rtol=RTOL)


@pytest.mark.parametrize("step", [1, 2, 5])
def test_a_penalty_on_the_weights_is_an_error_from_some_step_on(step: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3))
    watcher = watch(model)
    x = torch.randn(4, 3)
    for _ in range(step - 1):
        model(x).square().sum().backward()
        assert watcher.collect() is not None
    (model(x).square().sum() + model[0].weight.square().sum()).backward()
    with pytest.raises(ConfigError, match=r"reaches '0.weight' in another way than through the output of the model"):
        watcher.collect()


@pytest.mark.parametrize("calls", [1, 2])
def test_gradients_that_are_not_finite_are_no_error_of_the_model(calls: int) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.gain

    model = nn.Sequential(*[nn.Linear(3, 3)] * calls, Own())
    watcher = watch(model)
    (model(torch.ones(4, 3)) * float("inf")).sum().backward()
    assert not torch.isfinite(norms(watcher.collect())).any()


def test_a_gradient_that_is_zero_but_for_rounding_is_no_error_of_the_model() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            return (x + self.shift).softmax(-1)

    torch.manual_seed(0)
    x, weights = torch.randn(2, 64, 50)
    model = nn.Sequential(nn.Linear(50, 50), Shifted())
    watch(model)
    (model(x) * weights).sum().backward()
    assert model[1].shift.grad.abs() < 1e-5


def test_two_backward_passes_after_one_forward_pass_are_an_error() -> None:
    model = gpt()
    watcher = watch(model)
    loss = losses(model, batch()).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    with pytest.raises(ConfigError, match="two backward passes"):
        watcher.collect()


def test_second_derivatives_are_an_error() -> None:
    model = gpt()
    watcher = watch(model)
    losses(model, batch()).sum().backward(create_graph=True)
    with pytest.raises(ConfigError, match=r"create_graph=True.*'accumulation'"):
        watcher.collect()


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.SyncBatchNorm])
def test_batch_normalisation_is_refused(kind: type[nn.Module]) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(kind(3)))
    with pytest.raises(ConfigError, match=rf"module '1.0' \({kind.__name__}\) mixes the examples.*'accumulation'"):
        watch(model)
    assert "forward" not in vars(model[0])


def test_a_layer_called_outside_the_forward_pass_is_an_error() -> None:
    model = gpt()
    watcher = watch(model)
    model.norm(torch.randn(3, 8).double()).sum().backward()
    with pytest.raises(ConfigError, match="without a forward pass through it; pass the module"):
        watcher.collect()
    losses(model, batch()).sum().backward()
    model.norm(torch.randn(3, 8).double()).sum().backward()
    with pytest.raises(ConfigError, match="a layer called by itself"):
        watcher.collect()


def test_a_transform_of_torch_func_is_an_error() -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    watcher = watch(model)
    torch.func.vmap(model)(torch.ones(5, 2, 3))
    with pytest.raises(ConfigError, match=r"called under a transform of torch\.func"):
        watcher.collect()


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
