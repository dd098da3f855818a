"""Choice of the weights that are validated: some methods train one point and evaluate another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from cbs.training.averaging.base import WeightAverage


def answers_for_another_point(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer is a schedule-free method (Defazio et al. 2024, arXiv 2405.15682).

    These evaluate an average of their iterates and compute gradients at another point. They are recognized by methods
    called ``eval`` and ``train`` that switch between the two.
    """
    return hasattr(optimizer, "eval") and hasattr(optimizer, "train")


@contextmanager
def averaged_weights(optimizer: torch.optim.Optimizer, average: WeightAverage | None = None) -> Iterator[None]:
    """Run the block with the weights that a trial delivers, then go back to those it trains, bit for bit.

    The delivered weights are the average where there is one, else those that a schedule-free method evaluates, else
    those that are trained.
    """
    if average is not None:
        with average.in_place():
            yield
        return
    if not answers_for_another_point(optimizer):
        yield
        return
    # A schedule-free method computes the trained weights anew from the others, which rounds them.
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    trained = [weight.detach().clone() for weight in weights]
    optimizer.eval()  # type: ignore[attr-defined]
    try:
        yield
    finally:
        trained_weights(optimizer)
        with torch.no_grad():
            for weight, value in zip(weights, trained, strict=True):
                weight.copy_(value)


def trained_weights(optimizer: torch.optim.Optimizer) -> None:
    """Switch a schedule-free method to the point where it computes gradients; some refuse to step before this call."""
    if answers_for_another_point(optimizer):
        optimizer.train()  # type: ignore[attr-defined]
