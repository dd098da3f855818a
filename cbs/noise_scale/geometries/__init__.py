"""Geometries in which a noise scale can be measured: one file each, found by name or by ``package.module:class``."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.noise_scale.moments import Sizes, solve_moments
from cbs.optimizers.matching import matched
from cbs.registry import ImportFallback, Registry


class Geometry(Protocol):
    r"""A norm in which signal and noise of a gradient are compared.

    A geometry has a quadratic statistic T per parameter tensor. Sources sum T over groups of examples during the
    backward pass, and the geometry computes ``(signal, noise)`` from T at two batch sizes. Both are summed over
    parameter tensors, and the noise scale in examples is ``(sum of noise / sum of signal) ** exponent``.

    Attributes:
        name: name in columns, tables and keys; for a geometry of :data:`GEOMETRIES` its name there.
        symbol: symbol of the noise scale in LaTeX math, without dollar signs.
        exponent: 1 where signal and noise are squared norms, 2 where they are norms.
        norms_suffice: whether T is the squared Euclidean norm, so that a source that computes norms without the
            gradients can be used with this geometry.
    """

    name: str
    symbol: str
    exponent: int
    norms_suffice: bool

    def bind(self, parameters: Sequence[nn.Parameter], optimizer: torch.optim.Optimizer | None) -> None:
        """Receive the measured parameter tensors and the optimizer that updates them; unused by default.

        Raises:
            ConfigError: if this geometry needs an optimizer, or another one.
        """
        return

    def covers(self, index: int) -> bool:
        """Return whether parameter tensor ``index`` is measured, as all are by default; sources skip the others."""
        return True

    def statistic(self, index: int, gradients: Tensor) -> Tensor:
        """Return the sum of T over the gradients of several groups, in float32 or better.

        Args:
            index: index of the parameter tensor.
            gradients: gradients of the groups, shape ``[groups, *parameter.shape]``, real (:func:`as_real`).

        Returns:
            A new tensor, whose shape depends on the parameter tensor alone.
        """

    def read(self, small: Sequence[Tensor], big: Sequence[Tensor], sizes: Sizes) -> tuple[Tensor, Tensor]:
        """Return ``(signal, noise)`` of every covered parameter tensor, each float64 of shape ``[covered parameters]``.

        The default solves the two-batch equations for a T that is a single number.

        Args:
            small: mean of T over the mean gradients of the groups, one entry per covered parameter tensor.
            big: T of the gradient of the whole step, one entry per covered parameter tensor.
            sizes: the two batch sizes.
        """
        at_small, at_big = (torch.stack(list(side)).double() for side in (small, big))
        return solve_moments(at_small, sizes.small, at_big, sizes.big)


def as_real(tensor: Tensor) -> Tensor:
    """Return the tensor itself, or real and imaginary parts along a new last dimension, as optimizers do."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


GEOMETRIES: Registry[Callable[[], Geometry]] = Registry("geometry", "cbs.noise_scale.geometries", makes=Geometry)
GEOMETRIES.fallback = ImportFallback("geometry")
MATCHED = "matched"
ALL = "all"
__all__ = ["ALL", "GEOMETRIES", "MATCHED", "Geometry", "bound", "build_geometry", "resolved"]


def build_geometry(name: str) -> Geometry:
    """Build the geometry of a name, not yet bound to parameters.

    Raises:
        ConfigError: if the name is unknown, or does not stand for a geometry.
    """
    geometry: Geometry = GEOMETRIES.make(name)
    if geometry.exponent not in (1, 2):
        raise ConfigError(f"geometry {name!r}: exponent must be 1 or 2, got {geometry.exponent!r}")
    return geometry


def resolved(name: str, optimizer: torch.optim.Optimizer | None) -> str:
    """Return the name of a geometry; that of the optimizer's own in place of :data:`MATCHED`.

    Raises:
        ConfigError: if it is :data:`MATCHED` and there is no optimizer.
    """
    if name != MATCHED:
        return name
    if optimizer is None:
        raise ConfigError("geometry 'matched' needs the optimizer; pass it, or name a geometry")
    return matched(optimizer)


def bound(
    names: Sequence[str], parameters: Sequence[nn.Parameter], optimizer: torch.optim.Optimizer | None
) -> list[Geometry]:
    """Return the distinct geometries of the names, bound to the parameters; ``"all"`` stands for those that fit."""
    found: dict[str, Geometry] = {}
    for name in names:
        name = resolved(name, optimizer)
        for wanted in GEOMETRIES if name == ALL else [name]:
            geometry = build_geometry(wanted)
            try:
                geometry.bind(parameters, optimizer)
            except ConfigError:
                if name != ALL:
                    raise
                continue
            if name != ALL or any(geometry.covers(index) for index in range(len(parameters))):
                found.setdefault(wanted, geometry)
    return list(found.values())
