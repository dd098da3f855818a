"""What is measured: a quadratic statistic of gradients, and what is read off its two moments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from cbs.noise_scale.moments import Sizes, solve_moments


class Geometry(Protocol):
    r"""A norm in which signal and noise of a gradient are compared.

    A geometry has a quadratic statistic T per parameter tensor, which sources add up over groups of examples during the
    backward pass, and reads ``(signal, noise)`` off T at two batch sizes. Both add up over parameter tensors, and the
    noise scale in examples is ``(sum of noise / sum of signal) ** exponent``.

    Attributes:
        name: in columns, tables and keys; of a geometry of :data:`GEOMETRIES` its name there.
        symbol: of the noise scale, in the mathematics of LaTeX, without dollar signs.
        exponent: 1 where signal and noise are squared norms, 2 where they are norms.
        norms_suffice: whether T is the squared Euclidean norm, so that a source that knows norms without the gradients
            can serve this geometry.
    """

    name: str
    symbol: str
    exponent: int
    norms_suffice: bool

    def bind(self, parameters: Sequence[nn.Parameter], optimizer: torch.optim.Optimizer | None) -> None:
        """Receive the parameter tensors that are measured and the optimizer that moves them; by default
        unused.

        Raises:
            ConfigError: if this geometry needs an optimizer, or another one.
        """
        return

    def covers(self, index: int) -> bool:
        """Whether parameter tensor ``index`` counts, as all do by default; sources skip those that do not."""
        return True

    def statistic(self, index: int, gradients: Tensor) -> Tensor:
        """Sum of T over the gradients of several groups, in float32 or better.

        Args:
            index: of the parameter tensor.
            gradients: shape ``[groups, *parameter.shape]``, any floating dtype; see :func:`as_real`.

        Returns:
            Of any shape that depends on the parameter tensor alone. Always a fresh tensor.
        """

    def read(self, small: Sequence[Tensor], big: Sequence[Tensor], sizes: Sizes) -> tuple[Tensor, Tensor]:
        """``(signal, noise)`` of every covered parameter tensor, each float64 of shape ``[covered parameters]``; by
        default the two-batch solution for a T that is a number.

        Args:
            small: mean of T over the mean gradients of the groups, one entry per covered parameter tensor.
            big: T of the gradient of the whole step, likewise.
            sizes: batch sizes of the two sides.
        """
        at_small, at_big = (torch.stack(list(side)).double() for side in (small, big))
        return solve_moments(at_small, sizes.small, at_big, sizes.big)


def as_real(tensor: Tensor) -> Tensor:
    """The tensor itself, or its real and imaginary parts along a new last dimension, as optimizers take them."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
