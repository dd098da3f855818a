"""Geometries a noise scale can be measured in: one file each, found by name."""

from __future__ import annotations

from collections.abc import Callable

from cbs.noise_scale.geometries.base import Geometry
from cbs.registry import Registry

GEOMETRIES: Registry[Callable[[], Geometry]] = Registry("geometry", "cbs.noise_scale.geometries")

__all__ = ["GEOMETRIES", "Geometry"]
