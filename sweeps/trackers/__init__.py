"""Experiment trackers that a sweep writes its trials to as well, one run each: a class per file."""

from __future__ import annotations

from cbs.registry import Registry
from sweeps.trackers.base import Tracker

TRACKERS: Registry[type[Tracker]] = Registry("tracker", "sweeps.trackers", derived_from=Tracker)

__all__ = ["TRACKERS", "Tracker"]
