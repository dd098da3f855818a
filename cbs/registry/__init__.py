"""Names for objects that live one per file, and the texts a person types for them."""

from __future__ import annotations

from cbs.registry.registry import Fallback, ImportFallback, Registry, lacking, listed, only_code

__all__ = ["Fallback", "ImportFallback", "Registry", "lacking", "listed", "only_code"]
