"""Every example is a group."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from cbs.noise_scale.geometries.base import Geometry
from cbs.noise_scale.layers.backward import InsideBackward
from cbs.noise_scale.passes import CountExamples, first_dimension
from cbs.noise_scale.sources import SOURCES


@SOURCES.register("per_example")
class PerExample(InsideBackward):
    """Gradients of single examples within the backward pass (Gray et al. 2024, arXiv 2411.00999, section 3).

    Of all group sizes, one example gives the estimate of least variance.

    Args:
        model: what is called in the training loop.
        parameters: trainable parameter tensors.
        geometries: what to measure.
        groups: ignored.
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
        super().__init__(model, parameters, geometries, groups=None, count=count)
