"""The two moments of a step, from the gradients of its groups written out."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


def mean_moments(
    model: nn.Module, steps: Iterable[tuple[dict[str, Tensor], Sequence[Any]]], loss: Callable[[nn.Module, Any], Tensor]
) -> tuple[float, float]:
    """Mean over steps of |G|^2 and tr(Sigma), each unbiased.

    Args:
        model: any of the architecture; its weights are overwritten.
        steps: weights at the beginning of a step, and its micro-batches of equal size.
        loss: mean loss of a micro-batch, whose examples ``len()`` counts.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    signals, noises = [], []
    for weights, batches in steps:
        model.load_state_dict(weights)
        groups = torch.stack(
            [
                torch.cat([part.flatten().double() for part in torch.autograd.grad(loss(model, batch), parameters)])
                for batch in batches
            ]
        )
        size = len(batches[0]["input_ids"] if isinstance(batches[0], dict) else batches[0][0])
        noises.append(size * groups.var(0).sum())
        signals.append(groups.mean(0).square().sum() - noises[-1] / (size * len(batches)))
    return float(sum(signals) / len(signals)), float(sum(noises) / len(noises))
