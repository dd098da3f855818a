"""Which weights are validated: some optimizers train at one point and answer for another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def averaged_weights(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Run a block with the weights an optimizer would hand over, then go back to those it trains.

    Schedule-free methods (Defazio et al. 2024, arXiv 2405.15682) answer with an average of their iterates and compute
    gradients elsewhere; they switch by methods called ``eval`` and ``train``. Optimizers without them are left alone.
    """
    modes = hasattr(optimizer, "eval") and hasattr(optimizer, "train")
    if modes:
        optimizer.eval()  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if modes:
            optimizer.train()  # type: ignore[attr-defined]
