"""Gradient noise scale estimators: one file each, found by name."""

from __future__ import annotations

from collections.abc import Callable

from cbs.noise_scale.base import Probe
from cbs.registry import Registry

PROBES: Registry[Callable[[], Probe]] = Registry("noise-scale estimator", "cbs.noise_scale")

__all__ = ["PROBES", "Probe"]
