"""Recipes: functions that return a whole sweep."""

from __future__ import annotations

from collections.abc import Callable

from cbs.registry import Registry
from sweeps.spec.spec import Sweep

RECIPES: Registry[Callable[[], Sweep]] = Registry("recipe", "sweeps.recipes", makes=Sweep)

__all__ = ["RECIPES"]
