r"""Independent estimates of the gradient, and the noise of one example's gradient along given directions and beyond.

Batches of b examples have gradients :math:`g_1 ... g_m`. Their means over either half are two independent estimates of
the true gradient; along a direction, b times their sample variance is the variance of one example's gradient. Beyond
the directions the vector

.. math:: \xi = \sqrt{b/m} \sum_j \epsilon_j g_j

with random signs, of which half are negative, has mean 0, for the gradient itself drops out, and covariance
:math:`\Sigma`, that of one example's gradient: so :math:`E\,\xi^\top f(H) \xi = tr(f(H) \Sigma)`. Nothing is stored
but sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cbs.errors import ConfigError
from cbs.workloads.base import Batch, TrainingStream

BATCHES = 256
"""Most batches that the examples are divided into."""

LEAST = 8
"""Fewest examples."""


@dataclass(frozen=True)
class Sampler:
    """The same examples as often as they are needed.

    Attributes:
        gradient: a batch -> mean loss and its gradient ``[d]`` in float64.
        stream: makes the stream of examples anew.
        examples: to draw, at least :data:`LEAST`; rounded down to an even number of batches of one size.
    """

    gradient: Callable[[Batch], tuple[float, Tensor]]
    stream: Callable[[], TrainingStream]
    examples: int

    def __post_init__(self) -> None:
        if self.examples < LEAST:
            raise ConfigError(f"gradient examples must be at least {LEAST}, got {self.examples}")

    @property
    def batches(self) -> int:
        """Number of batches, even."""
        return min(BATCHES, self.examples // 2 * 2)

    @property
    def size(self) -> int:
        """Examples of a batch."""
        return self.examples // self.batches

    def halves(self) -> tuple[Tensor, float]:
        """Two independent estimates of the gradient, ``[2, d]``, and the mean loss."""
        losses, first, second = [], None, None
        for index, (loss, gradient) in enumerate(self._each()):
            losses.append(loss)
            if index % 2:
                second = gradient if second is None else second.add_(gradient)
            else:
                first = gradient if first is None else first.add_(gradient)
        assert first is not None
        assert second is not None
        return torch.stack([first, second]) / (self.batches // 2), float(np.mean(losses))

    def noise(self, directions: Tensor, vectors: int, generator: torch.Generator) -> tuple[np.ndarray, Tensor]:
        """Variance of one example's gradient along orthonormal ``directions`` ``[n, d]``, shape ``[n]``, and vectors
        with the covariance of one example's gradient, ``[vectors, d]``.

        Args:
            directions: may be none.
            vectors: how many.
            generator: of the signs, on the CPU.
        """
        signs = torch.stack([_balanced(self.batches, generator) for _ in range(vectors)])
        seen, sums = [], None
        for index, (_, gradient) in enumerate(self._each()):
            seen.append((directions @ gradient).cpu().numpy())
            turned = signs[:, index, None].to(gradient) * gradient
            sums = turned if sums is None else sums.add_(turned)
        assert sums is not None
        return self.size * np.var(np.stack(seen), axis=0, ddof=1), sums * (self.size / self.batches) ** 0.5

    def _each(self) -> Iterator[tuple[float, Tensor]]:
        stream = self.stream()
        for _ in range(self.batches):
            yield self.gradient(stream.next(self.size))


def _balanced(count: int, generator: torch.Generator) -> Tensor:
    """As many 1 as -1, in random order."""
    return torch.arange(count).remainder(2).mul(2).sub(1)[torch.randperm(count, generator=generator)].double()
