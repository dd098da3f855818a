"""Batch-size schedules: plan them from measurements, and judge those that were run."""

PANEL = "Decide"
