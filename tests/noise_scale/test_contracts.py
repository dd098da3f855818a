"""What nobody meant to measure, or no hook can watch, is one line and never an error of another kind."""

import contextlib
import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.noise_scale import NoiseScaleMeter


class Container(nn.Module):
    """Holds a layer that the training loop calls by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 1)


def train(meter: NoiseScaleMeter, model: nn.Module, steps: int, examples: int = 8) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        model(torch.randn(examples, 3, generator=generator) + 1).square().mean().backward()
        meter.step()
        model.zero_grad()


@pytest.mark.parametrize("source", ["split", "accumulation"])
def test_a_container_that_is_never_called(source: str) -> None:
    model = Container()
    meter = NoiseScaleMeter(model, source=source)
    model.inner(torch.randn(8, 3)).mean().backward()
    with pytest.raises(ConfigError, match="without a forward pass through it"):
        meter.step()


@pytest.mark.parametrize("source", ["split", "per_example", "accumulation", "auto"])
def test_a_pass_of_one_example_has_nothing_to_compare(source: str) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    meter = NoiseScaleMeter(model, source=source, every=1)
    train(meter, model, 6, examples=1)
    assert meter.probe.source == source.replace("auto", "split")
    assert meter.estimate().value is None
    assert "6 steps had a single group of examples" in meter.estimate().note


def test_a_check_says_what_is_not_finite() -> None:
    x = torch.randn(4, 3)
    x[2] = torch.nan
    with pytest.raises(ConfigError, match="not finite"):
        NoiseScaleMeter.check(nn.Linear(3, 1), lambda model, batch: model(batch).mean(), x)


def test_what_is_left_out_for_one_reason_is_warned_of_once() -> None:
    model = nn.Linear(3, 1)
    meter = NoiseScaleMeter(model)
    train(meter, model, 2)
    assert "left out" not in meter.estimate().note
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            model(torch.randn(8, 3)).mean().backward()
            model.weight.grad.mul_(0.5)  # type: ignore[union-attr]
            model.bias.grad.mul_(0.5)  # type: ignore[union-attr]
            meter.step()
            model.zero_grad()
    assert len(said) == 1
    assert "3 steps left out" in meter.estimate().note


class Reversed(torch.autograd.Function):
    """Runs a layer again in its backward pass, and differentiates it there, as reversible networks do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: nn.Module) -> Tensor:
        ctx.save_for_backward(x)
        ctx.layer = layer
        with torch.no_grad():
            return layer(x)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        with torch.enable_grad():
            (x,) = (each.detach().requires_grad_() for each in ctx.saved_tensors)
            torch.autograd.backward(ctx.layer(x), slope)
        assert x.grad is not None
        return x.grad, None


class Reversible(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(Reversed.apply(self.first(x).tanh(), self.inner))  # type: ignore[no-untyped-call]


class Averaged(nn.Module):
    """A teacher follows the student in every forward pass, or where the loop says so."""

    def __init__(self, *, inside: bool = True) -> None:
        super().__init__()
        self.student, self.teacher, self.inside = nn.Linear(3, 2), nn.Linear(3, 2).requires_grad_(False), inside

    def follow(self) -> None:
        with torch.no_grad():
            for own, other in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                own.data = 0.5 * own.data + 0.5 * other.data  # leaves no trace in the version of the tensor

    def forward(self, x: Tensor) -> Tensor:
        if self.inside:
            self.follow()
        return self.student(x) - self.teacher(x).detach()


@pytest.mark.parametrize("source", ["auto", "split", "per_example"])
@pytest.mark.parametrize("build", [Reversible, Averaged, lambda: Averaged(inside=False)])
def test_measuring_changes_no_training(build: Callable[[], nn.Module], source: str) -> None:
    """Neither gradients, where a backward pass runs inside a backward pass, nor weights that a forward pass updates."""
    torch.manual_seed(0)
    plain = build()
    watched = copy.deepcopy(plain)
    meter = NoiseScaleMeter(watched, source=source, tell=lambda line: None)
    for step in range(3):
        x = torch.randn(8, 3, generator=torch.Generator().manual_seed(step))
        for model in (plain, watched):
            model(x).square().mean().backward()
            if isinstance(model, Averaged) and not model.inside:
                model.follow()
        with contextlib.suppress(ConfigError):
            meter.step()
        for one, other in zip(plain.parameters(), watched.parameters(), strict=True):
            assert torch.equal(one, other)
            assert one.grad is None or torch.equal(one.grad, other.grad)
            if one.grad is not None:
                one.data -= one.grad
                other.data -= other.grad
                one.grad = other.grad = None
    if build is not Reversible:
        assert meter.estimate().steps == 3
        assert "not checked whether examples mix: the forward pass changes parameters in place" in meter.estimate().note


def test_parameters_that_a_backward_pass_leaves_out_have_no_noise() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    meter = NoiseScaleMeter(model)
    for step in range(2):
        x = torch.randn(8, 3, generator=torch.Generator().manual_seed(step)) + 1
        model(x).square().mean().backward(inputs=list(model[2].parameters()))
        found = meter.step()
        with meter.paused():
            halves = [torch.autograd.grad(model(half).square().mean(), [*model[2].parameters()]) for half in x.chunk(2)]
        difference = sum((one - other).square().sum() for one, other in zip(*halves, strict=True))
        assert found is not None
        assert float(found.noise) == pytest.approx(float(2 * difference), rel=1e-5)
        model.zero_grad()


def test_a_forward_pass_that_is_not_differentiated_is_no_micro_batch() -> None:
    model = nn.Linear(3, 1)
    for options in ({}, {"groups": 2}):
        meter = NoiseScaleMeter(model, **options)
        x = torch.randn(8, 3)
        model(x[:3])
        model(x).square().mean().backward()
        meter.step()
        assert meter.probe.caveat == ""
        model.zero_grad()
        meter.detach()
