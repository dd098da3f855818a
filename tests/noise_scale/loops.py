"""Tiny models, data and loops in which a loss or a batch has what makes a noise scale wrong."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from cbs.noise_scale import NoiseScaleMeter

SIZE, TOKENS, CLASSES = 12, 6, 5
EXAMPLES = 16
ROWS = torch.arange(EXAMPLES)[:, None]
Batch = tuple[Tensor, Tensor, Tensor]  # Inputs, targets and, where there are tokens, which of them count


def line() -> nn.Module:
    return nn.Linear(4, 1)


def classifier() -> nn.Module:
    return nn.Linear(4, CLASSES)


def points(draws: torch.Generator) -> Batch:
    x = torch.randn(SIZE, 4, generator=draws)
    return x, x[:, :1] + torch.randn(SIZE, 1, generator=draws), x


def tokens(draws: torch.Generator) -> Batch:
    x, labels = torch.randn(SIZE, TOKENS, 4, generator=draws), torch.randint(CLASSES, (SIZE, TOKENS), generator=draws)
    lengths = torch.where(torch.rand(SIZE, generator=draws) < 0.3, TOKENS, 1)
    return x, labels, torch.arange(TOKENS) < lengths[:, None]


def squared(model: nn.Module, batch: Batch) -> Tensor:
    return mse_loss(model(batch[0]), batch[1])


def run(
    model: nn.Module,
    loss: Callable[..., Tensor],
    draw: Callable[..., Batch],
    steps: int,
    micros: int = 1,
    **options: object,
) -> str:
    """Return what is said in some steps with parameters at rest."""
    draws, said = torch.Generator().manual_seed(4), list[str]()
    meter = NoiseScaleMeter(model, tell=said.append, **{"every": 1} | options)
    for _ in range(steps):
        model.zero_grad()
        parts: Sequence[Batch] = [*zip(*(tensor.chunk(micros) for tensor in draw(draws)), strict=True)]
        whole = sum(int(part[2].sum()) for part in parts)
        for part in parts:
            (loss(model, part) if micros == 1 else loss(model, part, whole)).backward()
        meter.step()
    return meter.estimate().note


def batch(seed: int) -> Tensor:
    return torch.randn(EXAMPLES, 5, generator=torch.Generator().manual_seed(seed))


def trained(
    loss: Callable[[Tensor], Tensor],
    source: str = "split",
    of: Callable[[int], Tensor] = batch,
    steps: int = 5,
    **options,
):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4))
    meter = NoiseScaleMeter(model, source=source, **options)
    for step in range(steps):
        loss(model(of(step))).backward()
        plain = [parameter.grad.clone() for parameter in model.parameters()]
        meter.step()
        model.zero_grad()
    return meter, plain


def single(output: Tensor) -> Tensor:
    return cross_entropy(output, output.detach().argmin(1), label_smoothing=0.1)


def many_labels(output: Tensor) -> Tensor:
    """A quarter of the examples have all four labels."""
    labels = (len(output) > 4 * ROWS[: len(output)]).expand(-1, 4).float()
    return binary_cross_entropy_with_logits(output, labels, reduction="none").sum(1).mean()
