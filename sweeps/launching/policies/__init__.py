"""Policies choose which sweep comes next from the results so far; one policy per file."""

from __future__ import annotations

from cbs.registry import ImportFallback, Registry
from sweeps.launching.policies.base import Policy

POLICIES: Registry[type[Policy]] = Registry("policy", "sweeps.launching.policies", makes=Policy)
POLICIES.fallback = ImportFallback("policy")

__all__ = ["POLICIES", "Policy"]
