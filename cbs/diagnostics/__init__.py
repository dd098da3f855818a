"""Diagnostics: numbers about the model that training records beside the loss; one file each, found by name."""

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from cbs.errors import ConfigError
from cbs.registry import Registry


class Diagnostic(Protocol):
    """Entered around the forward pass of every micro-batch of training, read once per step.

    A diagnostic changes neither weights nor random state: a trial has the same weights with and without it. It does not
    see validation passes.

    Example that counts the forward passes of a step:

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
        compiled: whether it works in a model that was compiled with ``torch.compile``.
    """

    compiled: bool

    def __enter__(self) -> object:
        """Called before a forward and backward pass of a step that is recorded."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Called after the pass."""

    def columns(self) -> Mapping[str, Tensor]:
        """Return a zero-dimensional tensor per column of ``steps.parquet``, the same columns every time.

        A trial calls this once per recorded step, after the last of its passes.

        Raises:
            ConfigError: if the model has nothing that the diagnostic measures.
        """


@runtime_checkable
class UpdateDiagnostic(Diagnostic, Protocol):
    """A diagnostic of the optimizer's step: called before the step, and read after it."""

    def before_step(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Sequence[str]:
        """Called when the gradients are complete, before the optimizer's step; return the names of all columns.

        A trial calls :meth:`columns` after the weights have been updated.

        Raises:
            ConfigError: if the model or the optimizer has nothing that the diagnostic measures.
        """


DIAGNOSTICS: Registry[Callable[[], Diagnostic]] = Registry("diagnostic", "cbs.diagnostics", makes=Diagnostic)
__all__ = ["DIAGNOSTICS", "Diagnostic", "UpdateDiagnostic", "build_diagnostics"]


def build_diagnostics(names: Sequence[str], *, compiled: bool = False) -> list[Diagnostic]:
    """Build the diagnostics with these names, in the same order.

    Args:
        names: names in :data:`DIAGNOSTICS`.
        compiled: whether the model is compiled with ``torch.compile``.

    Raises:
        ConfigError: if a name is unknown, or a diagnostic does not work in a compiled model.
    """
    built: list[Diagnostic] = [DIAGNOSTICS.make(name) for name in names]
    for name, diagnostic in zip(names, built, strict=True):
        if compiled and not diagnostic.compiled:
            raise ConfigError(f"diagnostic {name!r} cannot see into a compiled model; use --set compile=false")
    return built
