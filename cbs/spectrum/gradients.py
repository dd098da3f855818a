r"""Independent estimates of the gradient, and vectors whose covariance is that of one example's gradient.

Batches of b examples have gradients :math:`g_1 ... g_m`. Their means over either half are two independent estimates of
the true gradient. With random signs :math:`\epsilon_j` of which half are negative, the vector

.. math:: \xi = \sqrt{b/m} \sum_j \epsilon_j g_j

has mean 0, for the gradient itself drops out, and covariance :math:`\Sigma`, that of one example's gradient, exactly:
so :math:`E\,\xi^\top f(H) \xi = tr(f(H) \Sigma)`. Nothing is stored but the sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cbs.errors import ConfigError
from cbs.workloads.base import Batch, TrainingStream

BATCHES = 64
"""Batches the examples are divided into."""


@dataclass(frozen=True)
class Gradients:
    """What was found of the gradient at a point.

    Attributes:
        halves: two independent estimates of the gradient, ``[2, d]``.
        noise: vectors with the covariance of one example's gradient, ``[probes, d]``.
        loss: mean over all examples.
        examples: of both halves together.
    """

    halves: Tensor
    noise: Tensor
    loss: float
    examples: int


def sample_gradients(
    gradient: Callable[[Batch], tuple[float, Tensor]],
    stream: TrainingStream,
    examples: int,
    probes: int,
    generator: torch.Generator,
) -> Gradients:
    """Draw examples and add their gradients up.

    Args:
        gradient: a batch -> mean loss and its gradient ``[d]`` in float64.
        stream: of examples, independent ones.
        examples: to draw, at least 4; rounded down to batches of one size, an even number of them.
        probes: noise vectors.
        generator: of the signs, on the CPU.

    Raises:
        ConfigError: if there are too few examples.
    """
    if examples < 4:
        raise ConfigError(f"the noise of the gradient is measured on at least 4 examples, got {examples}")
    batches = min(BATCHES, examples // 2 * 2)
    size = examples // batches
    signs = torch.stack([_balanced(batches, generator) for _ in range(probes)])
    sums, noise, losses = [], [], []
    for index in range(batches):
        loss, found = gradient(stream.next(size))
        losses.append(loss)
        if not sums:
            sums, noise = [torch.zeros_like(found) for _ in range(2)], [torch.zeros_like(found) for _ in range(probes)]
        sums[index % 2] += found
        for probe, total in enumerate(noise):
            total.add_(found, alpha=float(signs[probe, index]))
    return Gradients(
        halves=torch.stack(sums) / (batches // 2),
        noise=torch.stack(noise) * (size / batches) ** 0.5,
        loss=sum(losses) / batches,
        examples=size * batches,
    )


def _balanced(count: int, generator: torch.Generator) -> Tensor:
    """As many 1 as -1, in random order."""
    return torch.arange(count).remainder(2).mul(2).sub(1)[torch.randperm(count, generator=generator)].double()
