"""Workloads: one file each, found by name or by ``package.module:function``."""

from collections.abc import Callable

from cbs.registry import ImportFallback, Registry
from cbs.trial.config import Choice
from cbs.workloads.base import TrainingStream, Workload
from cbs.workloads.streams import RandomExamples

WORKLOADS: Registry[Callable[..., Workload]] = Registry("workload", "cbs.workloads", makes=Workload)
WORKLOADS.fallback = ImportFallback("workload")

__all__ = ["WORKLOADS", "RandomExamples", "TrainingStream", "Workload", "build_workload"]


def build_workload(choice: Choice) -> Workload:
    """Build the workload that a configuration names, with its options.

    Args:
        choice: a name of :data:`WORKLOADS`, or ``package.module:function`` for a function that returns an object with
            the :class:`~cbs.workloads.base.Workload` protocol.

    Raises:
        ConfigError: if the name or an option is unknown, or the function returns something else.

    Example:

        >>> build_workload(Choice(name="noisy_quadratic", options={"dimension": 5})).direction
        'below'
    """
    workload: Workload = WORKLOADS.make(choice.name, **choice.options)
    return workload
