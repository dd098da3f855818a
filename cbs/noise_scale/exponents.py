"""How geometries turn moments into examples, for readers that have no gradients."""

from __future__ import annotations

EXPONENTS = {"l2": 1, "preconditioned": 1, "l1": 2, "nuclear": 2}
"""By name of a geometry: a noise scale is ``(mean noise / mean signal) ** exponent``; 1 where signal and noise are
squared norms, 2 where they are norms."""
