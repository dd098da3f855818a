"""Groups of examples inside the backward pass of one batch."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from cbs.noise_scale.geometries.base import Geometry
from cbs.noise_scale.layers.backward import InsideBackward
from cbs.noise_scale.passes import CountExamples, first_dimension
from cbs.noise_scale.sources import SOURCES


@SOURCES.register("split")
class Split(InsideBackward):
    """The batch of every forward pass is split into a few groups within the backward pass.

    Needs no second backward pass: the gradient of a parameter tensor is made group by group and added up.

    Args:
        model: what is called in the training loop.
        parameters: trainable parameter tensors.
        geometries: what to measure.
        groups: groups per forward pass, of sizes that differ by at most one; at most one per example.
        count: number of examples of a forward pass.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Sequence[nn.Parameter],
        geometries: Sequence[Geometry],
        *,
        groups: int = 2,
        count: CountExamples = first_dimension,
    ) -> None:
        super().__init__(model, parameters, geometries, groups=groups, count=count)
