"""Workloads: one file each, found by name or by ``package.module:function``."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path

from cbs.config import Choice
from cbs.errors import CbsError, ConfigError
from cbs.registry import Registry
from cbs.workloads.base import TrainingStream, Workload
from cbs.workloads.streams import RandomExamples

WORKLOADS: Registry[Callable[..., Workload]] = Registry("workload", "cbs.workloads")

__all__ = ["WORKLOADS", "RandomExamples", "TrainingStream", "Workload", "build_workload"]


def build_workload(choice: Choice) -> Workload:
    """The workload a configuration names, built with its options.

    Args:
        choice: a name of :data:`WORKLOADS`, or ``package.module:function`` for a function that returns an object with
            the :class:`~cbs.workloads.base.Workload` protocol.

    Raises:
        ConfigError: if the name or an option is unknown, or the function returns something else.
    """
    factory = _import_factory(choice.name) if ":" in choice.name else WORKLOADS[choice.name]
    try:
        inspect.signature(factory).bind(**choice.options)
    except TypeError as error:
        known = ", ".join(inspect.signature(factory).parameters) or "none"
        raise ConfigError(f"workload {choice.name!r}: {error}; its options are: {known}") from None
    workload = factory(**choice.options)
    missing = [name for name in _protocol_names() if not hasattr(workload, name)]
    if missing:
        raise ConfigError(f"workload {choice.name!r} returned {type(workload).__name__} without {', '.join(missing)}")
    return workload


def _protocol_names() -> list[str]:
    methods = [name for name in vars(Workload) if not name.startswith("_") and callable(getattr(Workload, name))]
    return sorted({*Workload.__annotations__, *methods})


def _import_factory(path: str) -> Callable[..., Workload]:
    module_name, _, function = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except CbsError:
        raise
    except Exception as error:
        raise ConfigError(f"cannot import workload module {module_name!r}: {type(error).__name__}: {error}") from error
    if not callable(getattr(module, function, None)):
        raise ConfigError(f"workload {path!r}: {module_name} has no function {function!r}")
    return getattr(module, function)
