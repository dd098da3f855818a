"""Geometries in which a noise scale can be measured: one file each, found by name or by ``package.module:class``."""

from __future__ import annotations

from collections.abc import Callable

from cbs.errors import ConfigError
from cbs.noise_scale.geometries.base import Geometry
from cbs.registry import ImportFallback, Registry

GEOMETRIES: Registry[Callable[[], Geometry]] = Registry("geometry", "cbs.noise_scale.geometries", makes=Geometry)

GEOMETRIES.fallback = ImportFallback("geometry")

__all__ = ["GEOMETRIES", "Geometry", "build_geometry"]


def build_geometry(name: str) -> Geometry:
    """Build the geometry of a name, not yet bound to parameters.

    Raises:
        ConfigError: if the name is unknown, or does not stand for a geometry.
    """
    geometry: Geometry = GEOMETRIES.make(name)
    if geometry.exponent not in (1, 2):
        raise ConfigError(f"geometry {name!r}: exponent must be 1 or 2, got {geometry.exponent!r}")
    return geometry
