"""Models that change while they are measured: cast, unfrozen, replaced, or with passes beside training."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cbs.noise_scale import NoiseScaleMeter
from tests.noise_scale.test_masked_backward import EXAMPLES


def test_parameters_that_are_unfrozen_or_replaced_are_measured_from_then_on() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))
    model[0].requires_grad_(False)
    meter = NoiseScaleMeter(model, source="split")

    def steps(number: int) -> None:
        for _ in range(number):
            model.zero_grad()
            model(torch.randn(EXAMPLES, 6)).square().mean().backward()
            meter.step()

    steps(3)
    assert {*meter.estimate("parameter")} == {"2.weight", "2.bias"}
    model[0].requires_grad_(True)
    with pytest.warns(UserWarning, match="2 more parameter tensors are trained, such as '0.weight'"):
        steps(1)
    steps(4)
    assert {*meter.estimate("parameter")} == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert meter.estimate().steps == 4
    assert "measured from step" in meter.estimate().note
    model[2] = nn.Linear(6, 2)
    steps(3)
    assert meter.estimate().steps == 2


def test_a_pass_beside_training_leaves_attributes_as_they_were() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.calls, self.seen, self.total = nn.Linear(6, 3), 0, [], torch.zeros(())

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            self.seen.append(len(x))
            self.total += 1
            return self.inner(x)

    model = Counting()
    with NoiseScaleMeter(model, source="split") as meter:
        model(torch.randn(EXAMPLES, 6)).square().mean().backward()
        meter.step()
    assert (model.calls, model.seen, float(model.total)) == (1, [EXAMPLES], 1.0)


def test_a_model_that_is_cast_after_it_was_attached_is_measured() -> None:
    """Its rounding is that of the dtype that it computes in."""
    found = []
    for late in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        with NoiseScaleMeter(model if late else model.bfloat16(), source="split") as meter:
            model.bfloat16()(torch.randn(EXAMPLES, 6).bfloat16()).square().mean().backward()
            found.append(meter.step())
    assert None not in found
    assert found[0] == found[1]


def test_a_head_that_starts_at_zero_is_no_alarm() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3))
    nn.init.zeros_(model[1].weight)
    nn.init.zeros_(model[1].bias)
    with NoiseScaleMeter(model, source="split") as meter:
        nn.functional.cross_entropy(model(torch.randn(EXAMPLES, 6)), torch.arange(EXAMPLES) % 3).backward()
        assert meter.step() is not None


class Noisy(torch.autograd.Function):
    """Draws random numbers in the backward pass, as where gradients are rounded at random."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * (1 + 0.2 * torch.randn_like(gradient))


def test_random_numbers_of_a_backward_pass_stay() -> None:
    def trained(*, watched: bool) -> list[Tensor]:
        torch.manual_seed(0)
        first, second = nn.Linear(5, 8), nn.Linear(8, 4)
        model = nn.ModuleList([first, second])
        model.forward = lambda x: second(Noisy.apply(first(x)))
        meter = NoiseScaleMeter(model, source="per_example") if watched else None
        model(torch.randn(6, 5)).square().mean().backward()
        if meter is not None:
            assert meter.step() is not None
        return [parameter.grad for parameter in model.parameters()]

    for one, other in zip(trained(watched=True), trained(watched=False), strict=True):
        assert torch.equal(one, other)
