"""Batch-size schedules: which to run, and what they save.

Example: cbs schedule plan results/

Example: cbs schedule judge results/
"""
