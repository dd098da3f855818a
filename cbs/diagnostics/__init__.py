"""Diagnostics: numbers about the model that training records beside the loss; one file each, found by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cbs.diagnostics.base import Diagnostic, UpdateDiagnostic
from cbs.errors import ConfigError
from cbs.registry import Registry

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
