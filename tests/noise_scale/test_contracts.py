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
from cbs.noise_scale.probe import NoiseScaleWarning


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


class Around(nn.Module):
    def __init__(self, inner: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def test_passes_of_one_example_are_groups_of_a_step() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    found = []
    for source in ("split", "accumulation"):
        meter = NoiseScaleMeter(model, source=source)
        for x in torch.randn(4, 1, 3, generator=torch.Generator().manual_seed(0)):
            (model(x).square().mean() / 4).backward()
        step = meter.step()
        found.append(torch.stack((step.signal, step.noise)))
        model.zero_grad()
        meter.detach()
    torch.testing.assert_close(*found, rtol=1e-5, atol=0)


def test_a_lazy_parameter_is_named() -> None:
    with pytest.raises(ConfigError, match=r"parameter '0\.weight' is lazy"):
        NoiseScaleMeter(nn.Sequential(nn.LazyLinear(3)))


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_a_scripted_model_is_measured_inside_another() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    scripted = torch.jit.script(model)
    with pytest.raises(ConfigError, match="accepts no hooks"):
        NoiseScaleMeter(scripted)
    meters = []
    for inner in (scripted, model):
        around = Around(inner)
        meters.append(NoiseScaleMeter(around, source="split"))
        train(meters[-1], around, 3)
        meters[-1].detach()
    one, other = (meter.estimate() for meter in meters)
    assert (one.signal, one.noise) == pytest.approx((other.signal, other.noise), rel=1e-5)


def test_a_step_without_a_backward_pass_is_left_out_later() -> None:
    model = nn.Linear(3, 1)
    meter = NoiseScaleMeter(model)
    with pytest.raises(ConfigError, match="no backward pass"):
        meter.step()
    train(meter, model, 2)
    with pytest.warns(NoiseScaleWarning, match="no backward pass"):
        assert meter.step() is None
    train(meter, model, 1)
    assert meter.estimate().steps == 3


def test_all_frozen_for_a_while() -> None:
    """What is frozen when hooks are put on is measured once it is trained."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    meter = NoiseScaleMeter(model, source="split")
    model.requires_grad_(False)
    with meter.paused():
        pass
    assert not any(parameter.requires_grad for parameter in model.parameters())
    model.requires_grad_(True)
    train(meter, model, 3)
    assert {*meter.estimate("layer")} == {"0", "2"}
    assert all(found.noise and found.noise > 0 for found in meter.estimate("layer").values())


def test_what_is_unfrozen_while_paused_is_measured_from_there_on() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    model[0].requires_grad_(False)
    meter = NoiseScaleMeter(model, source="split")
    train(meter, model, 2)
    with pytest.warns(NoiseScaleWarning, match="2 more parameter tensors"), meter.paused():
        model[0].requires_grad_(True)
    train(meter, model, 3)
    assert {*meter.estimate("layer")} == {"0", "2"}
    assert meter.estimate().steps == 3


class Masked(nn.Module):
    """Takes a mask first, which has no examples."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 1)

    def forward(self, mask: Tensor, x: Tensor) -> Tensor:
        return self.inner(x * mask.mean())


def test_a_first_input_without_examples_is_told() -> None:
    model = Masked()
    meter = NoiseScaleMeter(model, source="accumulation")
    for x in torch.randn(2, 8, 3):
        (model(torch.ones(4, 4), x).square().mean() / 2).backward()
    meter.step()
    assert "4 examples were counted" in meter.estimate().note
    assert "8 rows" in meter.estimate().note
