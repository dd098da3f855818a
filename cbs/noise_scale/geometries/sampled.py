"""A geometry that is measured now and then."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cbs.noise_scale.geometries.base import Geometry
from cbs.noise_scale.moments import Sizes


class Sampled:
    """Another geometry, at no cost while it is not ``active``: sources then add up zeros that nobody reads.

    Args:
        geometry: what is measured.

    Attributes:
        active: whether this step is measured.
    """

    def __init__(self, geometry: Geometry) -> None:
        self._geometry = geometry
        self.name = geometry.name
        self.exponent = geometry.exponent
        self.norms_suffice = geometry.norms_suffice
        self.active = True

    def bind(self, parameters: Sequence[nn.Parameter], optimizer: torch.optim.Optimizer | None) -> None:
        self._geometry.bind(parameters, optimizer)

    def covers(self, index: int) -> bool:
        return self._geometry.covers(index)

    def statistic(self, index: int, gradients: Tensor) -> Tensor:
        return self._geometry.statistic(index, gradients) if self.active else gradients.new_zeros(())

    def read(self, small: Sequence[Tensor], big: Sequence[Tensor], sizes: Sizes) -> tuple[Tensor, Tensor]:
        return self._geometry.read(small, big, sizes)
