"""Batch-size schedules: which one to run, what they bought, and what a table of stages says.

Example: cbs schedule plan results/
"""
