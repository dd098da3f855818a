"""The gradient noise scale: sources, geometries, averages with intervals, and the drop-in for any training loop."""

from __future__ import annotations

from cbs.noise_scale.geometries import GEOMETRIES
from cbs.noise_scale.probe import Probe
from cbs.noise_scale.sources import SOURCES

__all__ = ["GEOMETRIES", "SOURCES", "Probe"]
