"""Measure one training run: workload, optimizer, target crossing and gradient noise scale.

``from cbs import TrialConfig, run_trial`` is the core; it needs torch, numpy and pyarrow and nothing else.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Choice": "cbs.config",
    "EvaluationPlan": "cbs.config",
    "Schedule": "cbs.config",
    "TrialConfig": "cbs.config",
    "Target": "cbs.target",
    "Measurement": "cbs.record",
    "TrialResult": "cbs.record",
    "TrialStatus": "cbs.record",
    "Store": "cbs.store",
    "CbsError": "cbs.errors",
    "BatchSizeController": "cbs.batch_size_controller",
    "run_trial": "cbs.training",
    "report": "cbs.reporting",
    "report_settings": "cbs.reporting",
}

__all__ = [*_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'cbs' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
