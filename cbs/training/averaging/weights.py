"""Which weights are validated: some trials train at one point and answer for another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from cbs.training.averaging.base import WeightAverage


def answers_for_another_point(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer is a schedule-free method (Defazio et al. 2024, arXiv 2405.15682): these answer with an
    average of their iterates and compute gradients elsewhere; they switch by methods called ``eval`` and ``train``."""
    return hasattr(optimizer, "eval") and hasattr(optimizer, "train")


@contextmanager
def averaged_weights(optimizer: torch.optim.Optimizer, average: WeightAverage | None = None) -> Iterator[None]:
    """Run a block with the weights that a trial would hand over, then go back to those it trains.

    They are the average where there is one, else those of a schedule-free method, else those that are trained.
    """
    if average is not None:
        with average.in_place():
            yield
        return
    if answers_for_another_point(optimizer):
        optimizer.eval()  # type: ignore[attr-defined]
    try:
        yield
    finally:
        trained_weights(optimizer)


def trained_weights(optimizer: torch.optim.Optimizer) -> None:
    """Have a schedule-free method take its steps where gradients are computed; some refuse to before they are told."""
    if answers_for_another_point(optimizer):
        optimizer.train()  # type: ignore[attr-defined]
