"""What a diagnostic is: something read off the forward passes of training, a few numbers per step."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Protocol

from torch import Tensor


class Diagnostic(Protocol):
    """Entered around the forward pass of every micro-batch of training, read once per step.

    A diagnostic changes neither weights nor random state: a trial has the same weights with and without it.
    Validation passes are outside.

    Attributes:
        compiled: whether it can see into a model that went through ``torch.compile``.
    """

    compiled: bool

    def __enter__(self) -> object:
        """A forward pass begins."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """The forward pass is over."""

    def columns(self) -> Mapping[str, Tensor]:
        """The step that ends: a zero-dimensional tensor per column of ``steps.parquet``, the same columns every time.

        Raises:
            ConfigError: if the model has nothing that it measures.
        """
