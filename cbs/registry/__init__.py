"""Registries, which map names to objects that live one per file, and parsers of what users type for them."""

from __future__ import annotations

from cbs.registry.registry import Fallback, ImportFallback, Registry, completing, lacking, listed, only_code

__all__ = ["Fallback", "ImportFallback", "Registry", "completing", "lacking", "listed", "only_code"]
