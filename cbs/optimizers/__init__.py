"""Optimizers: one file per family, found by name; the classes work in any training loop."""

from __future__ import annotations

from cbs.optimizers.base import OPTIMIZERS, OptimizerSpec, build_optimizer, optimizer

__all__ = ["OPTIMIZERS", "OptimizerSpec", "build_optimizer", "optimizer"]
