"""FLOPs of training, and the hours of an accelerator that they take.

FLOPs are 6 N D, forward and backward pass of a dense model of N parameters over D tokens (Kaplan et al. 2020, section
2.1). N counts every parameter of the model, which is built on torch's meta device and takes no memory. Where an example
has no tokens the rule does not hold, and there are no FLOPs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

FLOPS_PER_PARAMETER_AND_TOKEN = 6

PEAK, UTILISATION = 989e12, 0.4
"""Of one H100 in bfloat16 without sparsity, in FLOPs per second (its data sheet); and the share of it that is used."""


def training_flops(parameters: int, tokens: float) -> float:
    """6 N D."""
    return FLOPS_PER_PARAMETER_AND_TOKEN * parameters * tokens


def accelerator_hours(flops: float, peak: float = PEAK, utilisation: float = UTILISATION) -> float:
    """Hours of one accelerator with a peak in FLOPs per second, of which a share is used."""
    return flops / (peak * utilisation) / 3600.0


def count_parameters(build: Callable[[], nn.Module], *, without_embeddings: bool = False) -> int:
    """Parameters of a model, each counted once, built without memory for them."""
    with torch.device("meta"):
        model = build()
    tables = [module.weight for module in model.modules() if isinstance(module, nn.Embedding)]
    left_out = sum(table.numel() for table in tables) if without_embeddings else 0
    return sum(parameter.numel() for parameter in model.parameters()) - left_out
