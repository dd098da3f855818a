"""Groups of examples inside the backward pass of one batch."""

from __future__ import annotations

from cbs.noise_scale.sources import SOURCES
from cbs.noise_scale.sources.inside_backward import InsideBackward


@SOURCES.register("split")
class Split(InsideBackward):
    """The batch of every forward pass is split into a few groups within the backward pass.

    Needs no second backward pass: the gradient of a parameter tensor is made group by group and added up.
    """
