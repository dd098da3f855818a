"""What a diagnostic is: something read off the forward passes of training, a few numbers per step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn


class Diagnostic(Protocol):
    """Entered around the forward pass of every micro-batch of training, read once per step.

    A diagnostic changes neither weights nor random state: a trial has the same weights with and without it.
    Validation passes are outside.

    How many forward passes a step took:

    >>> import torch
    >>> class Passes:
    ...     compiled = True
    ...     def __init__(self):
    ...         self.count = 0
    ...     def __enter__(self):
    ...         self.count += 1
    ...     def __exit__(self, *raised):
    ...         pass
    ...     def columns(self):
    ...         count, self.count = self.count, 0
    ...         return {"passes": torch.tensor(float(count))}
    >>> diagnostic = Passes()
    >>> for _ in range(2):
    ...     with diagnostic:
    ...         pass
    >>> diagnostic.columns()
    {'passes': tensor(2.)}

    Attributes:
        compiled: whether it can see into a model that went through ``torch.compile``.
    """

    compiled: bool

    def __enter__(self) -> object:
        """A trial is about to run a forward and backward pass of a step that is recorded."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """The pass is over."""

    def columns(self) -> Mapping[str, Tensor]:
        """A zero-dimensional tensor per column of ``steps.parquet``, the same columns every time.

        A trial calls it once per step that is recorded, after the last of its passes.

        Raises:
            ConfigError: if the model has nothing that it measures.
        """


@runtime_checkable
class UpdateDiagnostic(Diagnostic, Protocol):
    """A diagnostic of the optimizer's step: told of it before, and read after it."""

    def before_step(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Sequence[str]:
        """Gradients are there, and the optimizer is next; returns the names of the columns of :meth:`columns`, which a
        trial calls once the weights have moved.

        Raises:
            ConfigError: if the model or the optimizer has nothing that it measures.
        """
