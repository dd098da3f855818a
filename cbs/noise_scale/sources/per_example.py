"""Every example is a group."""

from __future__ import annotations

from cbs.noise_scale.sources import SOURCES
from cbs.noise_scale.sources.inside_backward import InsideBackward


@SOURCES.register("per_example")
class PerExample(InsideBackward):
    """Gradients of single examples within the backward pass (Gray et al. 2024, arXiv 2411.00999, section 3).

    Of all group sizes, one example gives the estimate of least variance.
    """

    single = True
