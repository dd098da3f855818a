"""The gradient noise scale: sources, geometries, averages with intervals, and the drop-in for any training loop."""

from __future__ import annotations

from cbs.noise_scale.averages import MomentAverages
from cbs.noise_scale.estimate import Estimate
from cbs.noise_scale.geometries import GEOMETRIES
from cbs.noise_scale.matched import matched
from cbs.noise_scale.noise_scale import NoiseScale
from cbs.noise_scale.probe import Probe
from cbs.noise_scale.sources import SOURCES

__all__ = ["GEOMETRIES", "SOURCES", "Estimate", "MomentAverages", "NoiseScale", "Probe", "matched"]
