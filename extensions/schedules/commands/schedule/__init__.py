"""Batch-size schedules: which to run.

Example: cbs schedule plan results/

Example: cbs schedule judge results/
"""
