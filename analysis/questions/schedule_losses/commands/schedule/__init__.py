"""Batch-size schedules: which to run, and what they bought.

Example: cbs schedule plan results/

Example: cbs schedule judge results/
"""

PANEL = "Decide"
