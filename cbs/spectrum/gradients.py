r"""Independent estimates of the gradient, and of the noise of one example's gradient in given and in other directions.

Let :math:`g_1 ... g_m` be the gradients of batches of b examples. The means over each half of them are two independent
estimates of the true gradient. Along a given direction, b times the sample variance of the :math:`g_j` is the variance
of one example's gradient. For all other directions, the vector

.. math:: \xi = \sqrt{b/m} \sum_j \epsilon_j g_j

with random signs, half of them negative, has mean 0, because the true gradient cancels, and covariance :math:`\Sigma`,
that of one example's gradient: so :math:`E\,\xi^\top f(H) \xi = tr(f(H) \Sigma)`. Only sums are stored.
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
"""Largest number of batches that the examples are divided into."""

LEAST = 8
"""Least number of examples."""


@dataclass(frozen=True)
class Sampler:
    """A set of examples that can be drawn again as often as needed.

    Attributes:
        gradient: function from a batch to its mean loss and gradient, ``[d]`` in float64.
        stream: returns a new stream of the same examples.
        examples: number of examples to draw, at least :data:`LEAST`; rounded down to an even number of equal batches.
    """

    gradient: Callable[[Batch], tuple[float, Tensor]]
    stream: Callable[[], TrainingStream]
    examples: int

    def __post_init__(self) -> None:
        if self.examples < LEAST:
            raise ConfigError(f"gradient examples must be at least {LEAST}, got {self.examples}")

    @property
    def batches(self) -> int:
        """Number of batches, which is even."""
        return min(BATCHES, self.examples // 2 * 2)

    @property
    def size(self) -> int:
        """Number of examples in a batch."""
        return self.examples // self.batches

    def halves(self) -> tuple[Tensor, float]:
        """Return two independent estimates of the gradient, ``[2, d]``, and the mean loss."""
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
        """Return the gradient noise along given directions, and random vectors with its covariance.

        Args:
            directions: orthonormal directions, ``[n, d]``; n may be 0.
            vectors: number of random vectors.
            generator: generator of the signs, on the CPU.

        Returns:
            Variance of one example's gradient along each direction, ``[n]``; and vectors with the covariance of one
            example's gradient, ``[vectors, d]``.
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
    """Return equally many 1 and -1 in random order."""
    return torch.arange(count).remainder(2).mul(2).sub(1)[torch.randperm(count, generator=generator)].double()
