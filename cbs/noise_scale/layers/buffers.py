"""Buffers of a module as they were before a pass beside those of training."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

Snapshot = Sequence[tuple[Tensor, Tensor]]
"""Every buffer with a copy of its values."""


def snapshot(module: nn.Module) -> Snapshot:
    """Copies of all buffers of a module."""
    return [(buffer, buffer.detach().clone()) for buffer in module.buffers()]


@torch.no_grad()
def restore(taken: Snapshot) -> None:
    """Put the values back."""
    for buffer, value in taken:
        buffer.copy_(value)
