"""Forward passes that are run beside those of training, to look at the model; what counts passes leaves them out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from torch import nn

IN_AUXILIARY_PASS: ContextVar[bool] = ContextVar("IN_AUXILIARY_PASS", default=False)
"""Whether the pass under way is such a one."""


@contextmanager
def auxiliary_pass() -> Iterator[None]:
    """Run a block whose forward passes are auxiliary."""
    token = IN_AUXILIARY_PASS.set(True)
    try:
        yield
    finally:
        IN_AUXILIARY_PASS.reset(token)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run a block with a model in evaluation mode; every module returns to its earlier mode afterwards."""
    frozen = [module for module in model.modules() if not module.training]
    model.eval()
    try:
        yield
    finally:
        model.train()
        for module in frozen:
            module.training = False
