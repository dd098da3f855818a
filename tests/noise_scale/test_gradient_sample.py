"""Gradients and models that change while they are measured: ``.grad`` is what the passes found, or somebody is told."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from cbs.errors import ConfigError
from cbs.noise_scale import NoiseScaleMeter
from tests.noise_scale.test_masked_backward import EXAMPLES

SOURCES = ("split", "per_example", "accumulation")
Touch = Callable[[nn.Module], None]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(9, 6), nn.Flatten(), nn.Linear(18, 5), nn.Tanh(), nn.Linear(5, 1))


def batch(examples: int = 8) -> tuple[Tensor, Tensor]:
    return torch.randint(9, (examples, 3)), torch.randn(examples, 1)


def backward(net: nn.Module, scale: float = 1.0) -> None:
    for x, y in zip(*(part.chunk(2) for part in batch()), strict=True):
        (scale * mse_loss(net(x), y) / 2).backward()


def clip(net: nn.Module) -> None:
    nn.utils.clip_grad_norm_(net.parameters(), 1e-3)


def decay(net: nn.Module) -> None:
    for parameter in net.parameters():
        parameter.grad.add_(parameter.detach(), alpha=0.1)


def forget(net: nn.Module) -> None:
    net.zero_grad()


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    ("touch", "said"),
    [
        (clip, r"times what the backward passes computed: it was clipped, scaled or averaged"),
        (decay, r"it was changed since, for example by added weight decay or noise"),
        (forget, r"the gradients of the step are gone: measure before optimizer.zero_grad"),
    ],
)
def test_gradients_that_were_changed_before_the_measurement(source: str, touch: Touch, said: str) -> None:
    net = model()
    noise_scale = NoiseScaleMeter(net, source=source)
    backward(net)
    touch(net)
    with pytest.raises(ConfigError, match=said):
        noise_scale.step()


@pytest.mark.parametrize("source", SOURCES)
def test_gradients_that_were_not_emptied(source: str) -> None:
    net = model()
    noise_scale = NoiseScaleMeter(net, source=source)
    backward(net)
    noise_scale.step()
    backward(net)
    with pytest.raises(ConfigError, match=r"not empty before the first backward pass.*zero_grad"):
        noise_scale.step()


@pytest.mark.parametrize("source", SOURCES)
def test_gradients_of_an_earlier_step_in_tensors_that_this_one_does_not_use(source: str) -> None:
    """Two losses in turn on a shared trunk, and an optimizer for each that empties only its own gradients."""
    net = nn.ModuleDict({"trunk": nn.Linear(3, 4), "one": nn.Linear(4, 1), "other": nn.Linear(4, 1)})
    used = "one"
    net.forward = lambda x: net[used](net["trunk"](x).tanh())
    noise_scale = NoiseScaleMeter(net, source=source)
    for used in ("one", "other"):
        for _ in range(2):
            (mse_loss(net(torch.randn(8, 3)), torch.randn(8, 1)) / 2).backward()
        if used == "one":
            noise_scale.step()
            net["trunk"].zero_grad()
    with pytest.raises(ConfigError, match=r"not the sum of what the backward passes of the step computed"):
        noise_scale.step()


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("steps", [2, 10])
def test_backward_passes_that_were_thrown_away(source: str, steps: int) -> None:
    net = model()
    noise_scale = NoiseScaleMeter(net, source=source)
    for _ in range(steps):
        net.zero_grad()
        mse_loss(net(batch()[0]), batch()[1]).backward()
    with pytest.raises(ConfigError, match=rf"{steps} backward passes since the last measured step.*only the latest"):
        noise_scale.step()


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_what_nobody_changed_is_no_error(source: str, dtype: torch.dtype) -> None:
    net = model().to(dtype)
    noise_scale = NoiseScaleMeter(net, source=source)
    for step in range(12):
        for x, y in zip(*(part.chunk(4) for part in batch()), strict=True):
            (mse_loss(net(x), y.to(dtype)) / 4).backward()
        noise_scale.step()
        net.zero_grad(set_to_none=step % 2 == 0)
    assert noise_scale.estimate().steps == 12


@pytest.mark.parametrize("source", SOURCES)
def test_scaled_and_unscaled_gradients(source: str) -> None:
    net = model()
    noise_scale = NoiseScaleMeter(net, source=source)
    backward(net, 1024.0)
    noise_scale.step(loss_scale=1024.0)
    net.zero_grad()
    backward(net, 1000.0)
    for parameter in net.parameters():
        parameter.grad.div_(1000.0)
    noise_scale.step(loss_scale=1000.0, gradients_unscaled=True)
    net.zero_grad()
    backward(net, 1000.0)
    for parameter in net.parameters():
        parameter.grad.div_(1000.0)
    with pytest.raises(ConfigError, match=r"is 0.001 times.*gradients_unscaled=True"):
        noise_scale.step(loss_scale=1000.0)


def test_a_hook_behind_ours_is_seen() -> None:
    net = model()
    noise_scale = NoiseScaleMeter(net, source="split")
    for parameter in net.parameters():
        parameter.register_hook(lambda gradient: 2 * gradient)
    backward(net)
    with pytest.raises(ConfigError, match="or a hook; use the source"):
        noise_scale.step()


def test_gradients_that_a_communication_hook_compresses_are_refused() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        torch.manual_seed(0)
        net = DistributedDataParallel(nn.Linear(32, 32))
        compressing = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=1)
        net.register_comm_hook(compressing, powerSGD_hook.powerSGD_hook)
        with NoiseScaleMeter(net, source="replicas") as meter:
            for step in range(2):
                net.zero_grad()
                for _ in range(2):
                    (net(torch.randn(16, 32)).square().mean() / 2).backward()
                if step == 0:  # not compressed yet
                    meter.step()
            with pytest.raises(
                ConfigError, match=r"not the sum of what the backward passes of the step computed.*hook"
            ):
                meter.step()
    finally:
        dist.destroy_process_group()


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
