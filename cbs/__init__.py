"""Measure one training run: workload, optimizer, target crossing and gradient noise scale.

``from cbs import TrialConfig, run_trial`` is the core; it needs torch, numpy and pyarrow and nothing else.
"""

import importlib
from typing import Any

_HOMES = {
    "Choice": "cbs.trial.config",
    "EvaluationPlan": "cbs.trial.config",
    "Schedule": "cbs.trial.config",
    "TrialConfig": "cbs.trial.config",
    "Target": "cbs.trial.target",
    "Measurement": "cbs.trial.record",
    "TrialResult": "cbs.trial.record",
    "TrialStatus": "cbs.trial.record",
    "Store": "cbs.trial.store",
    "CbsError": "cbs.errors",
    "run_trial": "cbs.training.run",
    "report": "cbs.training.reporting",
    "report_settings": "cbs.training.reporting",
}

__all__ = [*_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'cbs' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
