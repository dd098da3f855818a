"""Sources of the small-batch side of a noise scale: one file each, found by name."""

from __future__ import annotations

from collections.abc import Callable

from cbs.noise_scale.sources.base import Small, Source
from cbs.registry import Registry

SOURCES: Registry[Callable[..., Source]] = Registry("noise-scale source", "cbs.noise_scale.sources", makes=Source)

__all__ = ["SOURCES", "Small", "Source"]
