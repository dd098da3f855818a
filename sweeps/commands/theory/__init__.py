"""Measure what theoretical predictions start from.

Example: cbs theory spectrum results/quick
"""

PANEL = "Extensions"
