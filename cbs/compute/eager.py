"""Torch's optimizers without torch's compiler, whose import takes more than a second of every process that trains.

Methods of :class:`torch.optim.Optimizer` that ``torch.compile`` should not trace are wrapped, and the wrapper imports
the compiler at its first call. Outside compiled code the method without it does the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.optim import Optimizer


def unwrapped(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method that a wrapper calls; a method without wrapper as it is."""
    return getattr(method, "__wrapped__", method)


@contextmanager
def building_plainly() -> Iterator[None]:
    """Within the block optimizers are built without the wrapper."""
    wrapped = Optimizer.add_param_group
    Optimizer.add_param_group = unwrapped(wrapped)  # type: ignore[method-assign]
    try:
        yield
    finally:
        Optimizer.add_param_group = wrapped  # type: ignore[method-assign]
