"""The networks of the ranks and their batches, and what they should find: the gradient of every group, one by one."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cbs.noise_scale.geometries.norms import L2
from cbs.noise_scale.meter import NoiseScaleMeter
from cbs.noise_scale.moments import Sizes, solve_moments

EXACT = {"rtol": 1e-9, "atol": 1e-15}
"""Networks are in float64 and the two sides differ in the order of sums over at most 28 examples and 16800 entries, so
they agree to about 1e-13; 1e-9 leaves room and is far below any difference that matters."""
EVEN = (4, 4, 4, 4)
SIZES = (3, 5, 2, 7)
"""Examples of a micro-batch, by rank, where ranks differ."""
STEPS = 3
"""Of a training loop."""


class Squares(L2):
    """Elementwise squares: a statistic of the size of the gradient."""

    name = "squares"
    norms_suffice = False

    def statistic(self, index: int, gradients: Tensor) -> Tensor:
        return gradients.square().sum(0)

    def read(self, small: Sequence[Tensor], big: Sequence[Tensor], sizes: Sizes) -> tuple[Tensor, Tensor]:
        pairs = [solve_moments(s, sizes.small, b, sizes.big) for s, b in zip(small, big, strict=True)]
        return torch.stack([signal.sum() for signal, _ in pairs]), torch.stack([noise.sum() for _, noise in pairs])


class Network(nn.Module):
    """A large layer, a frozen one, a tied one, and a branch that even ranks use."""

    def __init__(self) -> None:
        super().__init__()
        self.large = nn.Linear(6, 2800)
        self.narrow = nn.Linear(2800, 8)
        self.frozen = nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.tied = nn.Linear(8, 8)
        self.branch = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, inputs: Tensor, branch: bool = False) -> Tensor:
        hidden = torch.tanh(self.frozen(torch.tanh(self.narrow(torch.tanh(self.large(inputs))))))
        hidden = torch.tanh(self.tied(torch.tanh(self.tied(hidden))))
        return self.head(self.branch(hidden) if branch else hidden)


class SmallNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, inputs: Tensor, branch: bool = False) -> Tensor:
        return self.last(torch.tanh(self.first(inputs)))


def network() -> Network:
    torch.manual_seed(0)
    return Network().double()


def batch(rank: int, micro: int, size: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of one micro-batch."""
    generator = torch.Generator().manual_seed(100 * rank + micro)
    inputs = torch.randn(size, 6, dtype=torch.float64, generator=generator)
    return inputs, torch.randn(size, 3, dtype=torch.float64, generator=generator) + inputs[:, :3]


def loss(model: nn.Module, rank: int, micro: int, micros: int, size: int, branch: bool = False) -> Tensor:
    inputs, targets = batch(rank, micro, size)
    return (model(inputs, branch=branch) - targets).square().mean() / micros


def small_network() -> nn.Module:
    torch.manual_seed(0)
    return SmallNetwork().double()


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
