"""Policies: which sweep comes next from what is there, one a file."""

from __future__ import annotations

from cbs.registry import ImportFallback, Registry
from sweeps.launching.policies.base import Policy

POLICIES: Registry[type[Policy]] = Registry("policy", "sweeps.launching.policies", makes=Policy)
POLICIES.fallback = ImportFallback("policy")

__all__ = ["POLICIES", "Policy"]
