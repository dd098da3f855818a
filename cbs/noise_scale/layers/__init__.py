"""Gradients of groups of examples inside the backward pass, layer kind by layer kind: one file each, found by type."""

from __future__ import annotations

from cbs.noise_scale.layers.layer import Layer
from cbs.registry import Registry

LAYERS: Registry[type[Layer]] = Registry("layer kind", "cbs.noise_scale.layers", derived_from=Layer)

__all__ = ["LAYERS", "Layer"]
