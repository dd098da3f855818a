"""Optimizers: one file per family, found by name; the classes work in any training loop."""

import importlib
from typing import Any

from cbs.optimizers.base import OPTIMIZERS, OptimizerSpec, build_optimizer, optimizer

_HOMES = {
    "CompositeOptimizer": "cbs.optimizers.composite",
    "LAMB": "cbs.optimizers.lamb",
    "LARS": "cbs.optimizers.lars",
    "MERIT": "cbs.optimizers.merit",
    "Muon": "cbs.optimizers.muon",
    "route": "cbs.optimizers.routing",
}

__all__ = ["OPTIMIZERS", "OptimizerSpec", "build_optimizer", "optimizer", *_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    # Lazy, because an entry imports this package's decorator while it is being discovered.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
