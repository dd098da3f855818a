"""Metrics that exist for every workload, beside the validation metric of its own; one file each, found by name."""

from __future__ import annotations

from collections.abc import Sequence

from cbs.registry import Registry
from cbs.training.metrics.base import Metric, MetricInputs

METRICS: Registry[type[Metric]] = Registry("metric", "cbs.training.metrics", makes=Metric)

__all__ = ["METRICS", "Metric", "MetricInputs", "build_metrics"]


def build_metrics(names: Sequence[str], targets: Sequence[str], inputs: MetricInputs) -> dict[str, Metric]:
    """Build the metrics of a trial by name: those that are listed, and those that its targets name.

    Raises:
        ConfigError: if a name is unknown.
    """
    wanted = {*names, *(target for target in targets if target in METRICS)}
    return {name: METRICS.make(name, inputs) for name in sorted(wanted)}
