"""Workloads: one file each, found by name or by ``package.module:function``."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from cbs.config import Choice
from cbs.errors import ConfigError
from cbs.registry import Imported, Registry, lacking
from cbs.workloads.base import TrainingStream, Workload
from cbs.workloads.streams import RandomExamples

WORKLOADS: Registry[Callable[..., Workload]] = Registry("workload", "cbs.workloads")
WORKLOADS.fallback = Imported("workload")

__all__ = ["WORKLOADS", "RandomExamples", "TrainingStream", "Workload", "build_workload"]


def build_workload(choice: Choice) -> Workload:
    """The workload a configuration names, built with its options.

    Args:
        choice: a name of :data:`WORKLOADS`, or ``package.module:function`` for a function that returns an object with
            the :class:`~cbs.workloads.base.Workload` protocol.

    Raises:
        ConfigError: if the name or an option is unknown, or the function returns something else.
    """
    factory = WORKLOADS[choice.name]
    try:
        inspect.signature(factory).bind(**choice.options)
    except TypeError as error:
        known = ", ".join(inspect.signature(factory).parameters) or "none"
        raise ConfigError(f"workload {choice.name!r}: {error}; its options are: {known}") from None
    workload = factory(**choice.options)
    if missing := lacking(workload, Workload):
        raise ConfigError(f"workload {choice.name!r} returned {type(workload).__name__} without {', '.join(missing)}")
    return workload
