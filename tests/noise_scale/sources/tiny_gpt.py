"""A GPT of a few numbers in double precision, its losses, and the norms of what a source measured."""

import torch
from torch import Tensor, nn

from cbs.noise_scale.small_batch import Small
from cbs.workloads.text_parts.gpt import GPT, GPTShape

RTOL = 1e-11  # Double precision leaves rounding of sums of some thousand products
SHAPE = GPTShape(width=8, layers=2, heads=2, context=6)


def gpt(dtype: torch.dtype = torch.float64) -> GPT:
    torch.manual_seed(0)
    return GPT(SHAPE, 11).to(dtype)


def batch(examples: int = 8) -> Tensor:
    return torch.randint(11, (examples, SHAPE.context + 1), generator=torch.Generator().manual_seed(1))


def losses(model: nn.Module, ids: Tensor) -> Tensor:
    """Contribution of every sequence to the mean over sequences."""
    logits = model(ids[:, :-1])
    return nn.functional.cross_entropy(logits.mT.float(), ids[:, 1:], reduction="none").mean(1) / len(ids)


def norms(small: Small) -> Tensor:
    return torch.stack(small.statistics[0]).double()
