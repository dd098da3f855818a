"""Curvature in the noise scale, and closed forms."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import cross_entropy

from cbs.errors import ConfigError
from cbs.workloads.text_parts.gpt import GPT, SIZES
from docs.examples.hessian_noise_scale import hessian_moments


def agrees(found: list[float], truth: float) -> bool:
    """Within four standard errors: a right estimate fails once in 16,000 comparisons."""
    return abs(np.mean(found) - truth) < 4 * np.std(found, ddof=1) / math.sqrt(len(found))


def test_is_unbiased_where_the_curvature_is_noisy_and_tied_to_the_gradient() -> None:
    """Loss a/2 theta^2 with a uniform on [0, 2]: gradient a theta, Hessian a; E a = 1, Var a = 1/3."""
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(model.weight, 3.0)
    generator = torch.Generator().manual_seed(0)

    def batch() -> Tensor:
        return 2 * torch.rand(4, 1, 1, generator=generator, dtype=torch.float64)

    def loss(factors: Tensor) -> Tensor:
        return (0.5 * factors * model.weight.square()).mean()

    steps = [hessian_moments(model, loss, [batch(), batch(), batch()], batch()) for _ in range(600)]
    assert agrees([step.signal.item() for step in steps], 9.0)
    assert agrees([step.noise.item() for step in steps], 3.0)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def loss_of(model: nn.Module) -> Any:
    return lambda batch: model(batch).sin().square().sum(1).mean()


def test_equals_quadratic_forms_of_the_whole_hessian() -> None:
    model = network()
    loss, names = loss_of(model), [name for name, _ in model.named_parameters()]
    groups, curvature, sizes = (
        [torch.randn(size, 3).double() for size in (2, 3, 4)],
        torch.randn(5, 3).double(),
        (2, 3, 4),
    )
    found = hessian_moments(model, loss, groups, curvature)

    def of_parameters(*values: Tensor) -> Tensor:
        outputs = torch.func.functional_call(model, dict(zip(names, values, strict=True)), (curvature,))
        return outputs.sin().square().sum(1).mean()

    blocks = torch.autograd.functional.hessian(of_parameters, tuple(model.parameters()))
    lengths = [parameter.numel() for parameter in model.parameters()]
    hessian = torch.cat(
        [
            torch.cat([b.reshape(m, n) for b, n in zip(row, lengths, strict=True)], 1)
            for row, m in zip(blocks, lengths, strict=True)
        ]
    )

    def gradient(batch: Tensor) -> Tensor:
        return torch.cat([entry.flatten() for entry in torch.autograd.grad(loss(batch), list(model.parameters()))])

    def parts(vector: Tensor) -> Tensor:
        return torch.stack([piece.sum() for piece in (vector * (hessian @ vector)).split(lengths)])

    small = sum(size / 9 * parts(gradient(group)) for size, group in zip(sizes, groups, strict=True))
    big = parts(gradient(torch.cat(groups)))
    inverse_small, inverse_big = 3 / 9, 1 / 9
    slope = (small - big) / (inverse_small - inverse_big)
    torch.testing.assert_close(found.noise, slope)
    torch.testing.assert_close(found.signal, big - slope * inverse_big)
    assert found.indices == (0, 1, 2, 3)
    assert (found.sizes.big, found.sizes.groups) == (9, 3)


def test_a_linear_loss_has_no_curvature() -> None:
    model = nn.Linear(3, 2)
    found = hessian_moments(model, lambda batch: model(batch).mean(), [torch.randn(4, 3)] * 2, torch.randn(4, 3))
    assert not found.signal.any()
    assert not found.noise.any()


def test_parameters_without_gradient_or_training_are_no_trouble() -> None:
    model = nn.ModuleDict({"used": nn.Linear(3, 1), "unused": nn.Linear(2, 2), "frozen": nn.Linear(3, 1)})
    model["frozen"].requires_grad_(False)
    groups = [torch.randn(4, 3) for _ in range(3)]
    found = hessian_moments(
        model, lambda batch: (model["used"](batch) * model["frozen"](batch)).square().mean(), groups[:2], groups[2]
    )
    assert found.noise.shape == (4,)
    assert not found.noise[2:].any()
    assert found.noise[:2].any()


def test_leaves_the_training_alone() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Tanh(), nn.Linear(4, 2)).train()
    loss = loss_of(model)
    loss(torch.randn(8, 3)).backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    batches, random = [torch.randn(8, 3) for _ in range(3)], torch.get_rng_state()
    with torch.no_grad():
        found = hessian_moments(model, loss, batches[:2], batches[2])
    assert found.noise.isfinite().all()
    assert torch.equal(torch.get_rng_state(), random)
    assert model.training
    assert len(gradients) == 6
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, gradient)
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name])


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        ctx.save_for_backward(value)
        return value.square()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * gradient


@pytest.mark.parametrize("after", [torch.mean, lambda value: value.square().mean()], ids=["linear", "curved"])
def test_functions_that_hide_their_second_derivative_are_a_config_error(after: Any) -> None:
    model, batch = nn.Linear(3, 1), torch.randn(4, 3)
    with pytest.raises(ConfigError, match="the model has a once_differentiable function"):
        hessian_moments(model, lambda batch: after(Once.apply(model(batch))), [batch, batch], batch)


def test_misuse_is_a_config_error() -> None:
    model, batch = nn.Linear(3, 1), torch.randn(4, 3)

    def loss(batch: Tensor) -> Tensor:
        return model(batch).square().mean()

    with pytest.raises(ConfigError, match="pass two, not 1"):
        hessian_moments(model, loss, [batch], batch)
    with pytest.raises(ConfigError, match="for each of 2 groups"):
        hessian_moments(model, loss, [batch, batch], batch, sizes=[4])
    model.requires_grad_(False)
    with pytest.raises(ConfigError, match="no trainable parameter"):
        hessian_moments(model, loss, [batch, batch], batch)


@pytest.mark.slow
def test_compiled_models_are_a_config_error() -> None:
    model, batch = network().float(), torch.randn(4, 3)
    compiled = torch.compile(model, backend="aot_eager")
    with pytest.raises(ConfigError, match="which compiled models and some kernels do not have"):
        hessian_moments(model, loss_of(compiled), [batch, batch], batch)


def test_attention_is_differentiated_twice() -> None:
    torch.manual_seed(0)
    model = GPT(SIZES["30k"], 128).double()
    parameters = list(model.parameters())
    one, other, curvature = (torch.randint(128, (4, 17)) for _ in range(3))

    def loss(batch: Tensor) -> Tensor:
        return cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    found = hessian_moments(model, loss, [one, other], curvature)
    direction = torch.autograd.grad(loss(torch.cat([one, other])), parameters)
    slopes = []
    for step in (1e-4, -1e-4):
        with torch.no_grad():
            torch._foreach_add_(parameters, direction, alpha=step)
        slopes.append(torch.autograd.grad(loss(curvature), parameters))
        with torch.no_grad():
            torch._foreach_add_(parameters, direction, alpha=-step)
    curvatures = [(g * (up - down)).sum() / 2e-4 for g, up, down in zip(direction, *slopes, strict=True)]
    # central differences: relative errors of 1e-8 by truncation and of 1e-12/1e-4 by rounding
    torch.testing.assert_close(found.signal + found.noise / 8, torch.stack(curvatures), rtol=1e-4, atol=1e-8)


def test_other_errors_pass_through() -> None:
    model, batch = nn.Linear(3, 1), torch.randn(4, 3)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        hessian_moments(model, lambda batch: model(batch).square().mean(), [batch, batch], torch.randn(4, 5))
