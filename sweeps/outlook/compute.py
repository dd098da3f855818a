"""Estimate the FLOPs of training, and the hours that they take on an accelerator.

FLOPs are 6 N D for the forward and backward passes of a dense model of N parameters over D tokens (Kaplan et al. 2020,
section 2.1). N counts every parameter; the model is built on torch's meta device, which takes no memory. If examples
have no tokens, the rule does not hold and no FLOPs are given.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

FLOPS_PER_PARAMETER_AND_TOKEN = 6

PEAK, UTILISATION = 989e12, 0.4
"""FLOP/s of one H100 in bfloat16 without sparsity (its data sheet), and the fraction of them that training achieves."""


def training_flops(parameters: int, tokens: float) -> float:
    """Return 6 N D, with N ``parameters`` and D ``tokens``."""
    return FLOPS_PER_PARAMETER_AND_TOKEN * parameters * tokens


def accelerator_hours(flops: float, rate: float = PEAK * UTILISATION) -> float:
    """Return the hours on one accelerator that achieves ``rate`` FLOP/s."""
    return flops / rate / 3600.0


def count_parameters(build: Callable[[], nn.Module], *, without_embeddings: bool = False) -> int:
    """Return the number of parameters of a model, shared ones counted once; it is built without memory for them."""
    with torch.device("meta"):
        model = build()
    tables = [module.weight for module in model.modules() if isinstance(module, nn.Embedding)]
    left_out = sum(table.numel() for table in tables) if without_embeddings else 0
    return sum(parameter.numel() for parameter in model.parameters()) - left_out
