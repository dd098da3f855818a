"""What ranks should find, from one process that takes the gradient of every group by itself."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cbs.noise_scale.meter import NoiseScaleMeter
from tests.noise_scale.distributed_worker import STEPS, batch, loss, network, small_network

EXACT = {"rtol": 1e-9, "atol": 1e-15}
"""Networks are in float64 and the two sides differ in the order of sums over at most 28 examples and 16800 entries, so
they agree to about 1e-13; 1e-9 leaves room and is far below any difference that matters."""
EVEN = (4, 4, 4, 4)


def group_gradients(
    world: int, micros: int, sizes: tuple[int, ...], *, model: nn.Module | None = None, branches: set[int] | None = None
) -> list[list[Tensor]]:
    """Mean gradient of every micro-batch of every rank, one after the other, per trainable parameter tensor."""
    model = model or network()
    model.branch.requires_grad_(branches is not None)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = []
    for rank in range(world):
        for micro in range(micros):
            value = loss(model, rank, micro, 1, sizes[rank], branch=rank in (branches or ()))
            found = torch.autograd.grad(value, parameters, allow_unused=True)
            gradients.append([torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)])
    return gradients


def check(
    found: dict[str, Any], gradients: list[list[Tensor]], micros: int, sizes: list[int], **tolerance: float
) -> None:
    """Both sides of the equations against the gradients of the groups."""
    tolerance = tolerance or EXACT
    small = found["small"]
    effective = len(sizes) ** 2 / sum(1 / (micros * size) for size in sizes)
    assert small["groups"] == micros * len(sizes)
    assert small["small"] == pytest.approx(effective / (micros * len(sizes)), rel=1e-12)
    assert small["big"] == pytest.approx(effective, rel=1e-12)
    squares = [torch.stack([gradient[i] for gradient in gradients]).square() for i in range(len(gradients[0]))]
    mean = means(gradients)
    # Ranks weigh the same whatever their size, and so do equal micro-batches of a rank.
    torch.testing.assert_close(
        list(small["statistics"][0]), [s.sum() / len(gradients) for s in squares], check_dtype=False, **tolerance
    )
    torch.testing.assert_close(found["big"][0], [m.square().sum() for m in mean], check_dtype=False, **tolerance)
    torch.testing.assert_close(found["gradients"], mean, check_dtype=False, **tolerance)
    for entry, square in zip(small["statistics"][1] if len(small["statistics"]) > 1 else [], squares, strict=False):
        torch.testing.assert_close(entry, square.mean(0), **tolerance)


def means(gradients: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Mean over groups, per parameter tensor."""
    return [torch.stack([gradient[i] for gradient in gradients]).mean(0) for i in range(len(gradients[0]))]


def training(world: int, micros: int, source: str) -> tuple[NoiseScaleMeter, nn.Module]:
    """The training loop of all ranks in one process, every group of a source a micro-batch of its own."""
    model = small_network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with NoiseScaleMeter(model, optimizer, source="accumulation") as noise_scale:
        for step in range(STEPS):
            optimizer.zero_grad()
            groups = [
                group
                for rank in range(world)
                for group in _groups(rank, range(step * micros, (step + 1) * micros), source)
            ]
            for inputs, targets in groups:
                ((model(inputs) - targets).square().mean() / len(groups)).backward()
            noise_scale.step()
            optimizer.step()
    return noise_scale, model


def _groups(rank: int, numbers: Sequence[int], source: str) -> list[tuple[Tensor, Tensor]]:
    micro_batches = [batch(rank, number, 4) for number in numbers]
    if source == "split":
        return [(inputs[half], targets[half]) for inputs, targets in micro_batches for half in (slice(2), slice(2, 4))]
    return micro_batches
