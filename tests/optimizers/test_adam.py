"""Adam and AdamW step alike however weights, gradients and state lie in memory, and fused where that may be."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cbs.optimizers import adam as adam_module
from cbs.optimizers.adam import Adam, AdamW
from cbs.optimizers.base import build_optimizer
from cbs.trial.config import Choice

EITHER = pytest.mark.parametrize(("kind", "theirs"), [(Adam, torch.optim.Adam), (AdamW, torch.optim.AdamW)])


def plain(tensor: Tensor) -> Tensor:
    return tensor.contiguous()


def channels_last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)


def with_gaps(tensor: Tensor) -> Tensor:
    wide = torch.full((*tensor.shape, 2), 99.0)
    wide[..., 0] = tensor
    return wide[..., 0]


LAYOUTS = (plain, channels_last, with_gaps)


def draw(seed: int) -> Tensor:
    return torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(seed))


def options(**more: Any) -> dict[str, Any]:
    return {"lr": 0.01, "weight_decay": 0.1, **more}


@EITHER
@pytest.mark.parametrize("gradient", LAYOUTS)
@pytest.mark.parametrize("weight", LAYOUTS)
@pytest.mark.parametrize("saved", LAYOUTS)
def test_memory_makes_no_difference(kind: type, theirs: type, weight: Any, gradient: Any, saved: Any) -> None:
    """State is saved of weights that lie in one way and goes on beside weights that lie in another."""
    reference, earlier = nn.Parameter(draw(0)), nn.Parameter(saved(draw(0)))
    optimizers = [theirs([reference], **options(foreach=False)), kind([earlier], **options(fused=True))]
    later = nn.Parameter(weight(draw(0)))
    for seed in (1, 2, 3):
        reference.grad = draw(seed)
        optimizers[0].step()
        if seed == 1:
            earlier.grad = gradient(draw(seed))
            optimizers[1].step()
            later.data.copy_(earlier.data)
            optimizers.append(kind([later], **options(fused=True)))
            optimizers[2].load_state_dict(copy.deepcopy(optimizers[1].state_dict()))
        else:
            later.grad = gradient(draw(seed))
            optimizers[2].step()
        torch.testing.assert_close(earlier if seed == 1 else later, reference)
    assert optimizers[2].param_groups[0]["fused"] is True


@EITHER
@pytest.mark.parametrize("layout", [plain, channels_last])
def test_what_lies_alike_is_fused_bit_for_bit(
    kind: type, theirs: type, layout: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.optim import adam

    fused = []
    inner = adam._fused_adam

    def spy(*args: Any, **kwargs: Any) -> None:
        fused.append(True)
        inner(*args, **kwargs)

    monkeypatch.setattr(adam, "_fused_adam", spy)
    params = [nn.Parameter(layout(draw(0))) for _ in range(2)]
    optimizers = [theirs(params[:1], **options(fused=True)), kind(params[1:], **options(fused=True))]
    for seed in (1, 2):
        for param, optimizer in zip(params, optimizers, strict=True):
            param.grad = layout(draw(seed))
            optimizer.step()
    assert torch.equal(*params)
    assert len(fused) == 4


@EITHER
def test_entries_that_share_memory_are_refused(kind: type, theirs: type) -> None:
    param = nn.Parameter(torch.ones(1, 4).expand(3, 4))
    optimizer = kind([param], **options(fused=True))
    param.grad = torch.ones(3, 4)
    with pytest.raises(RuntimeError, match="refers to a single memory location"):
        optimizer.step()
    assert optimizer.param_groups[0]["fused"] is True


@pytest.mark.parametrize("name", ["adam", "adamw", "muon", "lamb", "merit"])
def test_half_precision_weights_have_float32_state(name):
    half, choice = (
        nn.Sequential(nn.Embedding(4, 8), nn.Linear(8, 8)).bfloat16(),
        Choice(name=name, options={"betas": (0.9, 0.999)}),
    )
    optimizer = build_optimizer(choice, half, 1e-2)
    for step in range(60):  # in bfloat16 the second moment would stay where it is after 30
        for param in half.parameters():
            param.grad = torch.full_like(param, 1.0 if step < 30 else 1e-3)
        optimizer.step()
    tensors = [value for state in optimizer.state.values() for value in state.values()]
    assert {value.dtype for value in tensors} == {torch.float32}
    expected = (1 - 0.999**30) * 0.999**30
    assert optimizer.state[half[0].weight]["exp_avg_sq"].mean().item() == pytest.approx(expected, rel=1e-4)
    loaded = build_optimizer(choice, half, 1e-2)
    loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for param in half.parameters():
        for key, value in optimizer.state[param].items():
            assert loaded.state[param][key].dtype == value.dtype
            torch.testing.assert_close(loaded.state[param][key], value, rtol=0, atol=0)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("amsgrad", [True, False])
@pytest.mark.parametrize("large", [True, False])
def test_a_step_in_half_precision_is_that_of_float32_rounded(monkeypatch, fused, amsgrad, large):
    if not large:
        monkeypatch.setattr(adam_module, "_PIECE", 1)
    values = [torch.randn(3, 5).bfloat16(), torch.randn(7), torch.randn(4).half()]
    params = [nn.Parameter(value) for value in values]
    twins = [nn.Parameter(param.detach().float().clone()) for param in params]
    ours = Adam(params, lr=1e-2, betas=(0.9, 0.999), weight_decay=0.1, amsgrad=amsgrad, fused=fused)
    torchs = torch.optim.Adam(twins, lr=1e-2, betas=(0.9, 0.999), weight_decay=0.1, amsgrad=amsgrad, fused=fused)
    for _ in range(5):
        for param, twin in zip(params, twins, strict=True):
            twin.data.copy_(param.detach())
            param.grad = torch.randn_like(param)
            twin.grad = param.grad.float()
        ours.step()
        torchs.step()
        for param, twin in zip(params, twins, strict=True):
            torch.testing.assert_close(param.detach(), twin.detach().to(param.dtype), rtol=0, atol=0)
            assert ours.state[param].keys() == torchs.state[twin].keys()
    assert ours.param_groups[0]["params"] == params


def test_a_compiled_step_in_half_precision_is_the_same():
    params, others = ([nn.Parameter(torch.ones(3, 3).bfloat16()), nn.Parameter(torch.ones(2))] for _ in range(2))
    plain, compiled = AdamW(params, lr=0.1), AdamW(others, lr=0.1)
    run = torch.compile(compiled.step, backend="eager")
    for _ in range(3):
        for param, other in zip(params, others, strict=True):
            param.grad = torch.randn_like(param)
            other.grad = param.grad.clone()
        plain.step()
        run()
    for param, other in zip(params, others, strict=True):
        torch.testing.assert_close(param, other)
