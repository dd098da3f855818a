"""Batch-size schedules: what they bought, and what a table of stages says.

Example: cbs schedule judge results/
"""
