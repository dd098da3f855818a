"""Forward passes beside those of training that examine the model; hooks that count passes ignore them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import nn

IN_AUXILIARY_PASS: ContextVar[bool] = ContextVar("IN_AUXILIARY_PASS", default=False)
"""Whether the current forward pass is auxiliary."""


@contextmanager
def auxiliary_pass() -> Iterator[None]:
    """Mark forward passes inside the block as auxiliary."""
    token = IN_AUXILIARY_PASS.set(True)
    try:
        yield
    finally:
        IN_AUXILIARY_PASS.reset(token)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run the block with a model in evaluation mode; every module returns to its earlier mode afterwards."""
    frozen = [module for module in model.modules() if not module.training]
    model.eval()
    try:
        yield
    finally:
        model.train()
        for module in frozen:
            module.training = False
